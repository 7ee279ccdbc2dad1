// The second of an adapter's products: what is added to a block's tiles.
#pragma once

#include "adapter_sums.cuh"

namespace octavo::linear {

// For each tile that the block finishes, multiplies sums by `up`: a helper takes 16 of the columns
// and some of the runs, and brings its pieces of `up` itself, so that neither weights nor who
// multiplies them wait for any of this until the tile is done.
template <typename T, typename Tile> class Expander {
 public:
  // The block's tiles are those from `tile` on that begin before the chunk `end`.
  __device__ Expander(const Adapters& adapters, const Problem& problem, Desk<Tile>& desk, int tile,
                      int end)
      : a_(adapters), problem_(problem), desk_(desk), lane_(threadIdx.x % 32),
        warp_((threadIdx.x - kThreads) / 32), columns_(warp_ % kColumnWarps),
        first_run_(warp_ / kColumnWarps), end_(end),
        row_size_(adapters.part_ends[adapters.parts - 1]), tile_(tile), next_tile_(tile - 1),
        next_step_(desk.rank_steps - 1) {}

  // Starts to bring the first pieces.
  __device__ void start() {
    __syncwarp();  // rank rows have been read
#pragma unroll 1
    for (int i = 0; i < kBatches; ++i) copy_next_batch(i);
  }

  __device__ void run(Shrinker<T, Tile>& sums) {
    TileParts before = {};
    int turn = -1, batch = 0;
#pragma unroll 1
    for (int count = 0; tile_ * problem_.chunks < end_; ++tile_, ++count) {
      const TileParts parts(a_, problem_, tile_ * Tile::kRows, Tile::kRows);
      const bool again = desk_.keeps_sums(before, parts);
      before = parts;
      part_ = part_in(parts);
      float added[kEights][4] = {};
#pragma unroll 1
      for (int step = 0; step < desk_.rank_steps; ++step) {
        if (!again) {
          sums.bring(parts, step, ++turn % 2);
          hold_sums(turn % 2);
        }
        int run_of[kEights];  // of the lane's tokens, one of each eight
#pragma unroll
        for (int j = 0; j < kEights; ++j) run_of[j] = desk_.run_of[8 * j + lane_ / 4];
#pragma unroll 1
        for (int run = first_run_; run < desk_.num_runs; run += kBatchRuns<Tile>) {
          wait_copies<kBatches - 1>();  // the oldest is there
          __syncwarp();
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            add(added, run_of, run + i * kRunSplits<Tile>, slot().pieces[batch][i]);
          }
          __syncwarp();
          copy_next_batch(batch);
          batch = (batch + 1) % kBatches;
        }
      }
      if (first_run_ == 0 && kRunSplits<Tile> > 1) {
        wait_for_threads(kColumns + columns_, 64);
#pragma unroll
        for (int i = 0; i < 2 * kEights; ++i) {
          const float2 other = desk_.added[columns_][i / 2][i % 2][lane_];
          added[i / 2][i % 2 * 2] += other.x, added[i / 2][i % 2 * 2 + 1] += other.y;
        }
      } else if (count > 0) {
        desk_.taken.wait_phase(count - 1);
      }
      leave(added);
      if (first_run_ == 0) {
        __syncwarp();
        if (lane_ == 0) desk_.finished.arrive();
      } else {
        arrive_for_threads(kColumns + columns_, 64);
      }
    }
  }

 private:
  static constexpr int kEights = Desk<Tile>::kEights;
  static_assert(kRunSplits<Tile> <= 2);

  __device__ Slot& slot() const { return desk_.slots[warp_]; }

