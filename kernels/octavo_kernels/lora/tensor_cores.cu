// The products on tensor cores, for decode steps and for long prompts alike.
//
// Warps bring operands from memory straight into the registers that the tensor cores read: 16 bytes
// a lane, of which both operands give the same places of the inner axis (of a row, for the second
// product: columns) to a lane, so that their order does not matter. Nothing but the first product's
// sums of a block's warps goes through shared memory.
#include <algorithm>
#include <atomic>

#include "lora.cuh"
#include "matrices.cuh"

#if OCTAVO_ARCH >= 80

namespace octavo::lora {
namespace {

// 8 elements, by pairs.
struct alignas(16) Words {
  uint32_t data[4];
};

// What lies there, or zeros.
template <typename T> __device__ __forceinline__ Words load(const T* source, bool there) {
  return there ? *reinterpret_cast<const Words*>(source) : Words{};
}

// The first call waits: what is read before is settled, and nothing has been written.
__device__ __forceinline__ void wait_once(bool& waits) {
  if (waits) wait_for_previous();
  waits = false;
}

// The device's multiprocessors. At first also has them parted as `linear` parts them, beside which
// the kernel is to run.
template <auto kKernel> cudaError_t prepare(int* multiprocessors) {
  constexpr int kMaxDevices = 64;
  static std::atomic<int> known[kMaxDevices];
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  *multiprocessors = known[device].load();
  if (*multiprocessors != 0) return cudaSuccess;
  error = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) known[device] = *multiprocessors;
  return error;
}

// ---- sums = x down^T --------------------------------------------------------------------------

constexpr int kShrinkThreads = 256, kShrinkWarps = kShrinkThreads / 32;
constexpr int kStep = 32;  // inputs that a warp takes at once

// A unit of work: a tile of tokens, so many of its run's rows of `down`, a split of the inner axis.
// Warps have 16 tokens each; those that have the same share the split in turns.
template <int kTokens_, int kRows_, int kUnroll_> struct Shape {
  static constexpr int kTokens = kTokens_, kRows = kRows_;
  static constexpr int kUnroll = kUnroll_;  // steps that a warp has under way
  static constexpr int kTokenWarps = kTokens / 16, kSharers = kShrinkWarps / kTokenWarps;
  static constexpr int kPitch = kRows + 8;  // against bank conflicts
};

template <typename T, typename Shape, int kBlocks>
__global__ void __launch_bounds__(kShrinkThreads, kBlocks) shrink_kernel(const Shrink a) {
  constexpr int kRowTiles = Shape::kRows / 8, kUnroll = Shape::kUnroll;
  __shared__ __align__(16) float shared[Shape::kSharers][Shape::kTokens][Shape::kPitch];
  let_next_start();
  bool waits = true;
  if (!a.settled) wait_once(waits);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  const int token_warp = warp % Shape::kTokenWarps, sharer = warp / Shape::kTokenWarps;
  const int num_tiles = *a.groups.num_tiles;
  const int row_groups = (*a.groups.largest_rank * a.parts + Shape::kRows - 1) / Shape::kRows;
  // Whole steps, so that a split's pieces of 8 inputs are all its own.
  const int steps = (a.features + kStep - 1) / kStep;
  const int split_inputs = (steps + a.splits - 1) / a.splits * kStep;
  const int units = num_tiles * a.splits * row_groups;
  // Row groups last: where ranks differ, blocks shall still have equal shares.
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int split = unit % a.splits, tile_index = unit / a.splits % num_tiles;
    const TokenTile tile = a.groups.tiles[tile_index];
    const int first_row = unit / a.splits / num_tiles * Shape::kRows;
    const int rows = min(Shape::kRows, tile.rank * a.parts - first_row);
    if (rows <= 0) continue;

    const int begin = split * split_inputs, end = min(a.features, begin + split_inputs);
    const int upper = token_warp * 16 + g, lower = upper + 8;
    const int* token_of = a.groups.token_of + tile.begin;
    const T* x = static_cast<const T*>(a.x);
    const bool has_upper = upper < tile.tokens, has_lower = lower < tile.tokens;
    const T* x_upper = x + (has_upper ? token_of[upper] * a.x_stride : 0);
    const T* x_lower = x + (has_lower ? token_of[lower] * a.x_stride : 0);
    const T* down = static_cast<const T*>(a.down) +
                    (int64_t(tile.first) * a.parts + first_row + g) * a.features;
    float sums[kRowTiles][4] = {};
    for (int base = begin + sharer * kStep; base < end;
         base += Shape::kSharers * kUnroll * kStep) {
      Words above[kUnroll], below[kUnroll], weight[kUnroll][kRowTiles];
      const auto input_of = [&](int i) { return base + i * Shape::kSharers * kStep + c * 8; };
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          weight[i][j] = load(down + int64_t(j) * 8 * a.features + input_of(i),
                              input_of(i) < end && j * 8 + g < rows);
        }
      }
      wait_once(waits);
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        above[i] = load(x_upper + input_of(i), input_of(i) < end && has_upper);
        below[i] = load(x_lower + input_of(i), input_of(i) < end && has_lower);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
#pragma unroll
        for (int j = 0; j < kRowTiles; ++j) {
          if (j * 8 >= rows) break;
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            multiply_matrices<T>(sums[j], above[i].data[k], below[i].data[k], above[i].data[k + 1],
                        below[i].data[k + 1], weight[i][j].data[k], weight[i][j].data[k + 1]);
          }
        }
      }
    }

    wait_once(waits);  // a warp that had none of the inputs
    __syncthreads();   // the unit before has been read
