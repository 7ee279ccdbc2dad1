// How the work of a launch is shared out, computed from the lengths on the device.
//
// A head's tiles of cached tokens of one row are a segment. Where there are no more segments than
// blocks, each has a team: a cluster of blocks, whose warps take its tiles in turn and which merges
// what they found through shared memory. One row of 1024 tokens (Llama-8B's shape) takes 4.6 us so,
// and took 15.5 us in a line, merged through global memory by those who had two segments' parts.
//
// Else, or where lengths differ so much that most teams would wait for one, segments stand in a
// line, by row and head, and each warp takes an equal stretch of it. A unit of the line is a tile.
// A segment may be cut anywhere; the warp that has its first part merges what the others found. Its
// part is its last work, theirs their first, so it seldom waits.
#pragma once

#include "octavo.cuh"

namespace octavo::decode {

constexpr unsigned kAllLanes = 0xffffffffu;

// As _geometry in __init__.py makes it.
struct Geometry {
  long long q_stride, out_stride;  // elements from row to row
  long long block_stride;          // bytes
  long long table_stride;          // entries
  long long k_stride, v_stride, cos_stride, sin_stride;
  int dtype, cache_dtype, sinks_are_float;
  int rows, kv_heads, group, head_dim;
  int block_shift;  // a block has 1 << block_shift tokens
  int window;       // INT_MAX for none
  int blocks;       // of threads
  int team;         // blocks of a segment's, a power of two; 0 for none
};

struct Arguments {
  Geometry at;
  const void* q;
  const uint8_t* pages;
  const int *table, *table_rows, *context_lens;
  const void* sinks;  // null for none
  void* out;
  float* partials;  // of each warp; all ones before and after a launch
  // The rows' new tokens; k and v null where they are in the cache already, and all others then;
  // norms null for none, angles for none.
  const void *k, *v, *cos, *sin, *q_norm, *k_norm;
  const long long* slots;
  float scale, softcap;  // softcap 0 for none; k_scale is part of scale
  float k_scale, v_scale, eps;
};

// In the line a segment ends with so many units without tiles: for its queries and outputs, and
// because copies run ahead no further than the next segment. 64 rows of one token beside 64 of 512
// (Llama-8B's shape) took 77 us without, 48 us with, the long ones alone 41 us.
constexpr int kIdleUnits = 1;

// The tiles of a row that its query sees; none where the context is 0.
struct RowTiles {
  int context, first, end;

  template <int kTileTokens>
  __device__ __forceinline__ static RowTiles of(const Arguments& arguments, int row) {
    const int context = arguments.context_lens[row];
    const unsigned unseen = max(context - arguments.at.window, 0), end = context + kTileTokens - 1;
    return {context, static_cast<int>(unseen / kTileTokens), static_cast<int>(end / kTileTokens)};
  }
  __device__ __forceinline__ int count() const { return end - first; }
  // In the line, of one head.
  __device__ __forceinline__ int units() const { return count() > 0 ? count() + kIdleUnits : 0; }
};

// What belongs together; its tiles are the units from ``begin`` on.
template <int kTileTokens> struct Segment {
  RowTiles tiles;
  int row, head, begin;

  __device__ __forceinline__ int end() const { return begin + tiles.count(); }

  // To the next of the line.
  __device__ __forceinline__ void advance(const Arguments& arguments) {
    begin += tiles.units();
    if (++head < arguments.at.kv_heads) return;
    head = 0;
    while (++row < arguments.at.rows) {
      tiles = RowTiles::of<kTileTokens>(arguments, row);
      if (tiles.count() > 0) break;
    }
  }
};

// Brings what is read soon into the L1.
__device__ __forceinline__ void touch(const void* word) {
  asm volatile("{\n.reg .s32 ignored;\nld.global.ca.s32 ignored, [%0];\n}" ::"l"(word));
}

__device__ __forceinline__ int inclusive_sum(int x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) x += below;
  }
  return x;
}

