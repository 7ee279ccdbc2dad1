// A random choice as a race: each token's exponential noise over its weight, the least one wins.
#pragma once

#include "parameters.cuh"

namespace octavo::sample {

constexpr unsigned kMultiplierA = 0x7feb352d, kMultiplierB = 0x846ca68b, kGolden = 0x9e3779b9;

__device__ __forceinline__ unsigned mix(unsigned x) {
  x = (x ^ x >> 16) * kMultiplierA;
  x = (x ^ x >> 15) * kMultiplierB;
  return x ^ x >> 16;
}

// One thread's part of a row's race, and what its warp knows of the leader.
//
// A token's value is noise - score / temperature, in double precision: exact enough that the
// winner does not depend on how the row is divided. It is computed only for tokens that may beat
// the leader. As noise = log(-log(1 - u)) > log(u), most cannot, and a test of the hash, in single
// precision with room for its error, says so.
struct Race {
  static constexpr int kInFlight = 2;  // of a thread's loads: arithmetic is what takes its time
  unsigned first_key, second_key;
  float temperature, inverse_log2;  // log2(e) / temperature
  float leader_score, leader_noise_log2;
  double value;
  unsigned id;

  __device__ Race(const Parameters& p, int slot, unsigned position) {
    const unsigned low = p.seed[2 * slot], high = p.seed[2 * slot + 1];
    first_key = mix(mix(mix(low ^ kGolden) ^ high) ^ position);
    second_key = mix(mix(mix(high ^ kMultiplierB) ^ position) ^ low);
    temperature = p.temperature[slot];
    inverse_log2 = 1.44269504f / temperature;
    leader_score = -INFINITY;
    leader_noise_log2 = 0.0f;
    value = CUDART_INF;
    id = 0;
  }

  __device__ Choice choice() const { return {ordered(value), id}; }

  // All lanes of a warp together; a score of -inf takes no part.
  template <int kWidth> __device__ void add(const float (&scores)[kWidth], int first_id) {
    if (leader_score == -INFINITY) {  // the likeliest of each lane make a first leader
      float most = -INFINITY;
      unsigned candidate = 0;
#pragma unroll
      for (int j = 0; j < kWidth; j++) {
        if (scores[j] > most) {
          most = scores[j];
          candidate = 1u << j;
        }
      }
      if (!__any_sync(~0u, candidate != 0)) return;
      run(scores, first_id, candidate);
    }
    float most_log2[kWidth], most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kWidth; j++) {
      most_log2[j] = fmaf(scores[j] - leader_score, inverse_log2, leader_noise_log2);
      most = fmaxf(most, most_log2[j]);
    }
    // Not even a hash of 0, which stands for 0.5, can win: as for most tokens of a trained model.
    if (!__any_sync(~0u, most > -1.0f)) return;
    unsigned candidates = 0;
#pragma unroll
    for (int j = 0; j < kWidth; j++) {
      float most_hash;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(most_hash) : "f"(most_log2[j]));
      if (__uint2float_rn(hash(first_id + j)) < most_hash) candidates |= 1u << j;
    }
    while (__any_sync(~0u, candidates != 0)) {
      run(scores, first_id, candidates & -candidates);
      candidates &= candidates - 1;
    }
  }

 private:
  __device__ unsigned hash(unsigned token) const {
    unsigned x = (mix(token) ^ first_key) * kMultiplierA;
    x = ((x ^ x >> 15) ^ second_key) * kMultiplierB;
    return (x ^ x >> 16) & 0x7fffffff;
  }

  // Values of one token a lane, or of none but not in all lanes; the best may become the leader.
  template <int kWidth>
  __device__ void run(const float (&scores)[kWidth], int first_id, unsigned candidate) {
    float score = 0.0f;
    int j = 0;
#pragma unroll
    for (int k = 0; k < kWidth; k++) {
      if (candidate == 1u << k) {
        score = scores[k];
        j = k;
      }
    }
    constexpr float kToUnit = (1.0f - 0x1p-24f) * 0x1p-31f;  // as in noise.py
    const float unit = __fmul_rn(__fadd_rn(__uint2float_rn(hash(first_id + j)), 0.5f), kToUnit);
    const float noise = logf(-log1pf(-unit));
    double mine = CUDART_INF;
    if (candidate != 0) {
      mine = static_cast<double>(noise) - static_cast<double>(score) / temperature;
      const unsigned token = first_id + j;
      if (mine < value || (mine == value && token < id)) {
        value = mine;
        id = token;
      }
    }
    const float rough = static_cast<float>(mine);
    float least = rough;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      least = fminf(least, __shfl_xor_sync(~0u, least, step));
    }
    const int lane = max(__ffs(__ballot_sync(~0u, rough == least && candidate != 0)) - 1, 0);
    const float new_score = __shfl_sync(~0u, score, lane);
    const float new_noise = __shfl_sync(~0u, noise, lane);
    // 31: hashes stand for units times 2^31. 0.001 is far above the error of the test's terms.
    const float new_noise_log2 = fmaf(new_noise, 1.44269504f, 31.0f + 0.001f);
    if (new_noise_log2 < fmaf(new_score - leader_score, inverse_log2, leader_noise_log2)) {
      leader_score = new_score;
      leader_noise_log2 = new_noise_log2;
    }
  }
};

}  // namespace octavo::sample
