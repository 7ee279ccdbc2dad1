// The kernel of a product with adapters.
//
// Beside what linear_kernel has, a block has warps that multiply x by adapters' rank rows while the
// weight streams in (adapter_sums.cuh). What adapters add to a tile is a product with further
// chunks: amid a tile's weights the ring brings `up`'s columns of the tile; the sums stand for x.
#pragma once

#include "adapter_sums.cuh"
#include "product.cuh"

namespace octavo::linear {

// A stage of the ring may hold so many slots: of a run, 16 rank rows of a tile's columns, by boxes
// of a swizzled row's columns or half as many. A gated tile's gates come before its ups.
template <typename Tile> constexpr int kSlotBytes = kRankStep * Tile::kRows * 2;
template <typename Tile> constexpr int kSlots = Ring<Tile>::kWeightBytes / kSlotBytes<Tile>;
template <typename Tile> __host__ __device__ constexpr int box_columns(int epilogue) {
  return is_gated(epilogue) && Tile::kRows < 2 * kSlice ? Tile::kRows / 2 : kSlice;
}

// Starts the copies of a run of chunks, and of `up` for each tile that the block finishes.
// Called by one thread.
template <typename Tile> class AdaptedProducer : Producer<Tile> {
 public:
  __device__ AdaptedProducer(const CUtensorMap& weight, const CUtensorMap& x,
                             const CUtensorMap& up, const Problem& problem, Ring<Tile>& ring,
                             Desk<Tile>& desk, int first, int end)
      : Producer<Tile>(weight, x, problem, ring, first, end), up_(up), desk_(desk), first_(first),
        tile_((first + problem.chunks - 1) / problem.chunks) {
    find_up();
    ready_ = min(kStages, min(up_after_, this->count_));
  }

  __device__ void start() {
    prefetch(this->x_);
    prefetch(up_);
#pragma unroll 1
    for (int i = 0; i < min(kAhead, ready_); ++i) this->copy_next_weight(i);
  }

  __device__ void run() {
    const int release = max(this->count_ - kLead, ready_);
    if (release >= this->count_) let_next_start();
    desk_.listed.wait_phase(0);
#pragma unroll 1
    for (int i = kAhead; i < ready_; ++i) this->copy_next_weight(i);
    wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < ready_; ++i) this->copy_next_x(i);
    stage_ = ready_ % kStages, parity_ = ready_ < kStages;
    if (ready_ == up_after_) copy_up();
#pragma unroll 1
    for (int i = ready_; i < this->count_; ++i) {
      if (i == release) let_next_start();
      this->ring_.empty[stage_].wait_unseen(parity_);
      this->copy_next_weight(stage_);
      this->copy_next_x(stage_);
      advance();
      if (i + 1 == up_after_) copy_up();
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;
  static constexpr int kAhead = 3;  // of weights, ahead of the adapters' rows

  __device__ void advance() {
    if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
  }

  // Finds where in the run the tile's `up` comes: behind so many chunks. Nowhere: behind none.
  __device__ void find_up() {
    const int chunks = this->problem_.chunks, begin = tile_ * chunks - first_;
    const int count = min(chunks, this->count_ - begin);
    up_after_ = count > 0 ? begin + chunks_before_adding<Tile>(count) : this->count_ + 1;
  }

  // A slot for each run, step by step; of those that have no such ranks it stays empty.
  __device__ void copy_up() {
    const int columns = box_columns<Tile>(this->problem_.epilogue);
#pragma unroll 1
    for (int step = 0; step < desk_.rank_steps; ++step) {
#pragma unroll 1
      for (int first = 0; first < desk_.num_runs; first += kSlots<Tile>) {
        const int end = min(first + kSlots<Tile>, desk_.num_runs);
        int count = 0;
#pragma unroll 1
        for (int i = first; i < end; ++i) count += desk_.runs[i].ranks_at(step) > 0;
        Barrier& full = this->ring_.full[stage_];
        this->ring_.empty[stage_].wait_unseen(parity_);
        full.arrive_and_expect(count * kSlotBytes<Tile>);
#pragma unroll 1
        for (int i = first; i < end; ++i) {
          const Run& run = desk_.runs[i];
          if (run.ranks_at(step) <= 0) continue;
          char* target = this->ring_.stages[stage_] + (i - first) * kSlotBytes<Tile>;
#pragma unroll 1
          for (int column = 0; column < Tile::kRows; column += columns) {
            copy_tile<2, kEvictFirst>(target + column * kRankStep * 2, up_, full,
                                      first_column(column), run.first + step * kRankStep);
          }
        }
        advance();
      }
    }
    ++tile_;
    find_up();
  }

  // In `up`, of a column of the slot.
  __device__ int first_column(int column) const {
    if (!is_gated(this->problem_.epilogue)) return tile_ * Tile::kRows + column;
    constexpr int kHalf = Tile::kRows / 2;
    const int first = column < kHalf ? 0 : this->problem_.out_features;
    return first + tile_ * kHalf + column % kHalf;
  }

  const CUtensorMap& up_;
  Desk<Tile>& desk_;
  const int first_;
  int tile_, up_after_;  // the next tile that the block finishes, and where its `up` comes
  int ready_;            // chunks that need not wait for a stage
  int stage_, parity_;
};

// Adds to a tile's sums what adapters say: for each run `up` times the sums of x and its `down`.
// Called by the consumers.
template <typename T, typename Tile> class Expander {
  static constexpr int kParts = Tile::kRows / 64;
  static constexpr int kSums = Tile::kTokens / 2;
  static constexpr int kEights = Tile::kTokens / 8;
  static constexpr int kAtOnce = 2;  // four were more code, and no faster
  static_assert(kSlots<Tile> % kAtOnce == 0);

 public:
  __device__ Expander(const Adapters& adapters, const Problem& problem, Ring<Tile>& ring,
                      Desk<Tile>& desk)
      : a_(adapters), problem_(problem), ring_(ring), desk_(desk), warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void operator()(int tile, float (&sums)[kParts][kSums], int& stage, int& parity) {
    desk_.listed.wait_phase(0);
    const int num_runs = desk_.num_runs;
    if (num_runs == 0) return;
    const bool again = find_parts(tile);
#pragma unroll 1
    for (int step = 0; step < desk_.rank_steps; ++step) {
      if (!again) take_next_sums();
      const int place = turn_ % 2;
#pragma unroll 1
      for (int first = 0; first < num_runs; first += kSlots<Tile>) {
        ring_.full[stage].wait_unseen(parity);
        const char* slots = ring_.stages[stage];
        const int count = min(kSlots<Tile>, num_runs - first);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const char* slot = slots + offset_of(part);
          if (parts_[part][0] == parts_[part][1]) {
            add<false>(first, count, step, slot, part, place, sums[part]);
          } else {
            add<true>(first, count, step, slot, part, place, sums[part]);
          }
        }
        __syncwarp();
        if (lane_ == 0) ring_.empty[stage].arrive();
        if (++stage == Ring<Tile>::kStages) stage = 0, parity ^= 1;
      }
      if (desk_.rank_steps > 1 && lane_ == 0) desk_.emptied[place].arrive();
    }
  }

 private:
  // Sums that the next tile may want, too, are let go only now.
  __device__ void take_next_sums() {
    if (desk_.rank_steps == 1 && turn_ >= 0 && lane_ == 0) desk_.emptied[turn_ % 2].arrive();
    ++turn_;
    desk_.filled[turn_ % 2].wait_phase(turn_ / 2);
  }

  // Where the sums of the warp's rows stand, by eights. Returns whether they are there already, of
  // the tile before.
  __device__ bool find_parts(int tile) {
    const TileParts parts(a_, problem_, tile * Tile::kRows, Tile::kRows);
    const bool again = turn_ >= 0 && desk_.keeps_sums(tile_parts_, parts);
    tile_parts_ = parts;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile * Tile::kRows + part * 64 + warp_ * 16 + h * 8;
        parts_[part][h] = is_gated(problem_.epilogue) ? (h == 0 ? 0 : parts.count - 1)
                                                      : a_.part_of(row) - parts.first;
      }
    }
    return again;
  }

  // Products of 16 ranks of some runs, whose slots begin there: of all tokens' sums, but zeros
  // stand for those of other runs' tokens. `kApart`: 8 of the warp's 16 rows are another part's.
  template <bool kApart>
  __device__ void add(int first, int count, int step, const char* slot, int part, int place,
                      float (&sums)[kSums]) const {
    const int g = lane_ / 4, c = lane_ % 4;
    uint32_t low[kApart ? 2 : 1][kEights][2];
#pragma unroll
    for (int h = 0; h < (kApart ? 2 : 1); ++h) {
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          low[h][j][i] = desk_.low[place][parts_[part][h]][8 * j + g][c + 4 * i];
        }
      }
    }
    // Some at once, for the latencies; those past `count` have no ranks.
