// How what several warps found of one segment becomes one output.
//
// A partial result has, for each query head of a segment, the weighted sum of values, then the
// maximum and the sum of the weights. The warps of a team's block leave theirs in shared memory;
// the team's blocks then send one another, each to each, their sums of what the other finishes.
// Between shared memories: through global memory a row of 1024 tokens took 6.9 us, not 4.4.
//
// Warps of the line send theirs through global memory, where each word says itself whether it is
// there: words that are not hold kNothing, to which the reader puts them back. So a result takes
// one write and one read; a counter with its fences took 1 us more.
#pragma once

#include "fragments.cuh"

namespace octavo::decode {

constexpr uint32_t kNothing = 0xffffffffu;  // a NaN that no instruction makes
constexpr float kLowest = -3e38f;           // below all maxima, but with differences

template <typename S> struct Partial {
  static constexpr int kQuads = S::kDim / 4;  // of a head
  // Four floats more than a head has, so that lanes write different banks of shared memory.
  static constexpr int kHeadFloats = S::kDim + 4;
  static constexpr int kFloats = 8 * S::kHeadTiles * kHeadFloats;
};

// Weights and weighted values of one lane's heads, as its fragments hold them.
template <typename S> struct State {
  float max[S::kHeadTiles][2];  // base-2 logarithms
  float sum[S::kHeadTiles][2];
  float outputs[S::kSteps][S::kHeadTiles][4];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[n][h] = -INFINITY;
        sum[n][h] = 0.0f;
      }
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int j = 0; j < 4; ++j) outputs[step][n][j] = 0.0f;
      }
    }
  }

  // While a segment lasts each lane sums for itself.
  __device__ __forceinline__ void join_sums() {
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[n][h] = over_rows(sum[n][h], [](float x, float y) { return x + y; });
      }
    }
  }
};

__device__ __forceinline__ uint32_t word_of(float x) {
  const uint32_t word = __float_as_uint(x);
  return word == kNothing ? 0x7fffffff : word;
}
__device__ __forceinline__ void put(float* target, float x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(target), "r"(word_of(x)) : "memory");
}

template <int kWords> struct Words {
  uint32_t word[kWords];
  __device__ __forceinline__ bool are_there() const {
    bool result = true;
#pragma unroll
    for (int i = 0; i < kWords; ++i) result = result && word[i] != kNothing;
    return result;
  }
};

__device__ __forceinline__ void look(Words<4>& words, const float* source) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
               : "l"(source)
               : "memory");
}
__device__ __forceinline__ void look(Words<2>& words, const float* source) {
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(words.word[0]), "=r"(words.word[1])
               : "l"(source)
               : "memory");
}

// To shared memory, or by put to global memory.
template <typename S, bool kShared>
__device__ __forceinline__ void write_partial(float* partial, int group, const State<S>& state) {
  const auto write = [](float* target, float x) {
    if constexpr (kShared) *target = x;
    else put(target, x);
  };
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int member = n * 8 + lane % 4 * 2 + h;
      if (member >= group) continue;
      float* const values = partial + member * Partial<S>::kHeadFloats;
      float* const own = values + (S::kFloat8 ? lane / 4 * 2 : lane / 4);
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        write(own + step * 16, state.outputs[step][n][h]);
        write(own + step * 16 + (S::kFloat8 ? 1 : 8), state.outputs[step][n][h + 2]);
      }
      if (lane < 4) {
        write(values + S::kDim, state.max[n][h]);
        write(values + S::kDim + 1, state.sum[n][h]);
      }
    }
  }
}

template <typename T>
__device__ __forceinline__ float sink_of(const Arguments& arguments, int head) {
  return arguments.at.sinks_are_float ? static_cast<const float*>(arguments.sinks)[head]
                                      : to_float(static_cast<const T*>(arguments.sinks)[head]);
}

// What turns a weighted sum of values into the output of a head.
template <typename T>
__device__ __forceinline__ float normaliser(const Arguments& arguments, int head, float max,
                                            float sum) {
  if (arguments.sinks != nullptr) {
    sum += exp2_fast(sink_of<T>(arguments, head) * kLog2E - max);
  }
  return __fdividef(arguments.v_scale, sum);
}

// A segment that one warp has seen whole: divides by the sums and writes.
template <typename S>
__device__ __forceinline__ void store_outputs(const Arguments& arguments, int row, int head,
                                              const State<S>& state) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32, group = arguments.at.group;
