// Sums over the threads of a block.
#pragma once

#include "octavo.cuh"

namespace octavo {

constexpr int kMaxThreads = 1024;

// A warp's sums, in shared memory. Two sums of a block take rooms of their own.
using SumRoom = float[kMaxThreads / 32];

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

__device__ __forceinline__ float block_sum(float x, SumRoom &sums) {
  const int lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  x = warp_sum(x);
  if (num_warps == 1) return x;
  if (lane == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  // Every warp adds the sums up: cheaper than a second barrier.
  return warp_sum(lane < num_warps ? sums[lane] : 0.f);
}

}  // namespace octavo