#pragma unroll 1
    for (int n = 0; n < count; n += kAtOnce, slot += kAtOnce * kSlotBytes<Tile>) {
      uint32_t rows[kAtOnce][4];
      uint64_t tokens[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const Run& run = desk_.runs[first + n + k];
        const int ranks = run.ranks_at(step);
        tokens[k] = run.tokens;
        load_transposed(rows[k], shared_address(slot) + k * kSlotBytes<Tile>);
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[k][i] &= kept(ranks - (2 * c + i / 2 * 8));
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          // In tall tiles there is a register for it, and the most to skip.
          if (kParts > 1 && (tokens[k] >> 8 * j & 0xff) == 0) continue;
          const uint32_t mask = tokens[k] >> (8 * j + g) & 1 ? ~0u : 0;
          float(&four)[4] = reinterpret_cast<float(&)[4]>(sums[4 * j]);
          const uint32_t(&upper)[2] = low[0][j];
          if constexpr (kApart) {
            const uint32_t(&lower)[2] = low[1][j];
            multiply_matrices<T>(four, rows[k][0], 0, rows[k][2], 0, upper[0] & mask,
                                 upper[1] & mask);
            multiply_matrices<T>(four, 0, rows[k][1], 0, rows[k][3], lower[0] & mask,
                                 lower[1] & mask);
          } else {
            multiply_matrices<T>(four, rows[k][0], rows[k][1], rows[k][2], rows[k][3],
                                 upper[0] & mask, upper[1] & mask);
          }
        }
      }
    }
  }

  // Where in a slot this lane's row of four matrices is: 8 ranks and 8 of the warp's columns each,
  // the columns before the ranks. A box's rows are 128 or 64 bytes, swizzled as a tensor map does.
  __device__ int offset_of(int part) const {
    const int h = lane_ / 8 % 2, rank = lane_ / 16 * 8 + lane_ % 8;
    const int columns = box_columns<Tile>(problem_.epilogue);
    const int column = is_gated(problem_.epilogue)
                           ? h * (Tile::kRows / 2) + part * 32 + warp_ * 8
                           : part * 64 + warp_ * 16 + h * 8;
    const int swizzle = columns == kSlice ? rank % 8 : rank / 2 % 4;
    return (column / columns * kRankStep + rank) * columns * 2 +
           (column % columns / 8 ^ swizzle) * 16;
  }

  // A mask of a pair of elements, of which so many are the run's.
  __device__ static uint32_t kept(int elements) {
    return elements >= 2 ? ~0u : elements == 1 ? 0xffff : 0;
  }

  const Adapters& a_;
  const Problem& problem_;
  Ring<Tile>& ring_;
  Desk<Tile>& desk_;
  const int warp_, lane_;
  TileParts tile_parts_ = {};
  int parts_[kParts][2];
  int turn_ = -1;  // whose sums are being used
};

