// What a softmax of prefill has besides: soft caps of scores and sinks.
#pragma once

#include "hopper_softmax.cuh"
#include "tiles.cuh"

namespace octavo::prefill {

__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a head's sink adds to the sum of a softmax with that maximum.
template <typename T>
__device__ __forceinline__ float sink_weight(const Params& p, int q_head, float max) {
  if (p.sinks == nullptr) return 0.f;
  const float sink = p.sinks_are_float ? static_cast<const float*>(p.sinks)[q_head]
                                       : to_float(static_cast<const T*>(p.sinks)[q_head]);
  return exp2_fast(sink * kLog2e - max);
}

// What a row's sums are multiplied by in the end.
template <typename T>
__device__ __forceinline__ float out_scale(const Params& p, int q_head, float2 softmax) {
  return __fdividef(p.out_scale, __fadd_rn(softmax.y, sink_weight<T>(p, q_head, softmax.x)));
}

}  // namespace octavo::prefill
