// Grouped products on Hopper's tensor cores.
//
// The tensor cores' M axis is rows of the weight, their N axis the tokens, so that few tokens leave
// little of them idle. Blocks stay, one per multiprocessor, and take every n-th unit. In a block a
// thread streams tiles of the weight through a ring of stages, three warps gather the tokens' rows
// beside them, one or two warpgroups multiply. The ring runs on from unit to unit.
#include "moe.cuh"

#if OCTAVO_ARCH == 90

#include <algorithm>
#include <atomic>

#include "ring.cuh"

namespace octavo::moe {
namespace {

constexpr int kMaxDevices = 64;

// As hopper::pack, which gives other machine code here: not yet timed.
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high) {
  const T pair[2] = {from_float<T>(low), from_float<T>(high)};
  uint32_t bits;
  memcpy(&bits, pair, sizeof(bits));
  return bits;
}

// A warpgroup's rows of the products.
template <typename T, typename Tile, bool kGated> class Multiplier {
 public:
  __device__ Multiplier(const Product& product, const Shared<Tile>& shared, int chunks)
      : product_(product), shared_(shared), chunks_(chunks), warpgroup_(threadIdx.x / 128),
        warp_(threadIdx.x % 128 / 32), lane_(threadIdx.x % 32),
        staging_(shared_address(shared.staging + warpgroup_ * Tile::kStagingBytes)) {}

  __device__ void run() {
    for (Units<Tile> units(product_); units.more();) {
      const Unit unit = units.take();
      // An expert's last tile is half empty on average: less is multiplied where it can be.
      constexpr int kFew = std::min(64, Tile::kTokens);
      if (kFew < Tile::kTokens && unit.tokens > kFew) {
        multiply_unit<Tile::kTokens>();
      } else {
        multiply_unit<kFew>();
      }
#pragma unroll
      for (int block = 0; block < Tile::kBlocks; ++block) store(unit, block);
    }
  }

 private:
  static constexpr int kOutRows = kGated ? 32 : 64;  // that a block of 64 rows makes

  // Sums the products with the first kTokens tokens of the tile.
  template <int kTokens> __device__ void multiply_unit() {
    using Sums = float[kTokens / 2];
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums_[block][i] = 0.f;
    }
    int last_stage = -1;
    for (int chunk = 0; chunk < chunks_; ++chunk, at_.advance()) {
      shared_.full[at_.stage].wait(at_.parity);
      publish_shared_writes();  // gathered rows are ordinary writes
      fence_products();
#pragma unroll
      for (int slice = 0; slice < Tile::kSlices; ++slice) {
        const uint32_t weight = shared_address(shared_.weight(at_.stage)) +
                                (slice * Tile::kRows + warpgroup_ * Tile::kBlocks * 64) * 128;
        const uint64_t b =
            describe(shared_address(shared_.tokens(at_.stage)) + slice * Tile::kTokens * 128);
#pragma unroll
        for (int step = 0; step < kSlice / 16; ++step) {
#pragma unroll
          for (int block = 0; block < Tile::kBlocks; ++block) {
            multiply<T>(reinterpret_cast<Sums&>(sums_[block]),
                        describe(weight + block * 64 * 128) + 2 * step, b + 2 * step, true);
          }
        }
      }
      commit_products();
      wait_products<1>();
      release(last_stage);
      last_stage = at_.stage;
    }
    wait_products<0>();
#pragma unroll
    for (int block = 0; block < Tile::kBlocks; ++block) pin(reinterpret_cast<Sums&>(sums_[block]));
    release(last_stage);
  }

  __device__ void release(int stage) {
    if (stage >= 0 && lane_ == 0) shared_.empty[stage].arrive();
  }

  __device__ float bias(const Unit& unit, int row) const {
    if (product_.bias == nullptr || row >= product_.rows) return 0.f;
    return to_float(static_cast<const T*>(
        product_.bias)[static_cast<int64_t>(unit.expert) * product_.rows + row]);
  }

