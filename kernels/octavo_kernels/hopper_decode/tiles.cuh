// Tiles of keys and values: their shape, which of them are whose, and how they come into shared
// memory.
#pragma once

#include "fragments.cuh"

namespace octavo::decode {

template <typename Element, bool kFloat8Cache, int kHeadDim, int kHeadTiles8, bool kWideTiles>
struct Shape {
  using T = Element;                                             // of queries and outputs
  using Product = std::conditional_t<kFloat8Cache, __half, T>;   // of matrix products
  static constexpr bool kFloat8 = kFloat8Cache;
  static constexpr int kDim = kHeadDim;
  static constexpr int kHeadTiles = kHeadTiles8;                 // of 8 heads
  static constexpr int kTokenBytes = kDim * (kFloat8 ? 1 : 2);   // of one head's key
  // Tiles of 4 KB, so that a tile's latencies (1000 cycles from the arrival of the keys to the last
  // product) weigh alike for all types: at full bandwidth, with two blocks on a processor, a tile
  // of keys and values arrives every 3500 cycles per warp. Where there is one block, nothing else
  // computes meanwhile, and tiles of 8 KB halve what the latencies come to.
  static constexpr int kTileTokens = (kWideTiles ? 8192 : 4096) / kTokenBytes;
  static constexpr int kTileBytes = kTileTokens * kTokenBytes;
  static constexpr int kTokenTiles = kTileTokens / 16;
  static constexpr int kSteps = kDim / 16;                       // of a product over the head dim
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  // On a processor. While one waits, the other computes: 32 rows of 1024 tokens take 35 us so, and
  // 40 us with one; registers have no room for three.
  static constexpr int kBlocksEach = kWideTiles ? 1 : 2;
  // Keys and values each. Three and four were no faster, and with one block on a processor, 64 KB
  // leave room for the next matrix product's.
  static constexpr int kStages = 2;
  static constexpr int kWarpBytes = 2 * kStages * kTileBytes;
  static constexpr int kSharedBytes = kWarps * kWarpBytes;
};

// A warp's work: units from ``begin`` to ``end``, each ``step``-th. They are of ``segment`` and, in
// the line, of those after it.
template <typename S> struct Stretch {
  Segment<S::kTileTokens> segment;
  int begin, end, step;

  // The first and last tile in the segment; none if they are in the wrong order.
  __device__ __forceinline__ int first_tile() const {
    return segment.tiles.first + max(begin, segment.begin) - segment.begin;
  }
  __device__ __forceinline__ int last_tile() const {
    const int first = max(begin, segment.begin), last = min(end, segment.end()) - 1;
    return first_tile() + (last < first ? -1 : (last - first) / step * step);
  }
};

// The copies of one warp run two tiles ahead of its products, through this.
//
// A tile lies in one run of memory or, where blocks are smaller, in several. Each lane copies from
// one run, so that it needs one block and one pointer.
template <typename S> class Loader {
 public:
  __device__ __forceinline__ Loader(const Arguments& arguments, const Stretch<S>& stretch)
      : arguments_(arguments), segment_(stretch.segment), unit_(stretch.begin),
        end_(stretch.end), step_(stretch.step) {
    const int lane = threadIdx.x % 32;
    const int run_tokens = min(1 << arguments.at.block_shift, S::kTileTokens);
    const int lanes = run_tokens * 32 / S::kTileTokens;  // of a run
    lane_token_ = lane / lanes * run_tokens;
    step_bytes_ = lanes * 16;
    lane_bytes_ = lane % lanes * 16;
    look_up();
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      targets_[i] =
          swizzle<S::kTokenBytes>(lane_token_ * S::kTokenBytes + lane_bytes_ + i * step_bytes_);
    }
  }

  // To the next tile; false if there is none.
  __device__ __forceinline__ bool advance() {
    if (unit_ >= end_) return false;
    const int shift = arguments_.at.block_shift, first = tile() * S::kTileTokens;
    const int in_block = (first + lane_token_) & ((1 << shift) - 1);
    source_ = arguments_.pages + next_block_ * arguments_.at.block_stride +
              ((segment_.head << shift) + in_block) * S::kTokenBytes + lane_bytes_;
    // From the tile's start. A new token is not in the cache yet.
    context_ = segment_.tiles.context - (arguments_.k != nullptr) - first;
    seen_ = max(segment_.tiles.context - arguments_.at.window, 0) - first;
    unit_ += step_;
    look_up();
    return true;
  }

  __device__ __forceinline__ void copy_keys(uint32_t target) const { copy(target, source_); }
  __device__ __forceinline__ void copy_values(uint32_t target) const {
    copy(target, source_ + (arguments_.at.kv_heads << arguments_.at.block_shift) * S::kTokenBytes);
  }

 private:
  static constexpr int kCopies = S::kTileBytes / 512;

  __device__ __forceinline__ int tile() const {
    return segment_.tiles.first + unit_ - segment_.begin;
  }

  // Goes on to a unit with a tile, and finds the tile's block; one tile before that is needed,
  // because a table entry takes as long as a key.
  __device__ __forceinline__ void look_up() {
    while (unit_ < end_ && unit_ >= segment_.end()) {
      segment_.advance(arguments_);
      unit_ = max(unit_, segment_.begin);
    }
    if (unit_ >= end_) return;
    const int shift = arguments_.at.block_shift, last = (segment_.tiles.context - 1) >> shift;
    const int entry = min((tile() * S::kTileTokens + lane_token_) >> shift, last);
    const long long line = arguments_.table_rows[segment_.row];
    next_block_ = arguments_.table[line * arguments_.at.table_stride + entry];
  }

  __device__ __forceinline__ void copy(uint32_t target, const uint8_t* source) const {
    if (seen_ <= 0 && context_ >= S::kTileTokens) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async(target + targets_[i], source);
        source += step_bytes_;
      }
      return;
    }
    // Rolled up: only a segment's first and last tiles come here.
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int byte = lane_bytes_ + i * step_bytes_;
      const int token = lane_token_ + byte / S::kTokenBytes;
      copy_async(target + swizzle<S::kTokenBytes>(lane_token_ * S::kTokenBytes + byte), source,
                 token >= seen_ && token < context_);
      source += step_bytes_;
    }
  }

  const Arguments& arguments_;
  Segment<S::kTileTokens> segment_;
  int unit_, end_, step_;  // unit_: the next one
  int next_block_;
  int lane_token_;  // of the tile: where the lane's run begins
  int lane_bytes_;  // in the run: where the lane's copies begin
  int step_bytes_;  // from copy to copy
  int targets_[kCopies];
  const uint8_t* source_;
  int context_, seen_;
};

}  // namespace octavo::decode
