// LoRA adapters of a product's tokens: out += (x down^T) up, each token's own.
//
// As in ../lora: a run is an adapter's rank rows in the pool, (first row, rank); `down` has a row
// for each rank and part, rank outermost; part q of the output has the columns up to part_ends[q].
// Sums between the two products are [splits of the inner axis, tokens, parts, max_rank].
#pragma once

#include "exchange.cuh"

namespace octavo::linear {

constexpr int kMaxParts = 8;   // as in ../lora
constexpr int kTileParts = 2;  // that a tile's columns lie in: a part has at least 64
constexpr int kRankStep = 16;

constexpr int kMaxSplits = 16;   // of the inner axis
constexpr int kSlotInputs = 256;

// Of a block, beyond kThreads. Where sums take many registers, fewer.
template <typename Tile> constexpr int kAdapterWarps = Tile::kTokens <= 32 ? 8 : 4;
template <typename Tile> constexpr int kAdapterThreads = 32 * kAdapterWarps<Tile>;

// 8 elements, by pairs.
struct alignas(16) Words {
  uint32_t data[4];
};

// a / b, for what is below 2^20: a tenth of the instructions of a division of any integers.
__device__ __forceinline__ int divided(int a, int b) {
  return static_cast<int>(__fdividef(a + 0.5f, b));
}

struct Adapters {
  const void *x, *down, *up;
  const int *first_of, *rank_of;  // by token
  uint32_t* sums;  // as complements (see exchange.cuh), zeros at first
  uint4* stale;    // the launch before had its sums there, so many fours; shall be zeros again
  int stale_quads;
  int64_t x_stride;  // in elements
  int features, parts, max_rank, pool_rows, splits;
  int part_ends[kMaxParts];
  int settled;  // all but x and sums may be read before the kernel in front has ended

  __device__ int part_of(int column) const {
    int part = 0;
    while (part + 1 < parts && column >= part_ends[part]) ++part;
    return part;
  }

  // Of some split; the next one's are `tokens * parts * max_rank` further.
  __device__ uint32_t* sums_of(int row, int part) const {
    return sums + (int64_t(row) * parts + part) * max_rank;
  }
};

// The parts that a tile's columns lie in: so many, side by side.
struct TileParts {
  int first, count;

  TileParts() = default;
  __device__ TileParts(const Adapters& adapters, const Problem& problem, int column, int rows) {
    if (is_gated(problem.epilogue)) {
      first = 0, count = adapters.parts;  // gates', and ups'
    } else {
      first = adapters.part_of(column);
      count = adapters.part_of(column + rows - 1) - first + 1;
    }
  }

  __device__ bool operator==(const TileParts& other) const {
    return first == other.first && count == other.count;
  }
};

// The run of some of the step's tokens.
struct alignas(16) Run {
  uint64_t tokens;  // a bit each
  uint64_t few;     // the tokens, a byte each, if they are up to 8
  int first, rank;

