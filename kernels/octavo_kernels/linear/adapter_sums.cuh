// The first of an adapter's products, by warps of their own while the weight streams in.
#pragma once

#include "adapters.cuh"

namespace octavo::linear {

// Of launches, how far their blocks are. Each adds kTurn in all, so that nobody need ever clear it:
// whoever has added waits until the multiple of kTurn has changed. Kernels of one stream use it in
// turn: they add after `wait_for_previous`.
__device__ uint32_t arrivals;
constexpr uint32_t kTurn = 256;

__device__ __forceinline__ uint32_t load_acquired(const uint32_t* source) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
  return value;
}

// 8 elements, by pairs.
struct alignas(16) Words {
  uint32_t data[4];
};

// What lies there, or zeros. The compiler leaves such loads in their order: else it starts all at
// once, and has no registers for that.
__device__ __forceinline__ Words load_words(const void* source, bool there) {
  Words words;
  asm volatile(
      "{\n.reg .pred there;\n"
      "setp.ne.b32 there, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@there ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(words.data[0]), "=&r"(words.data[1]), "=&r"(words.data[2]), "=&r"(words.data[3])
      : "l"(source), "r"(int(there))
      : "memory");
  return words;
}

// Multiplies x by the rank rows of its tokens' adapters: units of 16 of a run's rows and a split of
// the inner axis, shared out among blocks. Then brings the sums, as elements, to the block's tiles.
// No block waits for another before all of its units are done, and all blocks run (see `collect`).
template <typename T, typename Tile> class Shrinker {
 public:
  __device__ Shrinker(const Adapters& adapters, const Problem& problem, Desk<Tile>& desk)
      : a_(adapters), problem_(problem), desk_(desk), thread_(threadIdx.x - kThreads),
        warp_(thread_ / 32), lane_(thread_ % 32) {}

  // For the block's chunks from `first` to `end`.
  __device__ void run(int first, int end) {
    if (!a_.settled) wait_for_previous();
    if (warp_ == 0) desk_.list(a_, problem_.tokens);
    meet();
    if (thread_ == 0) desk_.listed.arrive();
    if (desk_.num_runs > 0) {
      prefetch_units();
      multiply_units();
      wait_for_previous();
      const uint32_t turn = arrive();
      const int first_tile = (first + problem_.chunks - 1) / problem_.chunks;
      if (first_tile * problem_.chunks < end) {
        wait_for_all(turn);
        bring_sums(first_tile, end);
      }
    }
  }

 private:
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kEights = kTokens / 8;
  static constexpr int kUnitRows = 16;
  static constexpr int kStep = 32;  // inputs that a warp takes at once
  static constexpr int kRound = kAdapterWarps * kStep;
  static constexpr int kUnroll = kTokens > 32 ? 2 : 3;  // rounds under way of rows
  static constexpr int kBatch = kTokens > 32 ? 1 : 3;   // and of x

  __device__ static void meet() { wait_for_threads(1, kAdapterThreads); }

  // Some of a run's rows and some of the inputs; none: `rows` is not above 0.
  struct Unit {
    Run run;
    int first_row, rows, split, begin, end;
  };

  __device__ int num_units() const {
    const int most = desk_.rank_steps * kRankStep * a_.parts;  // at least a run's rows
    return a_.splits * desk_.num_runs * ((most + kUnitRows - 1) / kUnitRows);
  }

  // Row groups last: where ranks differ, blocks shall still have equal shares.
  __device__ Unit unit_of(int index) const {
    // Whole steps, so that a split's pieces of 8 inputs are all its own.
    const int steps = (a_.features + kStep - 1) / kStep;
    const int split_inputs = (steps + a_.splits - 1) / a_.splits * kStep;
    Unit unit;
    unit.split = index % a_.splits, index /= a_.splits;
    unit.run = desk_.runs[index % desk_.num_runs];
    unit.first_row = index / desk_.num_runs * kUnitRows;
    unit.rows = min(kUnitRows, unit.run.rank * a_.parts - unit.first_row);
    unit.begin = unit.split * split_inputs;
    unit.end = min(a_.features, unit.begin + split_inputs);
    return unit;
  }

  __device__ const T* row_of(const Unit& unit, int row) const {
    const int64_t first = int64_t(unit.run.first) * a_.parts + unit.first_row;
    return static_cast<const T*>(a_.down) + (first + row) * a_.features;
  }

  // Has memory bring the rows of all of the block's units, before it is their turn.
  __device__ void prefetch_units() {
    for (int i = thread_;; i += kAdapterThreads) {
      const int index = blockIdx.x + i / kUnitRows * gridDim.x, row = i % kUnitRows;
      if (index >= num_units()) return;
      const Unit unit = unit_of(index);
      if (row < unit.rows && unit.begin < unit.end) {
        prefetch_bytes(row_of(unit, row) + unit.begin, (unit.end - unit.begin) * 2);
      }
    }
  }

  __device__ void multiply_units() {
    for (int index = blockIdx.x; index < num_units(); index += gridDim.x) {
      const Unit unit = unit_of(index);
      if (unit.rows <= 0) continue;
      float sums[kEights][4] = {};
      multiply_rows(unit, sums);
      meet();  // the unit before has been read
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        desk_.partial[warp_][j][lane_] =
            make_float4(sums[j][0], sums[j][1], sums[j][2], sums[j][3]);
      }
      meet();
      store(unit);
    }
  }

  // The warp's share of some inputs. Both operands have the same places of the inner axis in a
  // lane, 16 bytes each, so that their order does not matter.
  __device__ void multiply_rows(const Unit& unit, float (&sums)[kEights][4]) {
    const int g = lane_ / 4, c = lane_ % 4, rows = unit.rows, end = unit.end;
    const Run run = unit.run;
    const T* down = row_of(unit, g);
    const int x_stride = static_cast<int>(a_.x_stride);
    const T* x = static_cast<const T*>(a_.x) + g * x_stride;
    for (int base = unit.begin + warp_ * kStep; base < end; base += kUnroll * kRound) {
      const auto input = [&](int i) { return base + i * kRound + c * 8; };
      Words upper[kUnroll], lower[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        upper[i] = load_words(down + input(i), input(i) < end && g < rows);
        lower[i] = load_words(down + 8 * a_.features + input(i),
                              input(i) < end && g + 8 < rows);
      }
      wait_for_previous();
#pragma unroll
      for (int batch = 0; batch < kUnroll; batch += kBatch) {
        Words tokens[kBatch][kEights];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
#pragma unroll
          for (int j = 0; j < kEights; ++j) {
            tokens[i][j] = load_words(x + 8 * j * x_stride + input(batch + i),
                                      input(batch + i) < end && run.has(8 * j + g));
          }
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const uint32_t *up = upper[batch + i].data, *low = lower[batch + i].data;
#pragma unroll
          for (int j = 0; j < kEights; ++j) {
            if (!run.has_any(j)) continue;
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
              multiply_matrices<T>(sums[j], up[k], low[k], up[k + 1], low[k + 1],
                                   tokens[i][j].data[k], tokens[i][j].data[k + 1]);
            }
          }
        }
      }
    }
  }

  // Adds up what the warps have.
  __device__ void store(const Unit& unit) {
    const int g = lane_ / 4, c = lane_ % 4;
    for (int j = warp_; j < kEights; j += kAdapterWarps) {
      float sums[4] = {};
#pragma unroll
      for (int warp = 0; warp < kAdapterWarps; ++warp) {
        const float4 partial = desk_.partial[warp][j][lane_];
        sums[0] += partial.x, sums[1] += partial.y, sums[2] += partial.z, sums[3] += partial.w;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * j + 2 * c + i % 2, row = g + i / 2 * 8, n = unit.first_row + row;
        if (row >= unit.rows || !unit.run.has(token)) continue;
        a_.sums_of(unit.split * problem_.tokens + token, n % a_.parts)[n / a_.parts] = sums[i];
      }
    }
  }

  // Returns what `wait_for_all` takes of the first thread.
  __device__ uint32_t arrive() {
    meet();
    if (thread_ != 0) return 0;
    __threadfence();
    return atomicAdd(&arrivals, blockIdx.x == 0 ? kTurn + 1 - gridDim.x : 1) / kTurn;
  }

  __device__ void wait_for_all(uint32_t turn) {
    if (thread_ == 0) {
      while (load_acquired(&arrivals) / kTurn == turn) {
      }
    }
    meet();
  }

  // Tile by tile, 16 ranks at a time, as consumers want them.
  __device__ void bring_sums(int tile, int end) {
    const int64_t split_stride = int64_t(problem_.tokens) * a_.parts * a_.max_rank;
    int turn = 0;
    for (; tile * problem_.chunks < end; ++tile) {
      const TileParts parts(a_, problem_, tile * Tile::kRows, Tile::kRows);
      for (int step = 0; step < desk_.rank_steps; ++step, ++turn) {
        const int place = turn % 2;
        if (turn >= 2) desk_.emptied[place].wait_phase(turn / 2 - 1);
        for (int i = thread_; i < parts.count * kTokens * 4; i += kAdapterThreads) {
          const int part = i / 4 / kTokens, token = i / 4 % kTokens, four = i % 4;
          const int rank = step * kRankStep + four * 4, left = desk_.rank_of[token] - rank;
          float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
          if (left > 0) {
            const float* sums = a_.sums_of(token, parts.first + part) + rank;
#pragma unroll 8
            for (int split = 0; split < a_.splits; ++split) {
              const float4 partial =
                  __ldcg(reinterpret_cast<const float4*>(sums + split * split_stride));
              sum.x += partial.x, sum.y += partial.y, sum.z += partial.z, sum.w += partial.w;
            }
          }
          // Past the rank there is anything.
          uint32_t* low = desk_.low[place][part][token] + four * 2;
          low[0] = pack<T>(sum.x, left > 1 ? sum.y : 0.f);
          low[1] = pack<T>(left > 2 ? sum.z : 0.f, left > 3 ? sum.w : 0.f);
        }
        desk_.filled[place].arrive();
      }
    }
  }

  const Adapters& a_;
  const Problem& problem_;
  Desk<Tile>& desk_;
  const int thread_, warp_, lane_;
};

}  // namespace octavo::linear
