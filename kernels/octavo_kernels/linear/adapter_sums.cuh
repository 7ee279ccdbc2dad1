// The first of an adapter's products, by warps of their own while the weight streams in.
#pragma once

#include "adapters.cuh"

namespace octavo::linear {

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
//
// While weights stream in, any way to memory takes some 2 us. So there are three of them and no
// more: x comes, sums go, sums come. They go as in `exchange.cuh`, without flags. All blocks run
// (see `collect`), and none waits for another before its own sums have gone.
template <typename T, typename Tile> class Shrinker {
 public:
  __device__ Shrinker(const Adapters& adapters, const Problem& problem, Desk<Tile>& desk)
      : a_(adapters), problem_(problem), desk_(desk), thread_(threadIdx.x - kThreads),
        warp_(thread_ / 32), lane_(thread_ % 32) {}

  // Fetches what can be before the previous kernel has ended, ahead of the weights.
  __device__ void start() {
    if (warp_ == 0 && a_.settled) listing_.fetch(a_, problem_.tokens);
  }

  // For the block's chunks from `first` to `end`.
  __device__ void run(int first, int end) {
    if (warp_ == 0) {
      if (!a_.settled) {
        wait_for_previous();
        listing_.fetch(a_, problem_.tokens);
      }
      listing_.list(a_, desk_);
    }
    meet();
    multiply_units();
    wait_for_previous();
    if (desk_.num_runs == 0) return;
    for (int i = blockIdx.x * kAdapterThreads<Tile> + thread_; i < a_.stale_quads;
         i += gridDim.x * kAdapterThreads<Tile>) {
      put(a_.stale + i, make_uint4(0, 0, 0, 0));
    }
    const int first_tile = (first + problem_.chunks - 1) / problem_.chunks;
    prefetch_up(first_tile, end);
    bring_sums(first_tile, end);
  }

 private:
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kWarps = kAdapterWarps<Tile>, kThreadsHere = kAdapterThreads<Tile>;
  static constexpr int kUnitRows = 16;
  static constexpr int kStep = 32;  // inputs that a warp takes at once
  static constexpr int kRound = kWarps * kStep;
  static constexpr int kEights = 4;  // of tokens, in a unit of a run that has many
  static constexpr int kAtOnce = 3;  // units of runs that have few

  __device__ static void meet() { wait_for_threads(1, kThreadsHere); }

  // Some of a run's rows and some of the inputs; none: `rows` is not above 0.
  struct Unit {
    const Run* run;
    int first_row, rows, split, begin, end;
    int first_token;  // of up to 32, if the run has many
  };

  // Whole steps, so that a split's pieces of 8 inputs are all its own.
  __device__ int split_inputs() const {
    const int steps = (a_.features + kStep - 1) / kStep;
    return (steps + a_.splits - 1) / a_.splits * kStep;
  }

  __device__ int num_units() const {
    const int most_rows = desk_.rank_steps * kRankStep * a_.parts;
    return a_.splits * kHalves<Tile> * desk_.num_runs * ((most_rows + kUnitRows - 1) / kUnitRows);
  }

  // Row groups last: where ranks differ, blocks shall still have equal shares.
  __device__ Unit unit_of(int index) const {
    Unit unit;
    unit.split = index % a_.splits, index /= a_.splits;
    unit.first_token = index % kHalves<Tile> * 32, index /= kHalves<Tile>;
    unit.run = &desk_.runs[index % desk_.num_runs];
    unit.first_row = index / desk_.num_runs * kUnitRows;
    unit.rows = min(kUnitRows, unit.run->rank * a_.parts - unit.first_row);
    if (unit.first_token > 0 &&
        (unit.run->has_few() || unit.run->tokens >> unit.first_token == 0)) {
      unit.rows = 0;
    }
    unit.begin = unit.split * split_inputs();
    unit.end = min(a_.features, unit.begin + split_inputs());
    return unit;
  }

  __device__ const T* rows_of(const Unit& unit) const {
    const int64_t first = int64_t(unit.run->first) * a_.parts + unit.first_row;
    return static_cast<const T*>(a_.down) + first * a_.features;
  }

  // Has memory bring the rows of all of the block's units, ahead of the weights that come behind.
  __device__ void prefetch_units(int count) {
    for (int i = thread_;; i += kThreadsHere) {
      const int index = blockIdx.x + i / kUnitRows * gridDim.x, row = i % kUnitRows;
      if (index >= count) return;
      const Unit unit = unit_of(index);
      if (row < unit.rows && unit.begin < unit.end) {
        prefetch_bytes(rows_of(unit) + int64_t(row) * a_.features + unit.begin,
                       (unit.end - unit.begin) * 2);
      }
    }
  }

  __device__ void multiply_units() {
    const int count = num_units();
    bool announced = false;
    const auto announce = [&] {
      if (!announced && thread_ == 0) desk_.listed.arrive();
      announced = true;
    };
    prefetch_units(count);
#pragma unroll 1
    for (int index = blockIdx.x; index < count; index += kAtOnce * gridDim.x) {
      if (desk_.any_few) multiply_few(index, count, announce);
      if (!desk_.any_many) continue;
#pragma unroll 1
      for (int each = index; each < min(count, index + kAtOnce * static_cast<int>(gridDim.x));
           each += gridDim.x) {
        const Unit unit = unit_of(each);
        if (unit.rows > 0 && !unit.run->has_few()) multiply_many(unit, announce);
      }
    }
    announce();
  }

  // The warp's share of some units' inputs at once, of runs with up to 8 tokens each. Both operands
  // have the same places of the inner axis in a lane, 16 bytes each, so that their order does not
  // matter.
  template <typename Announce>
  __device__ void multiply_few(int index, int count, const Announce& announce) {
    const int g = lane_ / 4, c = lane_ % 4, inputs = split_inputs();
    const T *down[kAtOnce], *x[kAtOnce];
    int rows[kAtOnce], inputs_left[kAtOnce];
    unsigned few = 0, has_token = 0;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int each = index + k * gridDim.x;
      const Unit unit = unit_of(min(each, count - 1));
      const bool takes = each < count && unit.run->has_few();
      const int token = unit.run->token(g);
      down[k] = rows_of(unit) + int64_t(g) * a_.features + unit.begin;
      x[k] = static_cast<const T*>(a_.x) + token * a_.x_stride + unit.begin;
      rows[k] = takes ? unit.rows : 0, inputs_left[k] = unit.end - unit.begin;
      few |= unsigned(rows[k] > 0) << k, has_token |= unsigned(rows[k] > 0 && token >= 0) << k;
    }
    if (few == 0) return;
    float sums[4][4] = {};
#pragma unroll 1
    for (int offset = warp_ * kStep; offset < inputs; offset += kRound) {
      Words upper[kAtOnce], lower[kAtOnce], tokens[kAtOnce];
      const int input = offset + c * 8;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const bool there = input < inputs_left[k];
        upper[k] = load_words(down[k] + input, there && g < rows[k]);
        lower[k] = load_words(down[k] + 8 * int64_t(a_.features) + input, there && g + 8 < rows[k]);
      }
      announce();
      wait_for_previous();
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        tokens[k] = load_words(x[k] + input, input < inputs_left[k] && has_token >> k & 1);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) add_products(sums[k], upper[k], lower[k], tokens[k]);
    }
    announce();
    const float4 sum = combined(sums);
    if (few >> warp_ & 1) {
      const Unit unit = unit_of(index + warp_ * gridDim.x);
      store(unit, sum, unit.run->token(2 * c), unit.run->token(2 * c + 1));
    }
  }

  // The same of one unit, for up to 32 tokens.
  template <typename Announce>
  __device__ void multiply_many(const Unit& unit, const Announce& announce) {
    const int g = lane_ / 4, c = lane_ % 4;
    const uint32_t tokens = static_cast<uint32_t>(unit.run->tokens >> unit.first_token);
    const T* down = rows_of(unit) + int64_t(g) * a_.features;
    const T* x = static_cast<const T*>(a_.x) + (unit.first_token + g) * a_.x_stride;
    float sums[kEights][4] = {};
#pragma unroll 1
    for (int input = unit.begin + warp_ * kStep + c * 8; input < unit.end + c * 8;
         input += kRound) {
      const Words upper = load_words(down + input, input < unit.end && g < unit.rows);
      const Words lower = load_words(down + 8 * int64_t(a_.features) + input,
                                     input < unit.end && g + 8 < unit.rows);
      announce();
      wait_for_previous();
      Words values[kEights];
#pragma unroll
      for (int j = 0; j < kEights; ++j) {
        values[j] = load_words(x + 8 * j * a_.x_stride + input,
                               input < unit.end && tokens >> (8 * j + g) & 1);
      }
#pragma unroll
      for (int j = 0; j < kEights; ++j) add_products(sums[j], upper, lower, values[j]);
    }
    announce();
    wait_for_previous();  // a split may have no inputs: its sums come behind the sweep, too
    const float4 sum = combined(sums);
    if (warp_ < kEights) {
      const int slot = 8 * warp_ + 2 * c, token = unit.first_token + slot;
      store(unit, sum, tokens >> slot & 1 ? token : -1, tokens >> (slot + 1) & 1 ? token + 1 : -1);
    }
  }

  __device__ static void add_products(float (&sums)[4], const Words& upper, const Words& lower,
                                      const Words& tokens) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      multiply_matrices<T>(sums, upper.data[k], lower.data[k], upper.data[k + 1],
                           lower.data[k + 1], tokens.data[k], tokens.data[k + 1]);
    }
  }

  // Of the sums that all warps have, each of the first warps gets its own four, added up.
  __device__ float4 combined(const float (&sums)[4][4]) {
    constexpr int kHalf = kWarps / 2;
    const auto four = [&](int j) {
      return make_float4(sums[j][0], sums[j][1], sums[j][2], sums[j][3]);
    };
    meet();  // those before have been read
    if (warp_ >= kHalf) {
#pragma unroll
      for (int j = 0; j < 4; ++j) desk_.partial[warp_ - kHalf][j][lane_] = four(j);
    }
    meet();
    if (warp_ < kHalf) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float4& partial = desk_.partial[warp_][j][lane_];
        partial = sum_of(four(j), partial);
      }
    }
    meet();
    float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
    if (warp_ < 4) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) total = sum_of(total, desk_.partial[i][warp_][lane_]);
    }
    return total;
  }

  __device__ static float4 sum_of(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }

  // Of rows g and g + 8, those of two tokens; of none if it is -1.
  __device__ void store(const Unit& unit, const float4& sum, int left, int right) {
    const float sums[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_ / 4 + half * 8, n = unit.first_row + row;
      if (row >= unit.rows) continue;
      const int part = n % a_.parts, rank = n / a_.parts;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = i == 0 ? left : right;
        if (token < 0) continue;
        uint32_t* target = a_.sums_of(unit.split * problem_.tokens + token, part) + rank;
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(target),
                     "r"(~__float_as_uint(sums[half][i]))
                     : "memory");
      }
    }
  }

  // Has memory bring `up` of the block's tiles: its rows' pieces are short, and memory is slow at
  // them, for which the ring shall not wait.
  __device__ void prefetch_up(int tile, int end) {
    constexpr int kLine = 64;               // elements
    constexpr int kMostFetched = 16 << 20;  // of them: what the L2 has room for
    const bool gated = is_gated(problem_.epilogue);
    const int columns = gated ? Tile::kRows / 2 : Tile::kRows;
    const int row_size = a_.part_ends[a_.parts - 1];
    const T* up = static_cast<const T*>(a_.up);
    const int lines = (columns + kLine - 1) / kLine * (gated ? 2 : 1);
    const int each = desk_.rank_steps * kRankStep * lines;
    if (int64_t(desk_.num_runs) * desk_.rank_steps * kRankStep * row_size > kMostFetched) return;
    for (; tile * problem_.chunks < end; ++tile) {
      for (int i = thread_; i < desk_.num_runs * each; i += kThreadsHere) {
        const Run& run = desk_.runs[i / each];
        const int rank = i % each / lines, line = i % each % lines;
        const int column = tile * columns + (gated ? line * problem_.out_features : line * kLine);
        if (rank < run.rank && column < row_size) {
          prefetch_line(up + int64_t(run.first + rank) * row_size + column);
        }
      }
    }
  }

  // Tile by tile, 16 ranks at a time, as consumers want them. Two threads share the splits.
  __device__ void bring_sums(int tile, int end) {
    if (thread_ == 0) {  // asks for one sum, not to ask for all in vain
      const Run& run = desk_.runs[0];
      const uint32_t* watched = a_.sums_of(
          blockIdx.x % a_.splits * problem_.tokens + __ffsll(run.tokens) - 1, 0);
      while (get(reinterpret_cast<const uint4*>(watched)).x == 0) __nanosleep(kPause);
    }
    meet();  // and `partial` has been read
    int turn = 0;
    TileParts before(a_, problem_, tile * Tile::kRows, Tile::kRows);
    for (; tile * problem_.chunks < end; ++tile) {
      const TileParts parts(a_, problem_, tile * Tile::kRows, Tile::kRows);
      if (turn > 0 && desk_.keeps_sums(before, parts)) continue;
      before = parts;
      for (int step = 0; step < desk_.rank_steps; ++step, ++turn) {
        const int place = turn % 2;
        if (turn >= 2) desk_.emptied[place].wait_phase(turn / 2 - 1);
        for (int i = thread_; i < parts.count * kTokens * 8; i += kThreadsHere) {
          const int part = i / 8 / kTokens, token = i / 8 % kTokens, four = i / 2 % 4, half = i % 2;
          const int rank = step * kRankStep + four * 4, left = desk_.rank_of[token] - rank;
          float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
          if (left > 0) {
            sum = take(a_.sums_of(token, parts.first + part) + rank, half * kHalfSplits, left);
          }
          sum.x += __shfl_xor_sync(~0u, sum.x, 1), sum.y += __shfl_xor_sync(~0u, sum.y, 1);
          sum.z += __shfl_xor_sync(~0u, sum.z, 1), sum.w += __shfl_xor_sync(~0u, sum.w, 1);
          if (half == 0) {
            uint32_t* low = desk_.low[place][part][token] + four * 2;
            low[0] = pack<T>(sum.x, sum.y), low[1] = pack<T>(sum.z, sum.w);
          }
        }
        desk_.filled[place].arrive();
      }
    }
  }

  static constexpr int kHalfSplits = kMaxSplits / 2;
  static constexpr int kPause = 100;  // nanoseconds

  // Adds up four sums, or how many are left, of the splits from `first` on, as soon as they are
  // there.
  __device__ float4 take(const uint32_t* sums, int first, int left) const {
    const uint4* source = reinterpret_cast<const uint4*>(sums);
    const int64_t stride = int64_t(problem_.tokens) * a_.parts * a_.max_rank / 4;
    const int count = min(a_.splits - first, kHalfSplits);
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    if (count <= 0) return sum;
    uint4 quads[kHalfSplits];
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int i = 0; i < kHalfSplits; ++i) {
        quads[i] = i < count ? get(source + (first + i) * stride) : make_uint4(~0u, ~0u, ~0u, ~0u);
        there = there && quads[i].x != 0 && (left <= 1 || quads[i].y != 0) &&
                (left <= 2 || quads[i].z != 0) && (left <= 3 || quads[i].w != 0);
      }
      if (!there) __nanosleep(kPause);
    }
#pragma unroll
    for (int i = 0; i < kHalfSplits; ++i) {
      sum.x += __uint_as_float(~quads[i].x);
      sum.y += left > 1 ? __uint_as_float(~quads[i].y) : 0.f;
      sum.z += left > 2 ? __uint_as_float(~quads[i].z) : 0.f;
      sum.w += left > 3 ? __uint_as_float(~quads[i].w) : 0.f;
    }
    return sum;
  }

  const Adapters& a_;
  const Problem& problem_;
  Desk<Tile>& desk_;
  const int thread_, warp_, lane_;
  Listing<Tile> listing_;
};

}  // namespace octavo::linear