template <typename Tile> struct AdaptedShared {
  Ring<Tile> ring;
  Desk<Tile> desk;
};

template <typename Tile> constexpr int kAdaptedThreads = kThreads + kAdapterThreads<Tile>;
// A quarter of the registers is left. With 96 and 128, where a block of 512 threads of 32 registers
// fits in for sure, products spilled, and a step took 1 % longer; with 80, where attention's does,
// 3 %.
template <typename Tile>
constexpr int kRegisters = (65536 - 512 * 32) / kAdaptedThreads<Tile> / 8 * 8;

template <typename T, typename Tile>
__global__ void __maxnreg__(kRegisters<Tile>)
    adapted_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap up,
                   const __grid_constant__ Problem problem,
                   const __grid_constant__ Adapters adapters) {
  extern __shared__ __align__(1024) char shared[];
  auto& [ring, desk] = *reinterpret_cast<AdaptedShared<Tile>*>(shared);
  const int first = start_of(problem, blockIdx.x), end = start_of(problem, blockIdx.x + 1);
  AdaptedProducer<Tile> producer(weight, x, up, problem, ring, desk, first, end);
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < Ring<Tile>::kStages; ++i) {
      ring.full[i].init(1);
      ring.empty[i].init(kConsumers / 32);
    }
    desk.init();
    publish_barriers();
    producer.start();
  }
  Shrinker<T, Tile> shrinker(adapters, problem, desk);
  if (threadIdx.x >= kThreads) shrinker.start();
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    Expander<T, Tile> expander(adapters, problem, ring, desk);
    Consumer<T, Tile, Expander<T, Tile>&>(problem, ring, expander).run(first, end);
  } else if (threadIdx.x == kConsumers) {
    producer.run();
  } else if (threadIdx.x >= kThreads) {
    shrinker.run(first, end);
  }
}

}  // namespace octavo::linear