  // Gates are the rows with h = 0, ups those with h = 1: one thread has both.
  __device__ void store(const Unit& unit, int block) {
    float(&sums)[Tile::kTokens / 2] = sums_[block];
    const int first_row = (unit.row_tile * Tile::kRows / 64 + warpgroup_ * Tile::kBlocks + block) *
                          kOutRows;
    const int out_features = product_.out_features();
    const int row = first_row + warp_ * (kOutRows / 4) + lane_ / 4;
    const float bias_low = bias(unit, row);
    const float bias_high = bias(unit, row + (kGated ? out_features : 8));
    wait_for_threads(1 + warpgroup_, 128);  // what was staged before has been stored
#pragma unroll
    for (int j = 0; j < Tile::kTokens / 8; ++j) {
      if (8 * j >= unit.tokens) break;
      float low[2], high[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        low[c] = sums[4 * j + c] + bias_low;
        high[c] = sums[4 * j + 2 + c] + bias_high;
        if constexpr (kGated) low[c] = activate(low[c], high[c], product_.activation);
      }
      const int token = 8 * j + lane_ % 8;
      if constexpr (kGated) {
        store_transposed(place(token, warp_), pack<T>(low[0], low[1]));
      } else {
        store_transposed(place(token, 2 * warp_), pack<T>(low[0], low[1]));
        store_transposed(place(token, 2 * warp_ + 1), pack<T>(high[0], high[1]));
      }
    }
    wait_for_threads(1 + warpgroup_, 128);
    constexpr int kPieces = kOutRows / 8, kTokensAtOnce = 128 / kPieces;
    const int piece = threadIdx.x % kPieces, feature = first_row + piece * 8;
    if (feature >= out_features) return;
    T* out = static_cast<T*>(product_.out) + feature;
#pragma unroll
    for (int first = 0; first < Tile::kTokens; first += kTokensAtOnce) {
      const int token = first + threadIdx.x % 128 / kPieces;
      if (token < unit.tokens) {
        uint4 values;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w)
                     : "r"(place(token, piece))
                     : "memory");
        *reinterpret_cast<uint4*>(
            out + static_cast<int64_t>(unit.first_position + token) * out_features) = values;
      }
    }
  }

  // Of 8 features of a token in the staging room; pieces of a row change places against conflicts.
  __device__ uint32_t place(int token, int piece) const {
    return staging_ + token * 128 + (piece ^ token % 8) * 16;
  }

  const Product& product_;
  const Shared<Tile>& shared_;
  const int chunks_, warpgroup_, warp_, lane_;
  const uint32_t staging_;
  Cursor<Tile> at_;
  float sums_[Tile::kBlocks][Tile::kTokens / 2];
};

template <typename T, typename Tile, bool kGated>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ Product product) {
  extern __shared__ uint8_t room[];
  __shared__ Barrier full[Tile::kStages], empty[Tile::kStages];
  Shared<Tile> shared;
  shared.ring = room + (1024 - shared_address(room) % 1024) % 1024;
  shared.staging = shared.ring + Tile::kStages * Tile::kStageBytes;
  shared.full = full;
  shared.empty = empty;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      full[i].init(1 + kGatherers);
      empty[i].init(Tile::kConsumers / 32);
    }
    publish_barriers();
    prefetch(weight);
  }
  __syncthreads();

  // The first product, the one with an activation, lets the second start only after its own wait:
  // then the sort has ended, and the second product may read tiles and weights at once. Only the
  // tokens' rows have to be waited for.
  const int warp = threadIdx.x / 32;
  const bool streams = warp == Tile::kConsumers / 32;
  if (kGated || !streams) wait_for_previous();
  let_next_start();
  const int chunks = (product.features + Tile::kChunk - 1) / Tile::kChunk;
  if (warp < Tile::kConsumers / 32) {
    Multiplier<T, Tile, kGated>(product, shared, chunks).run();
  } else if (streams) {
    if (threadIdx.x % 32 == 0) stream_weight<Tile>(weight, product, shared, chunks);
  } else {
    gather_tokens<T, Tile>(product, shared, chunks);
  }
}

