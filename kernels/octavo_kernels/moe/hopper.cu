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

#include "hopper.cuh"

namespace octavo::moe {
namespace {

using namespace octavo::hopper;

constexpr int kSlice = 64;  // features in a row of 128 bytes, the widest swizzle
constexpr int kGatherers = 96, kProducers = kGatherers + 32;
constexpr int kMaxDevices = 64;

template <int kTokens_, int kRows_, int kSlices_, int kStages_> struct Tile {
  static constexpr int kTokens = kTokens_, kRows = kRows_, kSlices = kSlices_, kStages = kStages_;
  static constexpr int kChunk = kSlices * kSlice;  // features of a stage
  static constexpr int kWarpgroups = kRows > 64 ? 2 : 1;
  static constexpr int kBlocks = kRows / 64 / kWarpgroups;  // of 64 rows, in a warpgroup
  static constexpr int kConsumers = 128 * kWarpgroups, kThreads = kConsumers + kProducers;
  static constexpr int kWeightBytes = kRows * kChunk * 2, kTokenBytes = kTokens * kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  static constexpr int kStagingBytes = kTokens * 128;  // of a warpgroup: 64 rows of the result
  static constexpr int kSharedBytes =
      1024 + kStages * kStageBytes + kWarpgroups * kStagingBytes;
  static_assert(kSharedBytes <= 226 * 1024);
};

// Where in the ring a role is.
template <typename Tile> struct Cursor {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Tile::kStages) stage = 0, parity ^= 1;
  }
};

template <typename Tile> struct Shared {
  uint8_t* ring;
  uint8_t* staging;
  Barrier *full, *empty;

  __device__ uint8_t* weight(int stage) const { return ring + stage * Tile::kStageBytes; }
  __device__ uint8_t* tokens(int stage) const { return weight(stage) + Tile::kWeightBytes; }
};

// The units of a block in turn; a unit's tile is fetched while the one before is worked on.
template <typename Tile> class Units {
 public:
  __device__ explicit Units(const Product& product)
      : tiles_(product.tiles), row_tiles_((product.rows + Tile::kRows - 1) / Tile::kRows),
        end_(*product.num_tiles * row_tiles_), next_(blockIdx.x) {
    fetch();
  }
  __device__ bool more() const { return next_ < end_; }
  __device__ Unit take() {
    const Unit unit(tile_, next_, row_tiles_, Tile::kTokens);
    next_ += gridDim.x;
    fetch();
    return unit;
  }

 private:
  __device__ void fetch() {
    if (more()) tile_ = tiles_[next_ / row_tiles_];
  }

  const TokenTile* tiles_;
  int row_tiles_, end_, next_;
  TokenTile tile_;
};

// One thread.
template <typename Tile>
__device__ void stream_weight(const CUtensorMap& map, const Product& product,
                              const Shared<Tile>& shared, int chunks) {
  // Weights that come once must not drive the tokens' rows out of the L2.
  constexpr uint64_t kPolicy = Tile::kTokens < 128 ? kEvictFirst : kEvictNormal;
  Cursor<Tile> at;
  for (Units<Tile> units(product); units.more();) {
    const Unit unit = units.take();
    for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
      Barrier& full = shared.full[at.stage];
      shared.empty[at.stage].wait(at.parity ^ 1);
      full.arrive_and_expect(Tile::kWeightBytes);
#pragma unroll
      for (int slice = 0; slice < Tile::kSlices; ++slice) {
        copy_tile<5, kPolicy>(shared_address(shared.weight(at.stage) + slice * Tile::kRows * 128),
                              map, full, chunk * Tile::kChunk + slice * kSlice, 0, 0,
                              unit.row_tile * Tile::kRows / 16, unit.expert);
      }
    }
  }
}

// kGatherers threads. Rows past a tile's last token keep what they hold: a row of B makes only its
// own column of the result, which nobody stores.
template <typename T, typename Tile>
__device__ void gather_tokens(const Product& product, const Shared<Tile>& shared, int chunks) {
  constexpr int kRowsAtOnce = kGatherers / 8;
  constexpr int kTurns = (Tile::kTokens + kRowsAtOnce - 1) / kRowsAtOnce;
  const int thread = threadIdx.x - Tile::kConsumers - 32;
  const int piece = thread % 8, first_row = thread / 8;
  const T* x = static_cast<const T*>(product.x) + piece * 8;
  Cursor<Tile> at;
  for (Units<Tile> units(product); units.more();) {
    const Unit unit = units.take();
    const T* rows[kTurns];
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int row = first_row + i * kRowsAtOnce, position = unit.first_position + row;
      rows[i] = nullptr;
      if (row < unit.tokens) {
        const int64_t source = product.row_of == nullptr ? position : product.row_of[position];
        rows[i] = x + source * product.features;
      }
    }
    for (int chunk = 0; chunk < chunks; ++chunk, at.advance()) {
      shared.empty[at.stage].wait(at.parity ^ 1);
      const uint32_t target = shared_address(shared.tokens(at.stage));
#pragma unroll
      for (int slice = 0; slice < Tile::kSlices; ++slice) {
        const int feature = chunk * Tile::kChunk + slice * kSlice;
#pragma unroll
        for (int i = 0; i < kTurns; ++i) {
          const int row = first_row + i * kRowsAtOnce;
          const uint32_t place = (slice * Tile::kTokens + row) * 128 + (piece ^ row % 8) * 16;
          const bool inside = feature + piece * 8 < product.features;
          if (rows[i] != nullptr) {
            copy_async(target + place, inside ? rows[i] + feature : rows[i], inside);
          }
        }
      }
      shared.full[at.stage].arrive_after_copies();
    }
  }
}

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
