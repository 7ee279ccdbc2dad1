// The first of an adapter's products, by warps of their own while the weight streams in.
#pragma once

#include "adapters.cuh"

namespace octavo::linear {

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
// the inner axis, shared out among blocks; in a block, a warp takes a unit and up to eight tokens,
// and has its rows in a slot of shared memory before x comes. Where there are many units, a team of
// warps does so. Then brings the sums, as elements, to the block's tiles.
//
// While weights stream in, any way to memory takes some 2 us. So behind the kernel in front there
// are four and no more: x comes, sums go, one asks whether they are there, they come. They go as in
// `exchange.cuh`, without flags. All blocks run (see `collect`), and none waits for another before
// its own sums have gone.
template <typename T, typename Tile> class Shrinker {
 public:
  __device__ Shrinker(const Adapters& adapters, const Problem& problem, Desk<Tile>& desk)
      : a_(adapters), problem_(problem), desk_(desk), thread_(threadIdx.x - kThreads),
        warp_(thread_ / 32), lane_(thread_ % 32) {}

  // Fetches what can be before the previous kernel has ended, ahead of the weights.
  __device__ void start() {
    if (warp_ == 0 && a_.settled) listing_.fetch(a_, problem_.tokens);
  }

  // Lists the runs, and multiplies.
  __device__ void run() {
    if (warp_ == 0) {
      if (!a_.settled) {
        wait_for_previous();
        listing_.fetch(a_, problem_.tokens);
      }
      listing_.list(a_, desk_);
    }
    meet();
    multiply_units();
  }

  // Makes the room of the launch before zeros again.
  __device__ void sweep() const {
    for (int i = blockIdx.x * kThreadsHere + thread_; i < a_.stale_quads;
         i += gridDim.x * kThreadsHere) {
      put(a_.stale + i, make_uint4(0, 0, 0, 0));
    }
  }

  // Brings the sums of 16 ranks for a tile. The first time, who had no unit asks for nothing at
  // first: while others multiply, the instructions come, from afar too.
  __device__ void bring(const TileParts& parts, int step, int place) {
#pragma unroll 1
    for (; turns_ < 2; ++turns_) {
      if (turns_ > 0 || !had_units_) {
        bring_step(parts, step, place, turns_ == 0 ? 0 : desk_.splits);
      }
      if (turns_ == 0) wait_for_units();
      meet();
    }
    turns_ = 1;
  }

 private:
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kWarps = kAdapterWarps<Tile>, kThreadsHere = kAdapterThreads<Tile>;
  static constexpr int kStep = 32;  // inputs that a warp multiplies at once
  static constexpr int kSteps = kSlotInputs / kStep;

  __device__ static void meet() { wait_for_threads(kMeeting, kThreadsHere); }

  // Some of a run's rows, tokens and inputs; none: `sums` is not above 0. Of whole fours of ranks
  // there are sums, be there rows or not.
  struct Unit {
    const Run* run;
    int first_row, rows, sums, window, split, begin, end;

    // One of up to eight, or -1.
    __device__ int token(int index) const { return run->token(window, index); }
  };

  // Which of its team the warp is.
  __device__ int mate() const { return warp_ & ((1 << desk_.team_bits) - 1); }

  // Whole steps, so that a split's pieces of 8 inputs are all its own.
  __device__ int split_inputs() const {
    const int steps = (a_.features + kStep - 1) / kStep, splits = desk_.splits << desk_.team_bits;
    return divided(steps + splits - 1, splits) * kStep;
  }

  // Row groups last: where ranks differ, blocks shall still have equal shares.
  __device__ Unit unit_of(int index, int window) const {
    Unit unit;
    const int rest = divided(index, desk_.splits), group = divided(rest, desk_.num_runs);
    unit.split = index - rest * desk_.splits;
    unit.run = &desk_.runs[rest - group * desk_.num_runs];
    unit.first_row = group * kRankStep, unit.window = window;
    const Run& run = *unit.run;
    unit.rows = min(kRankStep, run.rank * a_.parts - unit.first_row);
    unit.sums = min(kRankStep, (run.rank + 3) / 4 * 4 * a_.parts - unit.first_row);
    const bool has_tokens = run.has_few() ? window == 0 : (run.tokens >> 8 * window & 0xff) != 0;
    if (!has_tokens) unit.sums = 0;
    unit.begin = ((unit.split << desk_.team_bits) + mate()) * split_inputs();
    unit.end = min(a_.features, unit.begin + split_inputs());
    return unit;
  }

  // The warp's share of the block's units.
  __device__ void multiply_units() {
    const int count = desk_.splits * desk_.num_runs * desk_.rank_steps * a_.parts;
    const int windows = desk_.any_many ? kTokens / 8 : 1, shift = __ffs(windows) - 1;
    const int teams = kWarps >> desk_.team_bits;
    bool announced = false;
#pragma unroll 1
    for (int i = warp_ >> desk_.team_bits;; i += teams) {
      const int index = blockIdx.x + (i >> shift) * gridDim.x;
      if (index >= count) break;
      const Unit unit = unit_of(index, i & (windows - 1));
      const int next = blockIdx.x + ((i + teams) >> shift) * gridDim.x;
      if (next < count && ((i + teams) & (windows - 1)) == 0) fetch_rows(unit_of(next, 0));
      if (unit.sums > 0) multiply(unit, announced);
    }
    announce(announced);
  }

  // The producer may go on with weights.
  __device__ void announce(bool& announced) {
    if (!announced && lane_ == 0) desk_.listed.arrive();
    announced = true;
  }

  // Both operands have the same places of the inner axis in a lane, 16 bytes each, so that their
  // order does not matter.
  __device__ void multiply(const Unit& unit, bool& announced) {
    const int g = lane_ / 4, c = lane_ % 4, token = unit.token(g);
    const T* x = static_cast<const T*>(a_.x) + token * a_.x_stride + c * 8;
    float sums[4] = {};
#pragma unroll 1
    for (int begin = unit.begin; begin < unit.end; begin += kSlotInputs) {
      __syncwarp();  // what was in the slot has been read
      copy_rows(unit, begin);
      announce(announced);
      wait_for_previous();
      Words values[kSteps];
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int input = begin + k * kStep;
        values[k] = load_words(x + input, token >= 0 && input + c * 8 < unit.end);
      }
      wait_copies<0>();
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        add_products(sums, *piece_of(g, 4 * k + c), *piece_of(g + 8, 4 * k + c), values[k]);
      }
    }
    had_units_ = true;
    announce(announced);  // without inputs
    wait_for_previous();  // without inputs: sums come behind the sweep, too
    if (desk_.team_bits != 0) add_shares(sums);
    const int first = desk_.team_bits == 0 ? 0 : mate(), end = desk_.team_bits == 0 ? 2 : first + 1;
#pragma unroll 1
    for (int half = first; half < min(end, 2); ++half) {
      store(unit, half, half == 0 ? sums[0] : sums[2], half == 0 ? sums[1] : sums[3]);
    }
  }

  // Of a team, the first two each add up the sums of eight rows.
  __device__ void add_shares(float (&sums)[4]) {
    auto& shares = desk_.shares[turn_];
    turn_ ^= 1;
    shares[warp_][0][lane_] = make_float2(sums[0], sums[1]);
    shares[warp_][1][lane_] = make_float2(sums[2], sums[3]);
    wait_for_threads(kTeams + (warp_ >> kTeamBits), 32 << kTeamBits);
    if (mate() >= 2) return;
    float2 sum = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < 1 << kTeamBits; ++i) {
      const float2 share = shares[warp_ - mate() + i][mate()][lane_];
      sum.x += share.x, sum.y += share.y;
    }
    sums[0] = sums[2] = sum.x, sums[1] = sums[3] = sum.y;
  }

  // Starts to bring the first of the rows to the L2.
  __device__ void fetch_rows(const Unit& unit) const {
    const int64_t first = int64_t(unit.run->first) * a_.parts + unit.first_row;
    if (lane_ < unit.rows && unit.begin < unit.end) {
      prefetch_bytes(static_cast<const T*>(a_.down) + (first + lane_) * a_.features + unit.begin,
                     min(unit.end - unit.begin, kSlotInputs) * 2);
    }
  }

  // Starts to copy the unit's rows from an input on into the warp's slot; the rest of them is on
  // its way to the L2 meanwhile. Past rows and inputs come zeros.
  __device__ void copy_rows(const Unit& unit, int begin) {
    const int64_t first = int64_t(unit.run->first) * a_.parts + unit.first_row;
    const T* rows = static_cast<const T*>(a_.down) + first * a_.features + begin;
    const int inputs = unit.end - begin, input = lane_ * 8;
#pragma unroll 4
    for (int row = 0; row < kRankStep; ++row) {
      copy_async(shared_address(piece_of(row, lane_)), rows + int64_t(row) * a_.features + input,
                 row < unit.rows && input < inputs);
    }
    commit_copies();
    if (begin == unit.begin && lane_ < unit.rows && inputs > kSlotInputs) {
      prefetch_bytes(rows + int64_t(lane_) * a_.features + kSlotInputs, (inputs - kSlotInputs) * 2);
    }
  }

  // 16 bytes of the slot. Of two rows the odd one lies 64 bytes further on, so that lanes that read
  // both meet in no bank.
  __device__ Words* piece_of(int row, int piece) const {
    return &desk_.slots[warp_].rows[row][piece ^ row % 2 * 4];
  }

  __device__ static void add_products(float (&sums)[4], const Words& upper, const Words& lower,
                                      const Words& tokens) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      multiply_matrices<T>(sums, upper.data[k], lower.data[k], upper.data[k + 1],
                           lower.data[k + 1], tokens.data[k], tokens.data[k + 1]);
    }
  }

  // Of row g or g + 8, those of two tokens.
  __device__ void store(const Unit& unit, int half, float left, float right) const {
    const int row = lane_ / 4 + half * 8, n = unit.first_row + row;
    if (row >= unit.sums) return;
    const int rank = divided(n, a_.parts), part = n - rank * a_.parts;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = unit.token(lane_ % 4 * 2 + i);
      if (token < 0) continue;
      uint32_t* target = a_.sums_of(unit.split * problem_.tokens + token, part) + rank;
      asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(target),
                   "r"(~__float_as_uint(i == 0 ? left : right))
                   : "memory");
    }
  }

  // A sum of a run and split.
  __device__ const uint4* watched(int unit) const {
    const int run = divided(unit, desk_.splits), split = unit - run * desk_.splits;
    const int token = __ffsll(desk_.runs[run].tokens) - 1;
    return reinterpret_cast<const uint4*>(a_.sums_of(split * problem_.tokens + token, 0));
  }

  // Asks for one sum of each run and split until it is there, not to ask for all in vain: for two
  // at once.
  __device__ void wait_for_units() const {
    const int count = desk_.splits * desk_.num_runs;
#pragma unroll 1
    for (int i = thread_; i < count; i += 2 * kThreadsHere) {
      const uint4 *one = watched(i), *other = watched(min(i + kThreadsHere, count - 1));
      while (true) {
        const uint32_t first = get(one).x, second = get(other).x;
        if (first != 0 && second != 0) break;
        __nanosleep(kPause);
      }
    }
  }

  // Where there are many splits, two threads share them.
  __device__ void bring_step(const TileParts& parts, int step, int place, int splits) {
    const int shift = desk_.splits > kHalfSplits;
#pragma unroll 1
    for (int i = thread_; i < parts.count * kTokens * 4 << shift; i += kThreadsHere) {
      const int four = i >> shift, half = i & shift;
      const int token = four / 4 % kTokens, part = four / 4 / kTokens;
      const int rank = step * kRankStep + four % 4 * 4;
      float4 sum = take(a_.sums_of(token, parts.first + part) + rank, half * kHalfSplits,
                        rank < desk_.rank_of[token] ? splits : 0);
      if (shift) {
        sum.x += __shfl_xor_sync(~0u, sum.x, 1), sum.y += __shfl_xor_sync(~0u, sum.y, 1);
        sum.z += __shfl_xor_sync(~0u, sum.z, 1), sum.w += __shfl_xor_sync(~0u, sum.w, 1);
      }
      if (half == 0) {
        uint32_t* low = desk_.low[place][part][token] + four % 4 * 2;
        low[0] = pack<T>(sum.x, sum.y), low[1] = pack<T>(sum.z, sum.w);
      }
    }
  }

  static constexpr int kHalfSplits = kMaxSplits / 2;
  static constexpr int kPause = 100;  // nanoseconds

  // Adds up four sums of the splits from `first` on, as soon as they are there.
  __device__ float4 take(const uint32_t* sums, int first, int splits) const {
    const uint4* source = reinterpret_cast<const uint4*>(sums);
    const int64_t stride = int64_t(problem_.tokens) * a_.parts * a_.max_rank / 4;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    uint4 quads[kHalfSplits];
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int i = 0; i < kHalfSplits; ++i) {
        quads[i] = make_uint4(~0u, ~0u, ~0u, ~0u);  // zeros
        if (first + i < splits) quads[i] = get(source + (first + i) * stride);
        there = there && quads[i].x != 0 && quads[i].y != 0 && quads[i].z != 0 && quads[i].w != 0;
      }
      if (!there) __nanosleep(kPause);
    }
#pragma unroll
    for (int i = 0; i < kHalfSplits; ++i) {
      sum.x += __uint_as_float(~quads[i].x), sum.y += __uint_as_float(~quads[i].y);
      sum.z += __uint_as_float(~quads[i].z), sum.w += __uint_as_float(~quads[i].w);
    }
    return sum;
  }

  const Adapters& a_;
  const Problem& problem_;
  Desk<Tile>& desk_;
  const int thread_, warp_, lane_;
  int turns_ = 0;  // of bringing: the first is but a rehearsal
  int turn_ = 0;   // of a team's units
  bool had_units_ = false;
  Listing<Tile> listing_;
};

}  // namespace octavo::linear