#pragma unroll
  for (int n = 0; n < S::kHeadTiles; ++n) {
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int member = min(n * 8 + lane % 4 * 2 + h, group - 1);
      factor[h] =
          normaliser<T>(arguments, head * group + member, state.max[n][h], state.sum[n][h]);
    }
    const int member = n * 8 + lane / 4;
    T* const out = static_cast<T*>(arguments.out) + row * arguments.at.out_stride +
                   (head * group + member) * S::kDim;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const auto& o = state.outputs[step][n];
      const uint32_t low = transpose(pack<T>(o[0] * factor[0], o[1] * factor[1]));
      const uint32_t high = transpose(pack<T>(o[2] * factor[0], o[3] * factor[1]));
      if (member >= group) continue;
      T* const entries = out + step * 16;
      if constexpr (S::kFloat8) {
        const uint2 four = {__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632)};
        *reinterpret_cast<uint2*>(entries + lane % 4 * 4) = four;
      } else {
        *reinterpret_cast<uint32_t*>(entries + lane % 4 * 2) = low;
        *reinterpret_cast<uint32_t*>(entries + lane % 4 * 2 + 8) = high;
      }
    }
  }
}

// Four entries of one head, of all parts that have been added.
struct Quad {
  float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
  float max = kLowest, sum = 0.0f;

  // In their order; a part that has seen no token has a sum of 0.
  template <int kCount>
  __device__ __forceinline__ void add(const float4 (&values)[kCount],
                                      const float2 (&totals)[kCount]) {
    float new_max = max;
#pragma unroll
    for (int i = 0; i < kCount; ++i) new_max = fmaxf(new_max, totals[i].x);
    const float factor = exp2_fast(max - new_max);
    max = new_max;
    sum *= factor;
    value = {value.x * factor, value.y * factor, value.z * factor, value.w * factor};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float weight = exp2_fast(totals[i].x - new_max);
      sum += totals[i].y * weight;
      value.x += values[i].x * weight;
      value.y += values[i].y * weight;
      value.z += values[i].z * weight;
      value.w += values[i].w * weight;
    }
  }
};

// ``index`` counts the quads of a segment's heads.
template <typename S>
__device__ __forceinline__ void store_quad(const Arguments& arguments, int row, int kv_head,
                                           int index, const Quad& quad) {
  using T = typename S::T;
  constexpr int kQuads = Partial<S>::kQuads;
  const int head = kv_head * arguments.at.group + index / kQuads;
  const float factor = normaliser<T>(arguments, head, quad.max, quad.sum);
  const float4& value = quad.value;
  const uint2 four = {pack<T>(value.x * factor, value.y * factor),
                      pack<T>(value.z * factor, value.w * factor)};
  T* const out = static_cast<T*>(arguments.out) + row * arguments.at.out_stride;
  *reinterpret_cast<uint2*>(out + head * S::kDim + index % kQuads * 4) = four;
}

// Where a block's team leaves what it is to finish: of each block, some quads' values, then, after
// all blocks', their totals.
template <typename S> class Exchange {
 public:
  __device__ __forceinline__ Exchange(const Arguments& arguments, uint8_t* shared)
      : team_(arguments.at.team), quads_each_(arguments.at.group * Partial<S>::kQuads / team_),
        values_(reinterpret_cast<float4*>(shared)),
        totals_(reinterpret_cast<float2*>(values_ + quads_each_ * team_)) {}

  static int bytes(int group) {
    return group * Partial<S>::kQuads * static_cast<int>(sizeof(float4) + sizeof(float2));
  }

  __device__ __forceinline__ int quads_each() const { return quads_each_; }

  // To the block that finishes the quad ``index``.
  __device__ __forceinline__ void send(int from, int index, const Quad& quad) const {
    const int to = index / quads_each_, at = from * quads_each_ + index - to * quads_each_;
    store_remote(values_ + at, to, quad.value);
    store_remote(totals_ + at, to, make_float2(quad.max, quad.sum));
  }

  // What the blocks sent of the ``index``-th quad that this one finishes.
  __device__ __forceinline__ Quad sum(int index) const {
    constexpr int kAtOnce = 8;
    Quad quad;
#pragma unroll 1
    for (int first = 0; first < team_; first += kAtOnce) {
      float4 values[kAtOnce];
      float2 totals[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = (first + i) * quads_each_ + index;
        values[i] = {0.0f, 0.0f, 0.0f, 0.0f};
        totals[i] = {-INFINITY, 0.0f};
        if (first + i < team_) values[i] = values_[at], totals[i] = totals_[at];
      }
      quad.add(values, totals);
    }
    return quad;
  }

 private:
  int team_, quads_each_;
  float4* values_;
  float2* totals_;
};

