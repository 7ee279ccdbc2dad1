// Sums over the threads of a block.
#pragma once

#include "octavo.cuh"

namespace octavo {

constexpr int kMaxThreads = 1024;

constexpr int kMostParts = 4;
// A warp's sums, in shared memory. Two sums of a block take rooms of their own.
using SumRoom = float[kMaxThreads / 32 * kMostParts / 2];

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// The i-th part of a thread is added as if it were that of the thread i blocks further on: where 32
// warps suffice for all parts, the sum is, to the bit, that of so many threads of one part each.
template <int kParts> __device__ __forceinline__ float block_sum(float (&x)[kParts], SumRoom &sums) {
  static_assert(kParts <= kMostParts);
  const int lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    x[i] = warp_sum(x[i]);
    if (kParts == 1 && num_warps == 1) return x[0];
    if (lane == 0) sums[i * num_warps + threadIdx.x / 32] = x[i];
  }
  __syncthreads();
  // Every warp adds the sums up: cheaper than a second barrier.
  float own = 0.f;
#pragma unroll
  for (int i = 0; i < (kParts + 1) / 2; ++i) {
    const int at = 32 * i + lane;
    if (at < kParts * num_warps) own += sums[at];
  }
  return warp_sum(own);
}

__device__ __forceinline__ float block_sum(float x, SumRoom &sums) {
  float parts[1] = {x};
  return block_sum(parts, sums);
}

}  // namespace octavo
