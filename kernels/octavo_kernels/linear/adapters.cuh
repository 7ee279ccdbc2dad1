// LoRA adapters of a product's tokens: out += (x down^T) up, each token's own.
//
// As in ../lora: a run is an adapter's rank rows in the pool, (first row, rank); `down` has a row
// for each rank and part, rank outermost; part q of the output has the columns up to part_ends[q].
// Sums between the two products are [splits of the inner axis, tokens, parts, max_rank].
#pragma once

#include "ring.cuh"

namespace octavo::linear {

constexpr int kMaxParts = 8;   // as in ../lora
constexpr int kTileParts = 3;  // that a tile's columns lie in: a part has at least 64
constexpr int kRankStep = 16;

// Of a block, beyond kThreads. With more, registers would not do for an attention kernel's block
// beside this one on a multiprocessor.
constexpr int kAdapterWarps = 3, kAdapterThreads = 32 * kAdapterWarps;

struct Adapters {
  const void *x, *down;
  const int *first_of, *rank_of;  // by token
  float* sums;
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
  __device__ float* sums_of(int row, int part) const {
    return sums + (int64_t(row) * parts + part) * max_rank;
  }
};

// The parts that a tile's columns lie in: so many, side by side.
struct TileParts {
  int first, count;

  __device__ TileParts(const Adapters& adapters, const Problem& problem, int column, int rows) {
    if (is_gated(problem.epilogue)) {
      first = 0, count = adapters.parts;  // gates', and ups'
    } else {
      first = adapters.part_of(column);
      count = adapters.part_of(column + rows - 1) - first + 1;
    }
  }
};

// The run of some of the step's tokens.
struct alignas(16) Run {
  int first, rank;
  uint64_t tokens;  // a bit each

  __device__ bool has(int token) const { return tokens >> token & 1; }
  // Of the 16 ranks of a step, so many or more.
  __device__ int ranks_at(int step) const { return rank - step * kRankStep; }
  __device__ bool has_any(int eight) const { return (tokens >> 8 * eight & 0xff) != 0; }
};

// A block's shared memory beside the ring.
template <typename Tile> struct Desk {
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kListed = kTokens < 32 ? 32 : kTokens;

  union {
    float4 partial[kAdapterWarps][kTokens / 8][32];  // of `down`'s products, what each warp has
    // The sums as elements, those of 16 ranks of all tokens at once: for this and the next step.
    uint32_t low[2][kTileParts][kTokens][kRankStep / 2];
  };
  Run runs[kTokens];  // those past `num_runs` have no rank
  int first_of[kListed], rank_of[kListed];  // -1 and 0 where there is no adapter
  int num_runs, rank_steps;
  Barrier listed, filled[2], emptied[2];

  // By one thread, before `publish_barriers`.
  __device__ void init() {
    listed.init(1);
    for (int i = 0; i < 2; ++i) {
      filled[i].init(kAdapterThreads);
      emptied[i].init(kConsumers / 32);
    }
  }

  // Lists the step's runs, in the order of their first tokens. Called by one warp.
  __device__ void list(const Adapters& a, int tokens) {
    const int lane = threadIdx.x % 32;
    for (int token = lane; token < kListed; token += 32) {
      int first = -1, rank = 0;
      if (token < tokens) first = a.first_of[token], rank = a.rank_of[token];
      // The host has checked runs; a wrong one must not reach memory.
      const bool there =
          first >= 0 && 0 < rank && rank <= a.max_rank && first <= a.pool_rows - rank;
      first_of[token] = there ? first : -1;
      rank_of[token] = there ? rank : 0;
    }
    __syncwarp();
    int count = 0, largest = 0;
    for (int token = lane; token < kListed; token += 32) {
      const int first = first_of[token], rank = rank_of[token];
      uint64_t mates = 0;
#pragma unroll 16
      for (int other = 0; other < kListed; ++other) {
        mates |= uint64_t(first_of[other] == first) << other;
      }
      const bool leads = first >= 0 && __ffsll(mates) == token + 1;
      const unsigned leaders = __ballot_sync(~0u, leads);
      if (leads) runs[count + __popc(leaders & ((1u << lane) - 1))] = {first, rank, mates};
      count += __popc(leaders);
      largest = max(largest, __reduce_max_sync(~0u, rank));
    }
    for (int i = count + lane; i < kTokens; i += 32) runs[i] = {};
    if (lane == 0) num_runs = count, rank_steps = (largest + kRankStep - 1) / kRankStep;
  }
};

}  // namespace octavo::linear
