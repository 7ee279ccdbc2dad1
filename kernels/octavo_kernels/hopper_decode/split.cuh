// How the work of a launch is shared out, computed from the lengths on the device.
//
// A unit of work is one tile of cached tokens of one row and one key/value head. Units stand in a
// line, by row, head and tile; a head's units are a segment. Each block takes an equal stretch of
// the line and each of its warps an equal part of that stretch, so a segment may be cut anywhere.
// The worker that has a cut segment's first part merges what the others found; its part is its
// last work, theirs their first, so it seldom waits.
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

// A segment ends with so many units without tiles: for its queries and outputs, and because copies
// run ahead no further than the next segment. 64 rows of one token beside 64 of 512 (Llama-8B's
// shape) took 77 us without, against 41 us for the long ones alone.
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
  // Of one head.
  __device__ __forceinline__ int units() const { return context > 0 ? count() + kIdleUnits : 0; }
};

// Units of the line that belong together: ``num_tiles`` from ``begin`` on, then idle ones.
struct Segment {
  int row, head, begin, num_tiles;
};

// Where a warp stands in the line.
template <int kTileTokens> struct Position {
  RowTiles tiles;
  int row, head, tile;
  int unit;

  __device__ __forceinline__ int begin() const { return unit - (tile - tiles.first); }
  __device__ __forceinline__ Segment segment() const {
    return {row, head, begin(), tiles.count()};
  }

  __device__ __forceinline__ void next_head(const Arguments& arguments) {
    unit = begin() + tiles.units();
    if (++head == arguments.at.kv_heads) {
      head = 0;
      while (++row < arguments.at.rows) {
        tiles = RowTiles::of<kTileTokens>(arguments, row);
        if (tiles.context > 0) break;
      }
    }
    tile = tiles.first;
  }
};

// Blocks are numbered along the line, which is against their index: a block waits only for such
// as have a lower index and therefore were started no later.
template <int kWarps> struct Split {
  int total;  // units
  int share;  // of a block
  int part;   // of a warp

  __device__ __forceinline__ int block_begin(int block) const { return min(block * share, total); }
  __device__ __forceinline__ int warp_begin(int block, int warp) const {
    return min(block * share + min(warp * part, share), total);
  }

  // A block whose stretch lies in one segment makes one partial result of it.
  __device__ __forceinline__ bool is_within(int block, const Segment& segment) const {
    const int begin = block_begin(block), end = segment.begin + segment.num_tiles;
    return segment.begin <= begin && begin < end && block_begin(block + 1) <= end + kIdleUnits;
  }

  // Whether a warp, counted over all blocks, keeps a partial result of the segment.
  __device__ __forceinline__ bool has_partial(int worker, const Segment& segment) const {
    const int block = worker / kWarps, warp = worker % kWarps;
    if (is_within(block, segment)) return warp == 0;
    return max(warp_begin(block, warp), segment.begin) <
           min(warp_begin(block, warp + 1), segment.begin + segment.num_tiles);
  }
};

__device__ __forceinline__ int inclusive_sum(int x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) x += below;
  }
  return x;
}

// The lengths' running sum. Every block makes it: 0.3 us for 1024 rows, and no other kernel has to
// run for it.
template <int kTileTokens, int kWarps> class Line {
 public:
  static constexpr int kThreads = kWarps * 32;

  // ``sums`` is shared memory.
  __device__ __forceinline__ Line(const Arguments& arguments, int (&sums)[kThreads])
      : arguments_(arguments), sums_(sums) {
    const int rows = arguments.at.rows, thread = threadIdx.x;
    rows_each_ = (rows + kThreads - 1) / kThreads;
    int own = 0;
#pragma unroll 1
    for (int row = thread * rows_each_; row < min((thread + 1) * rows_each_, rows); ++row) {
      own += tiles_of(row).units();
      // Brings it into the L1, where the loader looks for it once it knows its rows.
      int line;
      asm volatile("ld.global.ca.s32 %0, [%1];" : "=r"(line) : "l"(arguments.table_rows + row));
    }
    sums_[thread] = inclusive_sum(own);
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      before_[warp] = warp == 0 ? 0 : before_[warp - 1] + sums_[warp * 32 - 1];
    }
    split_.total = (before_[kWarps - 1] + sums_[kThreads - 1]) * arguments.at.kv_heads;
    split_.share = max((split_.total + arguments.at.blocks - 1) / arguments.at.blocks, kWarps);
    split_.part = (split_.share + kWarps - 1) / kWarps;
  }

  __device__ __forceinline__ const Split<kWarps>& split() const { return split_; }

  // Where a unit is; if it is an idle one, ``tile`` is past its segment's. Called by a whole warp.
  __device__ __forceinline__ Position<kTileTokens> find(int unit) const {
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
    return {tiles, row, head, tiles.first + offset - head * tiles.units(), unit};
  }

 private:
  __device__ __forceinline__ RowTiles tiles_of(int row) const {
    return RowTiles::of<kTileTokens>(arguments_, row);
  }

  const Arguments& arguments_;
  int (&sums_)[kThreads];
  int before_[kWarps];  // units of one head before the rows of a warp's threads
  int rows_each_;       // of a thread
  Split<kWarps> split_;
};

}  // namespace octavo::decode
