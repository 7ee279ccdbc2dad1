// The softmax over tiles of keys that come one after another.
#pragma once

#include "hopper.cuh"

namespace octavo::hopper {

constexpr float kLog2e = 1.44269504088896f;
// The maximum that scores are taken relative to lags behind by up to this much (a power of two):
// most tiles then leave the sums as they are. Probabilities stay below 2^8, in range for fp16.
constexpr float kLag = 8.f;

// The running softmax of a thread's two rows, of 64 that a warpgroup has. Of a tile's scores it has
// kScores: rows r and r + 8, with r = lane / 4 in its warp's 16; element 4 j + 2 h + e is row
// r + 8 h, key 8 j + 2 (lane % 4) + e. Sums are of the thread's own keys until the end.
struct Softmax {
  float max[2], sum[2], rescale[2];

  __device__ __forceinline__ void reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.f;
  }

  // Scores become probabilities; true if `rescale` is due to earlier sums.
  template <int kScores>
  __device__ __forceinline__ bool update(float (&s)[kScores], float scale) {
    float part[2], largest[2];
    find_largest(s, largest);
    const bool grew = grow(largest, scale);
    exponentiate(s, scale, part, largest, [&](int i, float low, float high) {
      s[2 * i] = low;
      s[2 * i + 1] = high;
    });
    add(part);
    return grew;
  }

  // The same, with the probabilities packed elsewhere. That no maximum grows past the lag is
  // presumed, and checked under the exponentials: 3 % faster, but scores must be kept.
  template <typename T, int kScores>
  __device__ __forceinline__ bool update(const float (&s)[kScores], float scale,
                                         uint32_t (&words)[kScores / 2]) {
    float part[2], largest[2];
    const auto emit = [&](int i, float low, float high) { words[i] = pack<T>(low, high); };
    exponentiate(s, scale, part, largest, emit);
    const bool grew = grow(largest, scale);
    if (grew) exponentiate(s, scale, part, largest, emit);
    add(part);
    return grew;
  }

  // Of the four lanes that share a row.
  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
  }

 private:
  // Of the thread's scores; in chains of half the row, for the instructions' latency.
  template <int kScores>
  __device__ __forceinline__ static void find_largest(const float (&s)[kScores],
                                                      float (&largest)[2]) {
    float chains[4];
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float larger = fmaxf(s[2 * i], s[2 * i + 1]);
      chains[i % 4] = i < 4 ? larger : fmaxf(chains[i % 4], larger);
    }
    largest[0] = fmaxf(chains[0], chains[2]);
    largest[1] = fmaxf(chains[1], chains[3]);
  }

  // Finds the largest scores on the way: in this order, so that the compiler mixes the two.
  template <int kScores, typename Emit>
  __device__ __forceinline__ void exponentiate(const float (&s)[kScores], float scale,
                                               float (&part)[2], float (&largest)[2],
                                               Emit emit) const {
    float offset[2], sums[4] = {0.f, 0.f, 0.f, 0.f}, chains[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[h] = max[h] == -INFINITY ? 0.f : max[h] * scale;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const float larger = fmaxf(s[2 * i], s[2 * i + 1]);
      chains[i % 4] = i < 4 ? larger : fmaxf(chains[i % 4], larger);
      const float low = exp2_fast(fmaf(s[2 * i], scale, -offset[i % 2]));
      const float high = exp2_fast(fmaf(s[2 * i + 1], scale, -offset[i % 2]));
      emit(i, low, high);
      sums[i % 2] += low;
      sums[2 + i % 2] += high;
    }
    part[0] = sums[0] + sums[2];
    part[1] = sums[1] + sums[3];
    largest[0] = fmaxf(chains[0], chains[2]);
    largest[1] = fmaxf(chains[1], chains[3]);
  }

  __device__ __forceinline__ void add(const float (&part)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = sum[h] * rescale[h] + part[h];
  }

  // Raises the maxima of rows that grow past the lag; true if there are any in the warp.
  __device__ __forceinline__ bool grow(float (&largest)[2], float scale) {
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      // Of two infinite maxima the difference is NaN: no growth.
      const float growth = (largest[h] - max[h]) * scale;
      const bool grows = growth > kLag;
      rescale[h] = grows ? exp2_fast(-growth) : 1.f;
      max[h] = grows ? largest[h] : max[h];
      any |= grows;
    }
    return __any_sync(~0u, any);
  }
};

}  // namespace octavo::hopper
