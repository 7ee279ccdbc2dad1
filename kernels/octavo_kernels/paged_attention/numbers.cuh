// Reading what the cache holds, and sums over a warp.
#pragma once

#include <type_traits>

#include "octavo.cuh"

namespace octavo::paged {

// Past L1, which one reader has no use for.
template <int kWords>
__device__ __forceinline__ void load(const void* p, uint32_t (&words)[kWords]) {
#if __CUDA_ARCH__ >= 800
#define OCTAVO_STREAM "ld.global.L1::no_allocate.L2::256B"
#else
#define OCTAVO_STREAM "ld.global.L1::no_allocate"
#endif
  const char* from = static_cast<const char*>(p);
  if constexpr (kWords == 2) {
    asm(OCTAVO_STREAM ".v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm(OCTAVO_STREAM ".v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
          : "l"(from + 4 * i));
    }
  }
#undef OCTAVO_STREAM
}

template <typename C, int kWords, int kCount>
__device__ __forceinline__ void unpack(const uint32_t (&words)[kWords], float (&x)[kCount]) {
  static_assert(kWords * 4 == kCount * sizeof(C));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (sizeof(C) == 4) {
      x[i] = __uint_as_float(words[i]);
    } else if constexpr (sizeof(C) == 1) {
      __nv_fp8x4_e4m3 four;
      four.__x = words[i];
      const float4 f = static_cast<float4>(four);
      x[4 * i] = f.x, x[4 * i + 1] = f.y, x[4 * i + 2] = f.z, x[4 * i + 3] = f.w;
    } else if constexpr (std::is_same_v<C, __nv_bfloat16>) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
  }
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
  return x;
}

// exp(x - maximum), 0 for a query that sees nothing yet.
__device__ __forceinline__ float exp_below(float x, float maximum) {
  return maximum == -INFINITY ? 0.f : __expf(x - maximum);
}

}  // namespace octavo::paged