// The lengths' sum and maximum. Every block finds them: 0.3 us for 1024 rows, and no other kernel
// has to run for it.
template <int kTileTokens, int kWarps> class Line {
 public:
  static constexpr int kThreads = kWarps * 32;
  struct Shared {
    int sums[kThreads], longest[kWarps];
  };

  __device__ __forceinline__ Line(const Arguments& arguments, Shared& shared)
      : arguments_(arguments), sums_(shared.sums) {
    const int rows = arguments.at.rows, thread = threadIdx.x;
    int own = 0, longest = 0;
    rows_each_ = (rows + kThreads - 1) / kThreads;
#pragma unroll 1
    for (int row = thread * rows_each_; row < min((thread + 1) * rows_each_, rows); ++row) {
      const RowTiles tiles = tiles_of(row);
      own += tiles.units();
      longest = max(longest, tiles.count());
      touch(arguments.table_rows + row);
    }
    sums_[thread] = inclusive_sum(own);
    longest = __reduce_max_sync(kAllLanes, longest);
    if (thread % 32 == 0) shared.longest[thread / 32] = longest;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      before_[warp] = warp == 0 ? 0 : before_[warp - 1] + sums_[warp * 32 - 1];
      longest = max(longest, shared.longest[warp]);
    }
    total_ = (before_[kWarps - 1] + sums_[kThreads - 1]) * arguments.at.kv_heads;
    const int blocks = arguments.at.blocks, team = arguments.at.team;
    share_ = (total_ + blocks * kWarps - 1) / (blocks * kWarps);
    if (team == 0) return;
    const int team_share = (longest + team - 1) / team;
    has_teams_ = team_share * blocks <= 2 * total_ + kSlack * blocks;
    if (has_teams_) share_ = max(team_share, kWarps);
  }

  __device__ __forceinline__ bool has_teams() const { return has_teams_; }
  // Units of the line.
  __device__ __forceinline__ int total() const { return total_; }
  // Tiles of a team's block, or units of a warp.
  __device__ __forceinline__ int share() const { return share_; }

  // The segment of a team.
  __device__ __forceinline__ Segment<kTileTokens> at(int team) const {
    const int row = team / arguments_.at.kv_heads;
    return {tiles_of(row), row, team - row * arguments_.at.kv_heads, 0};
  }

  // The segment of a unit of the line. Called by a whole warp.
  __device__ __forceinline__ Segment<kTileTokens> find(int unit) const {
    const int lane = threadIdx.x % 32, kv_heads = arguments_.at.kv_heads;
    const int goal = unit / kv_heads;  // as if there were one head
    int before = 0, first_thread = 0;
#pragma unroll
    for (int warp = 1; warp < kWarps; ++warp) {
      if (before_[warp] <= goal) before = before_[warp], first_thread = warp * 32;
    }
    const int sum = sums_[first_thread + lane];
    const int threads_below = __popc(__ballot_sync(kAllLanes, before + sum <= goal));
    if (threads_below > 0) before += __shfl_sync(kAllLanes, sum, threads_below - 1);
    int row = (first_thread + threads_below) * rows_each_;
    if (rows_each_ > 1) {
      // Rows of one thread, 32 at a time.
      while (true) {
        const int count = row + lane < arguments_.at.rows ? tiles_of(row + lane).units() : 0;
        const int counts = inclusive_sum(count);
        const int rows_below = __popc(__ballot_sync(kAllLanes, before + counts <= goal));
        if (rows_below > 0) before += __shfl_sync(kAllLanes, counts, rows_below - 1);
        row += rows_below;
        if (rows_below < 32) break;
      }
    }
    const RowTiles tiles = tiles_of(row);
    const int offset = unit - before * kv_heads, head = offset / tiles.units();
    return {tiles, row, head, unit - (offset - head * tiles.units())};
  }

 private:
  // Cutting up a line costs as much as so many tiles of a block; and a processor takes in twice
  // what it does while all are at work.
  static constexpr int kSlack = 16;

  __device__ __forceinline__ RowTiles tiles_of(int row) const {
    return RowTiles::of<kTileTokens>(arguments_, row);
  }

  const Arguments& arguments_;
  int (&sums_)[kThreads];
  int before_[kWarps];  // units of one head before the rows of a warp's threads
  int rows_each_;       // of a thread
  int total_, share_;
  bool has_teams_ = false;
};

}  // namespace octavo::decode
