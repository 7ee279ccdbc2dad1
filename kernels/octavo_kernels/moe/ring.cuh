// The ring of stages in shared memory through which a block's products are fed, and who fills it.
#pragma once

#include "hopper.cuh"
#include "moe.cuh"

namespace octavo::moe {

using namespace octavo::hopper;

constexpr int kSlice = 64;  // features in a row of 128 bytes, the widest swizzle
constexpr int kGatherers = 96, kProducers = kGatherers + 32;

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

}  // namespace octavo::moe