#pragma unroll
    for (int j = 0; j < kRowTiles; ++j) {
      float2* target = reinterpret_cast<float2*>(&shared[sharer][upper][j * 8 + c * 2]);
      target[0] = make_float2(sums[j][0], sums[j][1]);
      target[8 * Shape::kPitch / 2] = make_float2(sums[j][2], sums[j][3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tile.tokens * Shape::kRows; i += kShrinkThreads) {
      const int token = i / Shape::kRows, row = i % Shape::kRows;
      if (row >= rows) continue;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < Shape::kSharers; ++j) sum += shared[j][token][row];
      const int n = first_row + row;
      a.sum(split, token_of[token], n % a.parts)[n / a.parts] = sum;
    }
  }
  wait_once(waits);
}

template <typename T, typename Shape, int kBlocks>
cudaError_t run_shrink(const Shrink& a, cudaStream_t stream) {
  constexpr auto kKernel = shrink_kernel<T, Shape, kBlocks>;
  int multiprocessors;
  const cudaError_t error = prepare<kKernel>(&multiprocessors);
  if (error != cudaSuccess) return error;
  const int64_t row_groups = (a.max_rank * a.parts + Shape::kRows - 1) / Shape::kRows;
  const int64_t units = a.max_tiles * row_groups * a.splits;
  const int blocks = static_cast<int>(std::min<int64_t>(units, multiprocessors * kBlocks));
  return launch(kKernel, dim3(blocks), dim3(kShrinkThreads), 0, stream, a);
}

template <typename T> cudaError_t run(const Shrink& a, int tile_tokens, cudaStream_t stream) {
  return tile_tokens == 16 ? run_shrink<T, Shape<16, 16, 2>, 3>(a, stream)
                           : run_shrink<T, Shape<64, 64, 1>, 2>(a, stream);
}

// ---- out += sums up ---------------------------------------------------------------------------

constexpr int kExpandThreads = 128, kExpandWarps = kExpandThreads / 32;
constexpr int kExpandBlocks = 4;                 // of a multiprocessor
constexpr int kStrip = 64;                       // columns of a warp
constexpr int kColumns = kStrip * kExpandWarps;  // and of a block, all of one part
constexpr int kRanks = 64, kPairs = kRanks / 2;  // of which sums are in shared memory at once
constexpr int kPairsPitch = kPairs + 4;          // against bank conflicts

// Two neighbouring sums, added up over the splits.
__device__ __forceinline__ float2 sum_of_splits(const float* sums, int splits, int64_t stride) {
  float2 total = make_float2(0.f, 0.f);
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const float2 pair = *reinterpret_cast<const float2*>(sums + split * stride);
    total.x += pair.x, total.y += pair.y;
  }
  return total;
}

