// How the weight is cut up and brought: tiles, chunks, the ring of stages and who fills it.
#pragma once

#include "hopper_products.cuh"

namespace octavo::linear {

using namespace octavo::hopper;

struct Problem {
  void* out;         // [tokens, out_features]; with kAdd also an input
  const void* bias;  // [rows of the weight] or null
  int64_t out_stride;
  int tokens, out_features;
  int tiles, chunks;  // tiles of the weight's rows; chunks of the inner axis in each
  int epilogue;
};

// How the weight is cut up for a number of tokens. Tiles of 128 rows halve how often x is read: a
// multiprocessor takes in 50 bytes a nanosecond, and 33 are weights when memory is busy.
template <int kTokens_, int kRows_> struct Tiling {
  static constexpr int kTokens = kTokens_;
  static constexpr int kRows = kRows_;
  static constexpr int kChunk = 8192 / kRows;  // of the inner axis: 16 KB of weights
};

// The ring. With less than 120 KB, two blocks fit on a multiprocessor, and those of the next kernel
// crowd on the first that are free (25 % slower); more than 144 KB is no faster, and leaves less
// room for an attention kernel beside it.
template <typename Tile> struct Ring {
  static constexpr int kWeightBytes = Tile::kRows * Tile::kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + Tile::kTokens * Tile::kChunk * 2;
  static constexpr int kStages = 144 * 1024 / kStageBytes;

  alignas(1024) char stages[kStages][kStageBytes];
  Barrier full[kStages], empty[kStages];
};

// With so many copies still to start, the next kernel may come: it needs some microseconds to.
constexpr int kLead = 12;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;

// The first chunk, of all tiles' one after another, of a block's run. In 32 bits, enough for 26
// million chunks: in 64 it would be 200 instructions, which come from afar.
__device__ __forceinline__ int start_of(const Problem& problem, int block) {
  return uint32_t(problem.tiles * problem.chunks) * block / gridDim.x;
}

// The block whose run has that chunk.
__device__ __forceinline__ int block_of(const Problem& problem, int chunk) {
  return (uint32_t(chunk + 1) * gridDim.x - 1) / uint32_t(problem.tiles * problem.chunks);
}

// Starts the copies of a run, in their order: blocks that began tiles at other chunks each, so that
// not all read the same of x at once, were 2 to 4 % slower. Called by one thread, in small loops:
// its instructions, too, come from afar.
template <typename Tile> class Producer {
 public:
  __device__ Producer(const CUtensorMap& weight, const CUtensorMap& x, const Problem& problem,
                      Ring<Tile>& ring, int first, int end)
      : weight_(weight), x_(x), problem_(problem), ring_(ring), count_(end - first),
        weight_chunk_(first % problem.chunks), x_chunk_(weight_chunk_),
        row_(first / problem.chunks * Tile::kRows) {}

  // What needs nothing from the previous kernel.
  __device__ void start() {
    prefetch(x_);
#pragma unroll 1
    for (int i = 0; i < min(kStages, count_); ++i) copy_next_weight(i);
  }

  __device__ void run() {
    const int ready = min(kStages, count_), release = max(count_ - kLead, ready);
    if (release == ready) let_next_start();
    wait_for_previous();
    copy_first_x();
    copy_rest<kStages>(release);
  }

  // x of the chunks that need not wait for a stage.
  __device__ void copy_first_x() {
#pragma unroll 1
    for (int i = 0; i < min(kStages, count_); ++i) copy_next_x(i);
  }

 protected:
  static constexpr int kStages = Ring<Tile>::kStages;

  // What has to wait for a stage; before the chunk `release` the next kernel may come. So many
  // chunks are on their way at most.
  template <int kMost> __device__ void copy_rest(int release) {
    int stage = 0, parity = 0, landed = kStages - kMost, landed_parity = 0;
#pragma unroll 1
    for (int i = kStages; i < count_; ++i) {
      if (i == release) let_next_start();
      if constexpr (kMost < kStages) {
        ring_.full[landed].wait_unseen(landed_parity);
        if (++landed == kStages) landed = 0, landed_parity ^= 1;
      }
      ring_.empty[stage].wait_unseen(parity);
      copy_next_weight(stage);
      copy_next_x(stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }

  // Also makes the stage expect all of its bytes.
  __device__ void copy_next_weight(int stage) {
    const bool gated = is_gated(problem_.epilogue);
    const int column = weight_chunk_ * Tile::kChunk;
    ring_.full[stage].arrive_and_expect(Ring<Tile>::kStageBytes);
#pragma unroll
    for (int k = 0; k < Tile::kChunk; k += kSlice) {
      copy_tile<4, kEvictFirst>(ring_.stages[stage] + k * Tile::kRows * 2, weight_,
                                ring_.full[stage], column + k, gated ? 0 : row_, 0,
                                gated ? row_ / 16 : 0);
    }
    if (++weight_chunk_ == problem_.chunks) weight_chunk_ = 0, row_ += Tile::kRows;
  }

  __device__ void copy_next_x(int stage) {
    char* target = ring_.stages[stage] + Ring<Tile>::kWeightBytes;
#pragma unroll
    for (int k = 0; k < Tile::kChunk; k += kSlice) {
      copy_tile<2, kEvictLast>(target + k * Tile::kTokens * 2, x_, ring_.full[stage],
                               x_chunk_ * Tile::kChunk + k, 0);
    }
    if (++x_chunk_ == problem_.chunks) x_chunk_ = 0;
  }

  const CUtensorMap &weight_, &x_;
  const Problem& problem_;
  Ring<Tile>& ring_;
  const int count_;
  int weight_chunk_, x_chunk_, row_;  // of the next copies: chunks in a tile, and its first row
};

}  // namespace octavo::linear
