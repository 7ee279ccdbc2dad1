// The second of an adapter's products: what is added to a block's tiles.
#pragma once

#include "adapter_sums.cuh"

namespace octavo::linear {

// For each tile that the block finishes, multiplies sums by `up`: a helper takes some of a tile's
// rows and of the runs, and brings its pieces of `up` itself, so that neither weights nor who
// multiplies them wait for any of this until the tile is done.
template <typename T, typename Tile> class Expander {
 public:
  // The block's tiles are those from `tile` on that begin before the chunk `end`.
  __device__ Expander(const Adapters& adapters, const Problem& problem, Desk<Tile>& desk, int tile,
                      int end)
      : a_(adapters), problem_(problem), desk_(desk), lane_(threadIdx.x % 32),
        warp_((threadIdx.x - kThreads) / 32), first_run_(warp_ / kColumnWarps), end_(end),
        tile_(tile), next_tile_(tile), next_run_(first_run_) {
    find_next_pieces();
  }

  // Starts to bring the first pieces.
  __device__ void start() {
    __syncwarp();  // rank rows have been read
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) copy_next_piece(i);
  }

  __device__ void run(Shrinker<T, Tile>& sums) {
    TileParts before(a_, problem_, tile_ * Tile::kRows, Tile::kRows);
    int turn = -1, piece = 0;
#pragma unroll 1
    for (int count = 0; tile_ * problem_.chunks < end_; ++tile_, ++count) {
      const TileParts parts(a_, problem_, tile_ * Tile::kRows, Tile::kRows);
      const bool again = count > 0 && desk_.keeps_sums(before, parts);
      before = parts;
      find_parts(parts);
      float added[kGroups][kEights][4] = {};
#pragma unroll 1
      for (int step = 0; step < desk_.rank_steps; ++step) {
        if (!again) sums.bring(parts, step, ++turn % 2);
        hold_sums(turn % 2);
#pragma unroll 1
        for (int run = first_run_; run < desk_.num_runs; run += kRunSplits<Tile>) {
          wait_pieces();
          add(added, desk_.runs[run].tokens, slot().pieces[piece]);
          __syncwarp();
          copy_next_piece(piece);
          if (++piece == kPieces) piece = 0;
        }
      }
      if (count > 0) desk_.taken.wait_phase(count - 1);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          slot().added[group][j][lane_] = reinterpret_cast<float4&>(added[group][j]);
        }
      }
      __syncwarp();
      if (lane_ == 0) desk_.added.arrive();
    }
  }

 private:
  static constexpr int kGroups = linear::kGroups<Tile>;
  static constexpr int kEights = Slot<Tile>::kEights;
  static constexpr int kPieces = Slot<Tile>::kPieces;
  static constexpr bool kHolds = kGroups * kEights <= 8;

  __device__ Slot<Tile>& slot() const { return desk_.slots[warp_]; }

  // Of some tile, the first row of one of the helper's groups.
  __device__ int first_row(int group) const {
    return (warp_ % kColumnWarps * kGroups + group) * 16;
  }

  // Of `up`, to the next of the helper's pieces: by its lanes, each of which has a rank, or two,
  // and 8 columns. Of 16 rows of a gated tile, 8 are gates and 8 the ups that they gate.
  static constexpr int kLanesEach = 2 * kGroups;  // of a rank
  static constexpr int kRanksAtOnce = 32 / kLanesEach;

  __device__ void find_next_pieces() {
    const int group = lane_ % kLanesEach / 2, h = lane_ % 2, rank = lane_ / kLanesEach;
    const int row = next_tile_ * Tile::kRows + first_row(group);
    const bool gated = is_gated(problem_.epilogue);
    const int column = gated ? row / 2 : row + h * 8;
    is_column_ = column < problem_.out_features;
    next_ = static_cast<const T*>(a_.up) +
            int64_t(next_step_ * kRankStep + rank) * row_size() + column +
            (gated ? h * problem_.out_features : 0);
  }

  __device__ int row_size() const { return a_.part_ends[a_.parts - 1]; }

  __device__ void copy_next_piece(int piece) {
    if (next_tile_ * problem_.chunks < end_ && next_run_ < desk_.num_runs) {
      const Run& run = desk_.runs[next_run_];
      const int rank = lane_ / kLanesEach;
      const int ranks = is_column_ ? run.ranks_at(next_step_) - rank : 0;
      const T* source = next_ + int64_t(run.first) * row_size();
      const Words* target = &slot().pieces[piece][lane_ % kLanesEach * kRankStep + rank];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        copy_async(shared_address(target + i * kRanksAtOnce),
                   source + int64_t(i * kRanksAtOnce) * row_size(), i * kRanksAtOnce < ranks);
      }
      next_run_ += kRunSplits<Tile>;
      if (next_run_ >= desk_.num_runs) {
        next_run_ = first_run_;
        if (++next_step_ == desk_.rank_steps) next_step_ = 0, ++next_tile_;
        find_next_pieces();
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // The oldest is there.
  __device__ static void wait_pieces() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPieces - 1) : "memory");
    __syncwarp();
  }

  // Where the sums of the helper's rows stand, by eights.
  __device__ void find_parts(const TileParts& parts) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile_ * Tile::kRows + first_row(group) + h * 8;
        parts_[group][h] = is_gated(problem_.epilogue) ? (h == 0 ? 0 : parts.count - 1)
                                                       : a_.part_of(row) - parts.first;
      }
    }
  }

  // Takes all tokens' sums of 16 ranks, if there are registers.
  __device__ void hold_sums(int place) {
    place_ = place;
    if constexpr (kHolds) {
#pragma unroll
      for (int i = 0; i < kGroups * 2 * kEights * 2; ++i) {
        sums_[i] = sum_at(i / (4 * kEights), i / (2 * kEights) % 2, i / 2 % kEights, i % 2);
      }
    }
  }

  // A pair of a token's of the j-th eight.
  __device__ uint32_t sum_at(int group, int h, int j, int i) const {
    return desk_.low[place_][parts_[group][h]][8 * j + lane_ / 4][lane_ % 4 + 4 * i];
  }

  __device__ uint32_t sum_of(int group, int h, int j, int i) const {
    if constexpr (kHolds) return sums_[((group * 2 + h) * kEights + j) * 2 + i];
    return sum_at(group, h, j, i);
  }

  // Products of 16 ranks of a run: of all tokens' sums, but zeros stand for those of other runs'.
  __device__ void add(float (&added)[kGroups][kEights][4], uint64_t tokens,
                      const Words* piece) const {
    const uint64_t own = tokens >> lane_ / 4;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t rows[4];
      const int h = lane_ / 8 % 2, rank = lane_ / 16 * 8 + lane_ % 8;
      load_transposed(rows, shared_address(piece + (group * 2 + h) * kRankStep + rank));
      const bool apart = parts_[group][0] != parts_[group][1];
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const uint32_t mask = -static_cast<uint32_t>(own >> 8 * j & 1);
        multiply_matrices<T>(added[group][j], rows[0], apart ? 0 : rows[1], rows[2],
                             apart ? 0 : rows[3], sum_of(group, 0, j, 0) & mask,
                             sum_of(group, 0, j, 1) & mask);
      }
      if (!apart) continue;
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        const uint32_t mask = -static_cast<uint32_t>(own >> 8 * j & 1);
        multiply_matrices<T>(added[group][j], 0, rows[1], 0, rows[3],
                             sum_of(group, 1, j, 0) & mask, sum_of(group, 1, j, 1) & mask);
      }
    }
  }

  const Adapters& a_;
  const Problem& problem_;
  Desk<Tile>& desk_;
  const int lane_, warp_, first_run_, end_;
  int tile_;
  int next_tile_, next_run_, next_step_ = 0;  // of pieces
  const T* next_;  // this lane's, but for the run's first row
  bool is_column_;
  int parts_[kGroups][2], place_;
  uint32_t sums_[kHolds ? kGroups * 2 * kEights * 2 : 1];
};

// Takes what helpers add. Called by the consumers.
template <typename Tile> class Taker {
 public:
  __device__ explicit Taker(Desk<Tile>& desk) : desk_(desk) {}

  template <int kFours> __device__ void operator()(float (&sums)[kFours][4]) {
    desk_.listed.wait_phase(0);
    if (desk_.num_runs == 0) return;
    desk_.added.wait_phase(turn_++);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int kEights = Slot<Tile>::kEights;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int group = i / kEights * 4 + warp;
#pragma unroll
      for (int split = 0; split < kRunSplits<Tile>; ++split) {
        const Slot<Tile>& slot = desk_.slots[split * kColumnWarps + group / kGroups<Tile>];
        const float4& four = slot.added[group % kGroups<Tile>][i % kEights][lane];
        sums[i][0] += four.x, sums[i][1] += four.y, sums[i][2] += four.z, sums[i][3] += four.w;
      }
    }
    __syncwarp();
    if (lane == 0) desk_.taken.arrive();
  }

 private:
  Desk<Tile>& desk_;
  int turn_ = 0;
};

}  // namespace octavo::linear
