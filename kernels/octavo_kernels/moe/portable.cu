// Grouped products on any GPU: 16-bit floats on the tensor cores by warp matrices, float32 by hand.
//
// A block takes one unit after the other, as in hopper.cu. Its four warps share the tile's rows of
// the weight; while they multiply a chunk, the next is on its way in registers.
#include <algorithm>
#include <type_traits>

#include <mma.h>

#include "moe.cuh"

namespace octavo::moe {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kBlocksPerMultiprocessor = 2;

template <typename T_, int kTokens_, int kRows_> struct Tile {
  using T = T_;
  static constexpr int kTokens = kTokens_, kRows = kRows_;
  static constexpr int kPiece = Vec<T>::kSize;      // elements of 16 bytes
  static constexpr int kChunk = 4 * kPiece;         // features at once
  static constexpr int kPitch = kChunk + kPiece;    // against bank conflicts
  static constexpr int kPieces = (kTokens + kRows) * 4;
  static constexpr int kTurns = (kPieces + kThreads - 1) / kThreads;
  static constexpr int kSumsPitch = kRows + 4;
};

// Two chunks of tokens' rows and the weight's; when all are done, the sums.
template <typename Tile> union alignas(32) Room {
  typename Tile::T chunks[2][Tile::kTokens + Tile::kRows][Tile::kPitch];
  float sums[Tile::kTokens][Tile::kSumsPitch];
};

// A warp's part of the sums [tokens, rows]: its share of the rows.
template <typename Tile> class TensorCoreSums {
 public:
  __device__ TensorCoreSums() {
    for (auto& row : sums_) {
      for (auto& sum : row) nvcuda::wmma::fill_fragment(sum, 0.f);
    }
  }
  template <typename Chunk> __device__ void add(const Chunk& chunk, int warp) {
    using namespace nvcuda::wmma;
#pragma unroll
    for (int k = 0; k < Tile::kChunk; k += 16) {
      fragment<matrix_b, 16, 16, 16, T, col_major> weight[kAcross];
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int row = Tile::kTokens + (warp * kAcross + j) * 16;
        load_matrix_sync(weight[j], &chunk[row][k], Tile::kPitch);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        fragment<matrix_a, 16, 16, 16, T, row_major> x;
        load_matrix_sync(x, &chunk[i * 16][k], Tile::kPitch);
#pragma unroll
        for (int j = 0; j < kAcross; ++j) mma_sync(sums_[i][j], x, weight[j], sums_[i][j]);
      }
    }
  }
  __device__ void store(float (&sums)[Tile::kTokens][Tile::kSumsPitch], int warp) const {
    using namespace nvcuda::wmma;
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        store_matrix_sync(&sums[i * 16][(warp * kAcross + j) * 16], sums_[i][j], Tile::kSumsPitch,
                          mem_row_major);
      }
    }
  }

 private:
  using T = typename Tile::T;
  static constexpr int kDown = Tile::kTokens / 16, kAcross = Tile::kRows / 16 / kWarps;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums_[kDown][kAcross];
};

// The same for float32: a thread has one row and every kThreads / kRows-th token.
template <typename Tile> class ScalarSums {
 public:
  template <typename Chunk> __device__ void add(const Chunk& chunk, int) {
#pragma unroll
    for (int k = 0; k < Tile::kChunk; ++k) {
      const float weight = chunk[Tile::kTokens + threadIdx.x % Tile::kRows][k];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums_[i] += weight * chunk[threadIdx.x / Tile::kRows + i * kStep][k];
      }
    }
  }
  __device__ void store(float (&sums)[Tile::kTokens][Tile::kSumsPitch], int) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      sums[threadIdx.x / Tile::kRows + i * kStep][threadIdx.x % Tile::kRows] = sums_[i];
    }
  }

 private:
  static constexpr int kStep = kThreads / Tile::kRows, kCount = Tile::kTokens / kStep;
  float sums_[kCount] = {};
};

// 16 bytes each of a chunk, of rows that do not change from chunk to chunk.
template <typename Tile> class Loader {
 public:
  using T = typename Tile::T;

  __device__ Loader(const Product& product, const Unit& unit) : features_(product.features) {
    const T* x = static_cast<const T*>(product.x);
    const T* weight = static_cast<const T*>(product.weight) +
                      static_cast<int64_t>(unit.expert) * product.rows * features_;
#pragma unroll
    for (int i = 0; i < Tile::kTurns; ++i) {
      const int piece = threadIdx.x + i * kThreads, row = piece / 4 - Tile::kTokens;
      sources_[i] = nullptr;
      if (row < 0) {
        const int position = unit.first_position + piece / 4;
        if (piece / 4 >= unit.tokens) continue;
        const int64_t token = product.row_of == nullptr ? position : product.row_of[position];
        sources_[i] = x + token * features_;
      } else if (piece < Tile::kPieces) {
        const int source = weight_row(product, unit, row);
        if (source >= 0) sources_[i] = weight + static_cast<int64_t>(source) * features_;
      }
    }
  }
  __device__ void fetch(int chunk) {
#pragma unroll
    for (int i = 0; i < Tile::kTurns; ++i) {
      const int feature = chunk * Tile::kChunk + threadIdx.x % 4 * Tile::kPiece;
      values_[i] = {};
      if (sources_[i] != nullptr && feature < features_) {
        values_[i] = *reinterpret_cast<const uint4*>(sources_[i] + feature);
      }
    }
  }
  template <typename Chunk> __device__ void put(Chunk& chunk) const {
#pragma unroll
    for (int i = 0; i < Tile::kTurns; ++i) {
      const int piece = threadIdx.x + i * kThreads;
      if (piece < Tile::kPieces) {
        *reinterpret_cast<uint4*>(&chunk[piece / 4][piece % 4 * Tile::kPiece]) = values_[i];
      }
    }
  }

 private:
  // With an activation the first half of a tile's rows are gates, the second their ups.
  __device__ static int weight_row(const Product& product, const Unit& unit, int row) {
    const int out_features = product.out_features();
    if (product.activation == kNone) {
      const int source = unit.row_tile * Tile::kRows + row;
      return source < out_features ? source : -1;
    }
    constexpr int kHalf = Tile::kRows / 2;
    const int source = unit.row_tile * kHalf + row % kHalf;
    return source < out_features ? source + row / kHalf * out_features : -1;
  }

  const int features_;
  const T* sources_[Tile::kTurns];
  uint4 values_[Tile::kTurns];
};