// Block (columns of a part, tiles in turn); a warp takes a strip of the columns.
template <typename T>
__global__ void __launch_bounds__(kExpandThreads, kExpandBlocks) expand_kernel(const Expand a) {
  __shared__ uint32_t low[16][kPairsPitch];  // 16 tokens' sums as elements
  let_next_start();
  bool waits = true;
  if (!a.settled) wait_once(waits);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  int part = 0, begin = 0, block = blockIdx.x;
  while (true) {
    const int blocks = (a.part_ends[part] - begin + kColumns - 1) / kColumns;
    if (block < blocks) break;
    block -= blocks;
    begin = a.part_ends[part++];
  }
  const int first_column = begin + block * kColumns + warp * kStrip;
  const int end_column = a.part_ends[part], columns = a.columns();
  // Of products' columns 2c and 2c + 1 this lane gets the sums: 16 columns of the output.
  const int my_column = first_column + c * 16;
  const int64_t split_stride = a.split_stride();
  const int num_tiles = *a.groups.num_tiles;
  for (int tile_index = blockIdx.y; tile_index < num_tiles; tile_index += gridDim.y) {
    const TokenTile tile = a.groups.tiles[tile_index];
    // Ranks r + 2c, r + 2c + 1, r + 2c + 8 and r + 2c + 9 of 8 columns.
    const auto load_up = [&](int r, Words (&rows)[4]) {
      const int column = first_column + g * 8;
      const T* up = static_cast<const T*>(a.up) + int64_t(tile.first) * columns + column;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rank = r + c * 2 + i / 2 * 8 + i % 2;
        rows[i] = load(up + int64_t(rank) * columns, rank < tile.rank && column < end_column);
      }
    };
    for (int base = 0; base < tile.tokens; base += 16) {
      const int* token_of = a.groups.token_of + tile.begin + base;
      const int tokens = min(16, tile.tokens - base);
      Words rows[4];
      load_up(0, rows);
      wait_once(waits);
      int my_tokens[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) my_tokens[i] = g + i * 8 < tokens ? token_of[g + i * 8] : -1;
      const auto target = [&](int i) {
        const int token = my_tokens[i / 2], column = my_column + i % 2 * 8;
        T* row = static_cast<T*>(a.out) + token * a.out_stride;
        const bool there = token >= 0 && column < end_column;
        return there ? reinterpret_cast<Vec<T>*>(row + column) : nullptr;
      };
      Vec<T> values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (target(i) != nullptr) values[i] = *target(i);
      }
      float sums[8][4] = {};
      for (int first_rank = 0; first_rank < tile.rank; first_rank += kRanks) {
        const int ranks = min(kRanks, tile.rank - first_rank);
        if (first_rank > 0) load_up(first_rank, rows);
        __syncthreads();  // what was there has been read
        // Up to a multiple of 16 ranks; zeros past the tile's rank and tokens.
        const int pairs = (ranks + 15) / 16 * 8;
        for (int i = threadIdx.x; i < 16 * pairs; i += kExpandThreads) {
          const int token = i / pairs, rank = i % pairs * 2;
          float2 sum = make_float2(0.f, 0.f);
          if (token < tokens && rank < ranks) {
            sum = sum_of_splits(a.sum(token_of[token], part) + first_rank + rank, a.splits,
                                split_stride);
            if (rank + 1 >= ranks) sum.y = 0.f;
          }
          low[token][rank / 2] = pack<T>(sum.x, sum.y);
        }
        __syncthreads();
        for (int r = 0; r < ranks; r += 16) {
          const uint32_t* upper = &low[g][r / 2 + c];
          const uint32_t* lower = &low[g + 8][r / 2 + c];
          // The j-th product has column j of each lane's 8.
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const unsigned halves = j % 2 == 0 ? 0x5410 : 0x7632;
            multiply_matrices<T>(sums[j], upper[0], lower[0], upper[4], lower[4],
                        __byte_perm(rows[0].data[j / 2], rows[1].data[j / 2], halves),
                        __byte_perm(rows[2].data[j / 2], rows[3].data[j / 2], halves));
          }
          if (r + 16 < ranks) load_up(first_rank + r + 16, rows);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (target(i) == nullptr) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          values[i].data[j] = from_float<T>(to_float(values[i].data[j]) + sums[j][i]);
        }
        *target(i) = values[i];
      }
    }
  }
  wait_once(waits);
}

template <typename T> cudaError_t run(const Expand& a, cudaStream_t stream) {
  constexpr auto kKernel = expand_kernel<T>;
  int multiprocessors;
  const cudaError_t error = prepare<kKernel>(&multiprocessors);
  if (error != cudaSuccess) return error;
  int across = 0;
  for (int part = 0, begin = 0; part < a.parts; begin = a.part_ends[part++]) {
    across += (a.part_ends[part] - begin + kColumns - 1) / kColumns;
  }
  const int down = std::min(a.max_tiles, multiprocessors * kExpandBlocks * 2 / across + 1);
  return launch(kKernel, dim3(across, down), dim3(kExpandThreads), 0, stream, a);
}

}  // namespace

cudaError_t shrink_on_tensor_cores(const Shrink& a, Dtype dtype, int tile_tokens,
                                   cudaStream_t stream) {
  return dtype == kBFloat16 ? run<__nv_bfloat16>(a, tile_tokens, stream)
                            : run<__half>(a, tile_tokens, stream);
}

cudaError_t expand_on_tensor_cores(const Expand& a, Dtype dtype, cudaStream_t stream) {
  return dtype == kBFloat16 ? run<__nv_bfloat16>(a, stream) : run<__half>(a, stream);
}

}  // namespace octavo::lora

#else

namespace octavo::lora {

cudaError_t shrink_on_tensor_cores(const Shrink&, Dtype, int, cudaStream_t) {
  return cudaErrorNotSupported;
}

cudaError_t expand_on_tensor_cores(const Expand&, Dtype, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace octavo::lora

#endif
