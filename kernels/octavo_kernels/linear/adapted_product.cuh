// The kernel of a product with adapters.
//
// Beside what linear_kernel has, a block has warps that multiply x by adapters' rank rows while the
// weight streams in (adapter_sums.cuh). What adapters add to a tile is a product with further
// chunks: behind a tile's weights the ring brings `up`'s columns of the tile; the sums stand for x.
#pragma once

#include "adapter_sums.cuh"
#include "product.cuh"

namespace octavo::linear {

// A stage of the ring may hold so many slots: of a run, 16 rank rows of a tile's columns, by boxes
// of 32 columns. A gated tile's gates come before its ups.
constexpr int kBoxColumns = 32, kBoxBytes = kRankStep * kBoxColumns * 2;
template <typename Tile> constexpr int kBoxes = Tile::kRows / kBoxColumns;
template <typename Tile> constexpr int kSlotBytes = kBoxes<Tile> * kBoxBytes;
template <typename Tile> constexpr int kSlots = Ring<Tile>::kWeightBytes / kSlotBytes<Tile>;

// Starts the copies of a run of chunks, and of `up` behind each tile that the block finishes.
// Called by one thread.
template <typename Tile> class AdaptedProducer : Producer<Tile> {
 public:
  __device__ AdaptedProducer(const CUtensorMap& weight, const CUtensorMap& x,
                             const CUtensorMap& up, const Problem& problem, Ring<Tile>& ring,
                             Desk<Tile>& desk, int first, int end)
      : Producer<Tile>(weight, x, problem, ring, first, end), up_(up), desk_(desk) {
    while (ready_ < this->count_ && ready_ < kStages) {
      if (finishes(ready_++)) break;
    }
  }

  __device__ void start() {
    prefetch(this->x_);
    prefetch(up_);
    for (int i = 0; i < ready_; ++i) this->copy_weight(i, i);
  }

  __device__ void run() {
    const int release = max(this->count_ - kLead, ready_);
    if (release >= this->count_) let_next_start();
    wait_for_previous();
    for (int i = 0; i < ready_; ++i) this->copy_x(i, i);
    stage_ = ready_ % kStages, parity_ = ready_ < kStages;
    if (finishes(ready_ - 1)) copy_up(tile_of(ready_ - 1));
    for (int i = ready_; i < this->count_; ++i) {
      if (i == release) let_next_start();
      this->ring_.empty[stage_].wait(parity_);
      this->copy_weight(i, stage_);
      this->copy_x(i, stage_);
      advance();
      if (finishes(i)) copy_up(tile_of(i));
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;

  __device__ int tile_of(int i) const { return (this->first_ + i) / this->problem_.chunks; }

  // Whether the chunk is the block's last of a tile that it finishes.
  __device__ bool finishes(int i) const {
    const int chunks = this->problem_.chunks, tile = tile_of(i);
    return tile * chunks >= this->first_ &&
           (i + 1 == this->count_ || this->first_ + i + 1 == (tile + 1) * chunks);
  }

  __device__ void advance() {
    if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
  }

  // A slot for each run, step by step; of those that have no such ranks it stays empty.
  __device__ void copy_up(int tile) {
    desk_.listed.wait_phase(0);
    for (int step = 0; step < desk_.rank_steps; ++step) {
      for (int first = 0; first < desk_.num_runs; first += kSlots<Tile>) {
        const int end = min(first + kSlots<Tile>, desk_.num_runs);
        int count = 0;
        for (int i = first; i < end; ++i) count += desk_.runs[i].ranks_at(step) > 0;
        Barrier& full = this->ring_.full[stage_];
        this->ring_.empty[stage_].wait(parity_);
        full.arrive_and_expect(count * kSlotBytes<Tile>);
        for (int i = first; i < end; ++i) {
          const Run run = desk_.runs[i];
          if (run.ranks_at(step) <= 0) continue;
          char* target = this->ring_.stages[stage_] + (i - first) * kSlotBytes<Tile>;
#pragma unroll
          for (int box = 0; box < kBoxes<Tile>; ++box) {
            copy_tile<2, kEvictFirst>(target + box * kBoxBytes, up_, full, column_of(tile, box),
                                       run.first + step * kRankStep);
          }
        }
        advance();
      }
    }
  }

  __device__ int column_of(int tile, int box) const {
    if (!is_gated(this->problem_.epilogue)) return tile * Tile::kRows + box * kBoxColumns;
    constexpr int kHalf = kBoxes<Tile> / 2;
    const int first = box < kHalf ? 0 : this->problem_.out_features;
    return first + tile * (Tile::kRows / 2) + box % kHalf * kBoxColumns;
  }

  const CUtensorMap& up_;
  Desk<Tile>& desk_;
  int ready_ = 0;  // chunks that need not wait for a stage
  int stage_, parity_;
};

// Adds to a tile's sums what adapters say: for each run `up` times the sums of x and its `down`.
// Called by the consumers.
template <typename T, typename Tile> class Expander {
  static constexpr int kParts = Tile::kRows / 64;
  static constexpr int kSums = Tile::kTokens / 2;
  static constexpr int kEights = Tile::kTokens / 8;
  static constexpr int kAtOnce = Tile::kTokens > 32 ? 2 : 4;  // slots, for their latencies

 public:
  __device__ Expander(const Adapters& adapters, const Problem& problem, Ring<Tile>& ring,
                      Desk<Tile>& desk)
      : a_(adapters), problem_(problem), ring_(ring), desk_(desk), warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void operator()(int tile, float (&sums)[kParts][kSums], int& stage,
                             int& parity) {
    desk_.listed.wait_phase(0);
    if (desk_.num_runs == 0) return;
    find_parts(tile);
    for (int step = 0; step < desk_.rank_steps; ++step, ++turn_) {
      const int place = turn_ % 2;
      desk_.filled[place].wait_phase(turn_ / 2);
      for (int first = 0; first < desk_.num_runs; first += kSlots<Tile>) {
        ring_.full[stage].wait(parity);
        const int end = min(first + kSlots<Tile>, desk_.num_runs);
        const char* slot = ring_.stages[stage];
        for (int i = first; i < end; i += kAtOnce, slot += kAtOnce * kSlotBytes<Tile>) {
          if (i + 1 == end) {
            add<1>(i, step, slot, place, sums);
          } else {
            add<kAtOnce>(i, step, slot, place, sums);
          }
        }
        __syncwarp();
        if (lane_ == 0) ring_.empty[stage].arrive();
        if (++stage == Ring<Tile>::kStages) stage = 0, parity ^= 1;
      }
      if (lane_ == 0) desk_.emptied[place].arrive();
    }
  }

 private:
  // Where the sums of the warp's rows stand, by eights.
  __device__ void find_parts(int tile) {
    const TileParts parts(a_, problem_, tile * Tile::kRows, Tile::kRows);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = tile * Tile::kRows + part * 64 + warp_ * 16 + h * 8;
        parts_[part][h] = is_gated(problem_.epilogue) ? (h == 0 ? 0 : parts.count - 1)
                                                      : a_.part_of(row) - parts.first;
      }
    }
  }

  // Products of 16 ranks of so many runs, from a slot on. They have all tokens' sums, and only what
  // they give for a run's own tokens is added.
  template <int kCount>
  __device__ void add(int first, int step, const char* slot, int place,
                      float (&all_sums)[kParts][kSums]) const {
    const int g = lane_ / 4, c = lane_ % 4;
    uint64_t tokens[kCount], all_tokens = 0;
    uint32_t all_rows[kCount][kParts][4];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const Run run = desk_.runs[first + n];
      const int ranks = run.ranks_at(step);
      tokens[n] = ranks > 0 ? run.tokens : 0;
      all_tokens |= tokens[n];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        uint32_t(&rows)[4] = all_rows[n][part];
        load_transposed(rows, shared_address(slot) + n * kSlotBytes<Tile> + offset_of(part));
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[i] &= kept(ranks - (2 * c + i / 2 * 8));
      }
    }
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      if ((all_tokens >> 8 * j & 0xff) == 0) continue;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int upper_part = parts_[part][0], lower_part = parts_[part][1];
        const uint32_t* upper = desk_.low[place][upper_part][8 * j + g] + c;
        const uint32_t* lower = desk_.low[place][lower_part][8 * j + g] + c;
        float added[kCount][4] = {};
        if (upper_part == lower_part) {
#pragma unroll
          for (int n = 0; n < kCount; ++n) {
            const uint32_t(&rows)[4] = all_rows[n][part];
            multiply_matrices<T>(added[n], rows[0], rows[1], rows[2], rows[3], upper[0], upper[4]);
          }
        } else {
#pragma unroll
          for (int n = 0; n < kCount; ++n) {
            const uint32_t(&rows)[4] = all_rows[n][part];
            multiply_matrices<T>(added[n], rows[0], 0, rows[2], 0, upper[0], upper[4]);
            multiply_matrices<T>(added[n], 0, rows[1], 0, rows[3], lower[0], lower[4]);
          }
        }
#pragma unroll
        for (int n = 0; n < kCount; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const bool own = tokens[n] >> (8 * j + 2 * c + i % 2) & 1;
            if (own) all_sums[part][4 * j + i] += added[n][i];
          }
        }
      }
    }
  }

  // Where in a slot this lane's row of four matrices is: 8 ranks and 8 of the warp's columns each,
  // the columns before the ranks. 64 bytes of a box are a row, swizzled as a tensor map does.
  __device__ int offset_of(int part) const {
    const int h = lane_ / 8 % 2, rank = lane_ / 16 * 8 + lane_ % 8;
    const int column = part * 64 + warp_ * 16 + h * 8;
    const bool gated = is_gated(problem_.epilogue);
    const int box = gated ? h * kParts + part : column / kBoxColumns;
    const int piece = gated ? warp_ : column % kBoxColumns / 8;
    return box * kBoxBytes + rank * kBoxColumns * 2 + (piece ^ (rank / 2 % 4)) * 16;
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
  int parts_[kParts][2];
  int turn_ = 0;
};

template <typename Tile> struct AdaptedShared {
  Ring<Tile> ring;
  Desk<Tile> desk;
};

constexpr int kAdaptedThreads = kThreads + kAdapterThreads;

template <typename T, typename Tile>
__global__ void __launch_bounds__(kAdaptedThreads, Tile::kRows == 64 ? 2 : 1)
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
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    Expander<T, Tile> expander(adapters, problem, ring, desk);
    Consumer<T, Tile>(problem, ring).run(first, end, expander);
  } else if (threadIdx.x == kConsumers) {
    producer.run();
  } else if (threadIdx.x >= kThreads) {
    Shrinker<T, Tile>(adapters, problem, desk).run(first, end);
  }
}

}  // namespace octavo::linear