// ---- host ------------------------------------------------------------------------------------

// The weights [experts, rows, features], so that a tile's rows are 8 gates and their ups by turns:
// axes feature, row of a group of 8, gate or up (or which of two groups), pair of groups, expert.
template <typename T, typename Tile>
cudaError_t encode_weight(CUtensorMap* map, const Product& product) {
  const cuuint64_t row = cuuint64_t(product.features) * sizeof(T), rows = product.rows;
  const bool gated = product.activation != kNone;
  return encode_map<5>(
      map, kDtypeOf<T>, product.weight,
      {cuuint64_t(product.features), 8, 2, rows / 16, cuuint64_t(product.experts)},
      {row, gated ? rows / 2 * row : 8 * row, gated ? 8 * row : 16 * row, rows * row},
      {kSlice, 8, 2, Tile::kRows / 16, 1}, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

// Also lets the kernel have its shared memory, once per device.
template <typename T, typename Tile, bool kGated> cudaError_t multiprocessors(int* count) {
  static std::atomic<int> counts[kMaxDevices];
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  *count = counts[device].load();
  if (*count != 0) return cudaSuccess;
  error = cudaFuncSetAttribute(product_kernel<T, Tile, kGated>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, Tile::kSharedBytes);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  counts[device] = *count;
  return error;
}

template <typename T, typename Tile, bool kGated>
cudaError_t run_gated(const Product& product, int max_tiles, cudaStream_t stream) {
  int blocks;
  cudaError_t error = multiprocessors<T, Tile, kGated>(&blocks);
  if (error != cudaSuccess) return error;
  CUtensorMap weight;
  error = encode_weight<T, Tile>(&weight, product);
  if (error != cudaSuccess) return error;
  const int64_t row_tiles = (product.rows + Tile::kRows - 1) / Tile::kRows;
  blocks = static_cast<int>(std::min<int64_t>(blocks, row_tiles * max_tiles));
  return launch(product_kernel<T, Tile, kGated>, dim3(blocks), dim3(Tile::kThreads),
                Tile::kSharedBytes, stream, weight, product);
}

template <typename T, typename Tile>
cudaError_t run_tile(const Product& product, int max_tiles, cudaStream_t stream) {
  return product.activation == kNone ? run_gated<T, Tile, false>(product, max_tiles, stream)
                                     : run_gated<T, Tile, true>(product, max_tiles, stream);
}

template <typename T>
cudaError_t run(const Product& product, int tile_tokens, int max_tiles, cudaStream_t stream) {
  switch (tile_tokens) {
    case 8: return run_tile<T, Tile<8, 64, 2, 10>>(product, max_tiles, stream);
    case 16: return run_tile<T, Tile<16, 64, 2, 10>>(product, max_tiles, stream);
    case 32: return run_tile<T, Tile<32, 128, 2, 5>>(product, max_tiles, stream);
    case 64: return run_tile<T, Tile<64, 128, 2, 4>>(product, max_tiles, stream);
    case 128: return run_tile<T, Tile<128, 256, 1, 4>>(product, max_tiles, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t run_hopper(const Product& product, Dtype dtype, int tile_tokens, int max_tiles,
                       cudaStream_t stream) {
  return dtype == kBFloat16 ? run<__nv_bfloat16>(product, tile_tokens, max_tiles, stream)
                            : run<__half>(product, tile_tokens, max_tiles, stream);
}

}  // namespace octavo::moe

#else

namespace octavo::moe {

cudaError_t run_hopper(const Product&, Dtype, int, int, cudaStream_t) {
  return cudaErrorNotSupported;
}

}  // namespace octavo::moe

#endif