template <typename Tile>
__device__ void store(const Product& product, const Unit& unit,
                      const float (&sums)[Tile::kTokens][Tile::kSumsPitch]) {
  using T = typename Tile::T;
  const bool gated = product.activation != kNone;
  const int width = gated ? Tile::kRows / 2 : Tile::kRows, out_features = product.out_features();
  const T* bias = static_cast<const T*>(product.bias);
  if (bias != nullptr) bias += static_cast<int64_t>(unit.expert) * product.rows;
  for (int i = threadIdx.x; i < unit.tokens * width; i += kThreads) {
    const int token = i / width, column = i % width;
    const int feature = unit.row_tile * width + column;
    if (feature >= out_features) continue;
    float value = sums[token][column] + (bias == nullptr ? 0.f : to_float(bias[feature]));
    if (gated) {
      const float up = sums[token][width + column] +
                       (bias == nullptr ? 0.f : to_float(bias[out_features + feature]));
      value = activate(value, up, product.activation);
    }
    const int64_t position = unit.first_position + token;
    static_cast<T*>(product.out)[position * out_features + feature] = from_float<T>(value);
  }
}

template <typename Tile>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    portable_kernel(const Product product) {
  using Sums = std::conditional_t<std::is_same_v<typename Tile::T, float>, ScalarSums<Tile>,
                                  TensorCoreSums<Tile>>;
  __shared__ Room<Tile> room;
  let_next_start();
  wait_for_previous();
  const int row_tiles = (product.rows + Tile::kRows - 1) / Tile::kRows;
  const int chunks = (product.features + Tile::kChunk - 1) / Tile::kChunk;
  const int units = *product.num_tiles * row_tiles, warp = threadIdx.x / 32;
  for (int i = blockIdx.x; i < units; i += gridDim.x) {
    const Unit unit(product.tiles[i / row_tiles], i, row_tiles, Tile::kTokens);
    Loader<Tile> loader(product, unit);
    Sums sums;
    loader.fetch(0);
    __syncthreads();  // the unit before has been stored
    for (int chunk = 0; chunk < chunks; ++chunk) {
      loader.put(room.chunks[chunk % 2]);
      __syncthreads();
      loader.fetch(chunk + 1);
      sums.add(room.chunks[chunk % 2], warp);
    }
    __syncthreads();
    sums.store(room.sums, warp);
    __syncthreads();
    store<Tile>(product, unit, room.sums);
  }
}

template <typename Tile>
cudaError_t run(const Product& product, int max_tiles, cudaStream_t stream) {
  int device, blocks;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  const int64_t row_tiles = (product.rows + Tile::kRows - 1) / Tile::kRows;
  blocks = static_cast<int>(
      std::min<int64_t>(blocks * kBlocksPerMultiprocessor, row_tiles * max_tiles));
  return launch(portable_kernel<Tile>, dim3(blocks), dim3(kThreads), 0, stream, product);
}

template <typename T>
cudaError_t run_tile(const Product& product, int tile_tokens, int max_tiles, cudaStream_t stream) {
  if (tile_tokens == 16) return run<Tile<T, 16, 64>>(product, max_tiles, stream);
  constexpr int kRows = sizeof(T) == 2 ? 128 : 64;
  return run<Tile<T, 64, kRows>>(product, max_tiles, stream);
}

}  // namespace

cudaError_t run_portable(const Product& product, Dtype dtype, int tile_tokens, int max_tiles,
                         cudaStream_t stream) {
  if (dtype == kFloat32) return run_tile<float>(product, tile_tokens, max_tiles, stream);
  // Hopper has products of its own for these.
#if OCTAVO_ARCH != 90
  if (dtype == kFloat16) return run_tile<__half>(product, tile_tokens, max_tiles, stream);
#if OCTAVO_ARCH >= 80
  if (dtype == kBFloat16) return run_tile<__nv_bfloat16>(product, tile_tokens, max_tiles, stream);
#endif
#endif
  return cudaErrorNotSupported;
}

}  // namespace octavo::moe