// Of a team's block, whose warps have their partial results in ``own``, ``stride`` floats apart.
template <typename S>
__device__ __forceinline__ void merge_team(const Arguments& arguments, int row, int head, int rank,
                                           const float* own, int stride, uint8_t* received) {
  constexpr int kQuads = Partial<S>::kQuads, kHeadFloats = Partial<S>::kHeadFloats;
  const Exchange<S> exchange(arguments, received);
  const bool is_alone = arguments.at.team == 1;
  if (!is_alone) wait_cluster();  // until the others have begun
  for (int i = threadIdx.x; i < arguments.at.group * kQuads; i += S::kThreads) {
    float4 values[S::kWarps];
    float2 totals[S::kWarps];
#pragma unroll
    for (int warp = 0; warp < S::kWarps; ++warp) {
      const float* const partial = own + warp * stride + i / kQuads * kHeadFloats;
      values[warp] = *reinterpret_cast<const float4*>(partial + i % kQuads * 4);
      totals[warp] = *reinterpret_cast<const float2*>(partial + S::kDim);
    }
    Quad quad;
    quad.add(values, totals);
    if (is_alone) store_quad<S>(arguments, row, head, i, quad);
    else exchange.send(rank, i, quad);
  }
  if (is_alone) return;
  arrive_cluster();
  wait_cluster();
  for (int i = threadIdx.x; i < exchange.quads_each(); i += S::kThreads) {
    store_quad<S>(arguments, row, head, rank * exchange.quads_each() + i, exchange.sum(i));
  }
}

// Of a warp of the line that has a segment's first part in ``own``: joins it with what the warps
// after it found, up to ``last_worker``.
template <typename S>
__device__ __forceinline__ void merge_line(const Arguments& arguments, int row, int head,
                                           const float* own, int worker, int last_worker) {
  constexpr int kItems = 4, kAtOnce = 2;
  constexpr int kQuads = Partial<S>::kQuads, kHeadFloats = Partial<S>::kHeadFloats;
  const int lane = threadIdx.x % 32, num_quads = arguments.at.group * kQuads;
  for (int first = lane; first - lane < num_quads; first += 32 * kItems) {
    Quad quads[kItems];
    int at[kItems], totals_at[kItems];  // in a partial result; -1 past the group
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int index = first + j * 32, member = index / kQuads;
      at[j] = index < num_quads ? member * kHeadFloats + index % kQuads * 4 : -1;
      totals_at[j] = member * kHeadFloats + S::kDim;
      if (at[j] < 0) continue;
      const float4 values[1] = {*reinterpret_cast<const float4*>(own + at[j])};
      const float2 totals[1] = {*reinterpret_cast<const float2*>(own + totals_at[j])};
      quads[j].add(values, totals);
    }
    for (int next = worker + 1; next <= last_worker; next += kAtOnce) {
      float* sources[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const long long from = next + i;
        sources[i] = from > last_worker ? nullptr : arguments.partials + from * Partial<S>::kFloats;
      }
      Words<4> values[kItems][kAtOnce];
      Words<2> totals[kItems][kAtOnce];
      bool is_waiting;
      do {
        is_waiting = false;
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            values[j][i] = {};
            totals[j][i] = {__float_as_uint(-INFINITY), 0};
            if (at[j] < 0 || sources[i] == nullptr) continue;
            look(values[j][i], sources[i] + at[j]);
            look(totals[j][i], sources[i] + totals_at[j]);
          }
        }
#pragma unroll
        for (int j = 0; j < kItems; ++j) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            is_waiting |= !values[j][i].are_there() || !totals[j][i].are_there();
          }
        }
        // Together, because lanes share the totals that are put back.
      } while (__any_sync(kAllLanes, is_waiting));
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (at[j] < 0) continue;
        float4 found[kAtOnce];
        float2 found_totals[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const auto& word = values[j][i].word;
          found[i] = {__uint_as_float(word[0]), __uint_as_float(word[1]),
                      __uint_as_float(word[2]), __uint_as_float(word[3])};
          found_totals[i] = {__uint_as_float(totals[j][i].word[0]),
                             __uint_as_float(totals[j][i].word[1])};
          if (sources[i] == nullptr) continue;
          *reinterpret_cast<uint4*>(sources[i] + at[j]) = {kNothing, kNothing, kNothing,
                                                           kNothing};
          if (totals_at[j] - at[j] != S::kDim) continue;
          *reinterpret_cast<uint2*>(sources[i] + totals_at[j]) = {kNothing, kNothing};
        }
        quads[j].add(found, found_totals);
      }
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (at[j] >= 0) store_quad<S>(arguments, row, head, first + j * 32, quads[j]);
    }
  }
}

}  // namespace octavo::decode