  __device__ void leave(const float (&added)[kEights][4]) const {
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      desk_.added[columns_][j][0][lane_] = make_float2(added[j][0], added[j][1]);
      desk_.added[columns_][j][1][lane_] = make_float2(added[j][2], added[j][3]);
    }
  }

  // Of a tile, the first of the helper's columns. Of a gated tile's, half are gates; the others are
  // the ups that they gate, and two helpers have these: in memory they lie apart.
  __device__ int first_column(int tile) const {
    const int column = columns_ * kHelperColumns, half = Tile::kRows / 2;
    return is_gated(problem_.epilogue) ? tile * half + column % half : tile * Tile::kRows + column;
  }
  __device__ bool has_ups() const {
    return is_gated(problem_.epilogue) && columns_ >= kColumnWarps / 2;
  }

  // Of `up`, to the next of the helper's pieces: by its lanes, each of which has a rank and 8
  // columns.
  __device__ void find_next_pieces() {
    const int rank = lane_ / 2, column = first_column(next_tile_) + lane_ % 2 * 8;
    is_column_ = column < problem_.out_features;
    next_ = static_cast<const T*>(a_.up) +
            int64_t(next_step_ * kRankStep + rank) * row_size_ + column +
            (has_ups() ? problem_.out_features : 0);
  }

  // Past the last run, and past ranks and columns, come zeros.
  __device__ void copy_next_batch(int batch) {
    if (next_run_ >= desk_.num_runs) {
      next_run_ = first_run_;
      if (++next_step_ == desk_.rank_steps) next_step_ = 0, ++next_tile_;
      find_next_pieces();
    }
    if (next_tile_ * problem_.chunks < end_) {
      const int h = lane_ % 2, rank = lane_ / 2;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int index = next_run_ + i * kRunSplits<Tile>;
        const Run& run = desk_.runs[index];
        copy_async(shared_address(slot().pieces[batch][i][h] + rank),
                   next_ + int64_t(run.first) * row_size_,
                   is_column_ && index < desk_.num_runs && rank < run.ranks_at(next_step_));
      }
      next_run_ += kBatchRuns<Tile>;
    }
    commit_copies();
  }

  // In which of a tile's parts the helper's columns are.
  __device__ int part_in(const TileParts& parts) const {
    if (is_gated(problem_.epilogue)) return has_ups() ? parts.count - 1 : 0;
    return a_.part_of(first_column(tile_)) - parts.first;
  }

  // Takes all tokens' sums of 16 ranks.
  __device__ void hold_sums(int place) {
#pragma unroll
    for (int i = 0; i < 2 * kEights; ++i) {
      sums_[i / 2][i % 2] =
          desk_.low[place][part_][8 * (i / 2) + lane_ / 4][lane_ % 4 + 4 * (i % 2)];
    }
  }

  // Products of 16 ranks of a run: of all tokens' sums, but zeros stand for those of other runs'.
  __device__ void add(float (&added)[kEights][4], const int (&run_of)[kEights], int run,
                      const Words (&piece)[2][kRankStep]) const {
    uint32_t rows[4];
    const int half = lane_ / 8 % 2, rank = lane_ / 16 * 8 + lane_ % 8;
    load_transposed(rows, shared_address(piece[half] + rank));
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      const bool own = run_of[j] == run;
      multiply_matrices<T>(added[j], rows[0], rows[1], rows[2], rows[3], own ? sums_[j][0] : 0,
                           own ? sums_[j][1] : 0);
    }
  }

  const Adapters& a_;
  const Problem& problem_;
  Desk<Tile>& desk_;
  const int lane_, warp_, columns_, first_run_, end_, row_size_;
  int tile_;
  int next_tile_, next_step_, next_run_ = Tile::kTokens;  // of pieces; that one is past all runs
  const T* next_;  // this lane's, but for the run's first row
  bool is_column_;
  int part_;                   // of its columns
  uint32_t sums_[kEights][2];  // of that part, by eights of tokens
};

// Takes what helpers add. Called by the consumers.
template <typename Tile> class Taker {
 public:
  __device__ Taker(const Problem& problem, Desk<Tile>& desk)
      : gated_(is_gated(problem.epilogue)), desk_(desk) {}

  template <int kFours> __device__ void operator()(float (&sums)[kFours][4]) {
    desk_.listed.wait_phase(0);
    if (desk_.num_runs == 0) return;
    desk_.finished.wait_phase(turn_++);
    // A warp has 16 rows of the weight: in a gated tile, 8 of gates and 8 of ups.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int upper = gated_ ? warp / 2 : warp, lower = gated_ ? upper + 2 : warp;
    static_assert(kFours == Desk<Tile>::kEights);
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const float2 high = desk_.added[upper][i][gated_ ? warp % 2 : 0][lane];
      const float2 low = desk_.added[lower][i][gated_ ? warp % 2 : 1][lane];
      sums[i][0] += high.x, sums[i][1] += high.y, sums[i][2] += low.x, sums[i][3] += low.y;
    }
    __syncwarp();
    if (lane == 0) desk_.taken.arrive();
  }

 private:
  const bool gated_;
  Desk<Tile>& desk_;
  int turn_ = 0;
};

}  // namespace octavo::linear
