// How a product is cut up and brought: tiles, splits, the ring of stages and who fills it.
#pragma once

#include <algorithm>

#include "hopper_products.cuh"

namespace octavo::linear_mid {

using namespace octavo::hopper;

constexpr int kChunk = kSlice;  // of the inner axis

struct Problem {
  void* out;         // [tokens, out_features]; with kAdd also an input
  const void* bias;  // [rows of the weight] or null
  int64_t out_stride;
  int tokens, out_features;
  int row_tiles, token_tiles;
  int chunks;  // of the inner axis
  int splits;  // blocks of a cluster
  int stages;  // of the ring
  int epilogue;
};

constexpr int kTokens = 128, kConsumers = 256, kThreads = kConsumers + 128;
constexpr int kTokenBytes = kTokens * kChunk * 2;
constexpr int kUnitBytes = kConsumers * 32;  // of sums: see Consumer

template <int kRows_> struct Tile {
  static constexpr int kRows = kRows_;
  static constexpr int kSums = kRows / 2;    // of a thread
  static constexpr int kUnits = kRows / 16;  // of 16 rows
  static constexpr int kWeightBytes = kRows * kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + kTokenBytes;
  // With many sums a thread takes registers of the producer's warpgroup; with few, registers are
  // left to a small kernel beside this one, which then need not wait for its end.
  static constexpr bool kGrows = kSums > 72;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kBoundThreads = kGrows ? kThreads : 512;
};

// The ring has as many stages as `room` has space for beside the sums that other blocks send.
constexpr int kRoomBytes = 204 * 1024, kMaxStages = 12;

struct Shared {
  alignas(1024) char room[kRoomBytes];
  Barrier full[kMaxStages], empty[kMaxStages], sums_there;
};

// With so many copies still to start, the next kernel may come: it needs some microseconds to.
constexpr int kLead = 10;

// The tiles that a block works on, and its chunks of each. Neighbouring tiles have the same rows,
// should there be more tokens than one tile's.
template <typename Tile> class Work {
 public:
  __device__ __forceinline__ explicit Work(const Problem& problem)
      : split(blockIdx.x % problem.splits), first_chunk(problem.chunks * split / problem.splits),
        chunks(problem.chunks * (split + 1) / problem.splits - first_chunk), problem_(problem),
        tile_(blockIdx.x / problem.splits) {}

  const int split, first_chunk, chunks;

  __device__ bool more() const { return tile_ < problem_.row_tiles * problem_.token_tiles; }
  __device__ void advance() { tile_ += gridDim.x / problem_.splits; }
  __device__ int first_row() const { return tile_ / problem_.token_tiles * Tile::kRows; }
  __device__ int first_token() const { return tile_ % problem_.token_tiles * kTokens; }

 private:
  const Problem& problem_;
  int tile_;
};

// Where in the ring a role is.
struct Cursor {
  const int stages;
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// Starts the copies. Called by one thread.
template <typename Tile> class Producer {
 public:
  __device__ Producer(const CUtensorMap& weight, const CUtensorMap& x, const Problem& problem,
                      Shared& shared)
      : weight_(weight), x_(x), problem_(problem), shared_(shared), work_(problem) {
    find_tile();
  }

  __device__ void run() {
    Cursor at = {problem_.stages};
    const int early = min(work_.chunks, at.stages);
    for (int i = 0; i < early; ++i) copy_weight(i, i);
    wait_for_previous();
    for (int i = 0; i < early; ++i, at.advance()) copy_x(i, i);
    int chunk = early;
    while (true) {
      for (; chunk < work_.chunks; ++chunk, at.advance()) {
        if (work_.chunks - chunk == kLead) let_next_start();
        shared_.empty[at.stage].wait(at.parity ^ 1);
        copy_weight(chunk, at.stage);
        copy_x(chunk, at.stage);
      }
      work_.advance();
      if (!work_.more()) break;
      find_tile();
      chunk = 0;
    }
    let_next_start();
  }

 private:
  __device__ void find_tile() {
    row_ = work_.first_row();
    token_ = work_.first_token();
  }

  // Also makes the stage expect all of its bytes. Weights that come once must not drive x out.
  __device__ void copy_weight(int chunk, int stage) {
    Barrier& full = shared_.full[stage];
    full.arrive_and_expect(Tile::kStageBytes);
    const bool gated = is_gated(problem_.epilogue);
    const int column = (work_.first_chunk + chunk) * kChunk;
    char* target = shared_.room + stage * Tile::kStageBytes;
    if (problem_.token_tiles == 1) {
      copy_tile<4, kEvictFirst>(target, weight_, full, column, gated ? 0 : row_, 0,
                                gated ? row_ / 16 : 0);
    } else {
      copy_tile<4, kEvictNormal>(target, weight_, full, column, gated ? 0 : row_, 0,
                                 gated ? row_ / 16 : 0);
    }
  }

  __device__ void copy_x(int chunk, int stage) {
    char* target = shared_.room + stage * Tile::kStageBytes + Tile::kWeightBytes;
    copy_tile<2, kEvictLast>(target, x_, shared_.full[stage], (work_.first_chunk + chunk) * kChunk,
                             token_);
  }

  const CUtensorMap &weight_, &x_;
  const Problem& problem_;
  Shared& shared_;
  Work<Tile> work_;
  int row_, token_;
};

}  // namespace octavo::linear_mid