  __device__ bool has_few() const { return __popcll(tokens) <= 8; }
  // One of eight, or -1: of few, or else those of a window of eight.
  __device__ int token(int window, int index) const {
    if (has_few()) return static_cast<int8_t>(few >> 8 * index);
    const int token = 8 * window + index;
    return tokens >> token & 1 ? token : -1;
  }
  // Of the 16 ranks of a step, so many or more.
  __device__ int ranks_at(int step) const { return rank - step * kRankStep; }
};

template <typename Tile> constexpr int kHalves = (Tile::kTokens + 31) / 32;  // of tokens, by 32

constexpr int kTeamBits = 2;  // of the number of helpers that may share a unit
// Numbers of barriers: of all helpers, of teams, of those that have the same columns.
constexpr int kMeeting = 1, kTeams = 2, kColumns = 4;

constexpr int kHelperColumns = 16;
constexpr int kColumnWarps = 4;  // helpers that have a tile's columns; others have other runs
template <typename Tile> constexpr int kRunSplits = kAdapterWarps<Tile> / kColumnWarps;
constexpr int kBatch = 4, kBatches = 4;  // runs whose pieces of `up` come together; on their way
template <typename Tile> constexpr int kBatchRuns = kBatch * kRunSplits<Tile>;

// A helper's own shared memory.
union Slot {
  Words rows[kRankStep][kSlotInputs / 8];        // of `down`, at first
  Words pieces[kBatches][kBatch][2][kRankStep];  // of `up`: a run's ranks, 8 columns each
};

// A block's shared memory beside the ring.
template <typename Tile> struct Desk {
  static constexpr int kTokens = Tile::kTokens, kEights = kTokens / 8;

  Slot slots[kAdapterWarps<Tile>];
  union {
    float2 shares[2][kAdapterWarps<Tile>][2][32];  // of teams' sums: of this and the last unit
    float2 added[kColumnWarps][kEights][2][32];    // to a tile, by eights of tokens and of columns
  };
  // The sums as elements, those of 16 ranks of all tokens at once: for this and the next step.
  uint32_t low[2][kTileParts][kTokens][kRankStep / 2];
  Run runs[kTokens + kBatchRuns<Tile>];  // a batch may go past the last
  // Of tokens; 0 and -1 where there is no adapter.
  int rank_of[kHalves<Tile> * 32], run_of[kHalves<Tile> * 32];
  int num_runs, rank_steps;
  int team_bits;  // kTeamBits, or none: each helper has units of its own
  int splits;     // of sums, which leave a team as one
  bool any_many;  // among the runs: with more than eight tokens
  Barrier listed, finished, taken;

  // Whether the sums of a tile are those of the one before.
  __device__ bool keeps_sums(const TileParts& before, const TileParts& parts) const {
    return rank_steps == 1 && before == parts;
  }

  // By one thread, before `publish_barriers`.
  __device__ void init() {
    listed.init(kAdapterWarps<Tile>);
    finished.init(kColumnWarps);
    taken.init(kConsumers / 32);
  }
};

// Finds a step's runs. Called by one warp, whose lanes have a token each, or two.
template <typename Tile> class Listing {
 public:
  __device__ void fetch(const Adapters& a, int tokens) {
#pragma unroll
    for (int half = 0; half < kHalves<Tile>; ++half) {
      const int token = half * 32 + threadIdx.x % 32;
      first_[half] = token < tokens ? a.first_of[token] : -1;
      rank_[half] = token < tokens ? a.rank_of[token] : 0;
    }
  }

  // In the order of their first tokens.
  __device__ void list(const Adapters& a, Desk<Tile>& desk) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < kHalves<Tile>; ++half) {
      // The host has checked runs; a wrong one must not reach memory.
      const bool there = first_[half] >= 0 && 0 < rank_[half] && rank_[half] <= a.max_rank &&
                         first_[half] <= a.pool_rows - rank_[half];
      if (!there) first_[half] = -1, rank_[half] = 0;
      desk.rank_of[half * 32 + lane] = rank_[half];
    }
    int largest = 0;
    uint64_t leaders = 0;
    bool any_many = false;
#pragma unroll
    for (int half = 0; half < kHalves<Tile>; ++half) {
      const int first = first_[half], rank = rank_[half];
      uint64_t mates = __match_any_sync(~0u, first);
      if constexpr (kHalves<Tile> == 2) {
        mates = mates << 32 * half | mates_across(half) << 32 * !half;
      }
      const int leader = __ffsll(mates) - 1;
      const bool leads = first >= 0 && leader == half * 32 + lane;
      leaders |= uint64_t(__ballot_sync(~0u, leads)) << 32 * half;
      const int index = __popcll(leaders & ((uint64_t(1) << leader) - 1));
      if (leads) desk.runs[index] = {mates, few_of(mates), first, rank};
      desk.run_of[half * 32 + lane] = first >= 0 ? index : -1;
      any_many = any_many || __any_sync(~0u, leads && __popcll(mates) > 8);
      largest = max(largest, __reduce_max_sync(~0u, rank));
    }
    if (lane == 0) {
      const int count = __popcll(leaders), rank_steps = (largest + kRankStep - 1) / kRankStep;
      desk.num_runs = count, desk.any_many = any_many, desk.rank_steps = rank_steps;
      // Where helpers have more than one unit each, units are longer; where there are units for
      // most blocks even so, teams share them: to have fewer sums.
      const int units = count * rank_steps * a.parts, blocks = gridDim.x;
      int splits = a.splits;
      if (units * splits > kAdapterWarps<Tile> * blocks) splits = (splits + 1) / 2;
      const bool shared = splits % (1 << kTeamBits) == 0 && units * splits >= 2 * blocks;
      desk.team_bits = shared ? kTeamBits : 0;
      desk.splits = splits >> desk.team_bits;
    }
  }

 private:
  // Who of the other half has the run that this lane's token of a half has.
  __device__ uint64_t mates_across(int half) const {
    uint32_t mates = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int other = __shfl_sync(~0u, first_[kHalves<Tile> - 1 - half], lane);
      mates |= uint32_t(other == first_[half]) << lane;
    }
    return mates;
  }

  __device__ static uint64_t few_of(uint64_t tokens) {
    uint64_t few = ~uint64_t(0);
#pragma unroll 1
    for (int i = 0; i < 8 && tokens != 0; ++i, tokens &= tokens - 1) {
      const uint64_t token = __ffsll(tokens) - 1;
      few ^= (token ^ 0xff) << 8 * i;
    }
    return few;
  }

  int first_[kHalves<Tile>], rank_[kHalves<Tile>];
};

}  // namespace octavo::linear
