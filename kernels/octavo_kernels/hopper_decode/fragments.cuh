// The instructions of one warp that decoding is made of: copies into shared memory, matrix
// fragments out of it, and products of fragments.
#pragma once

#include <type_traits>

#include "hopper.cuh"
#include "split.cuh"

namespace octavo::decode {

using namespace octavo::hopper;

constexpr float kLog2E = 1.4426950408889634f;

// 16 bytes, not through the L1.
__device__ __forceinline__ void copy_async(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(source)
               : "memory");
}

// The same, or zeros: what lies outside a sequence may be NaN, and 0 * NaN is NaN.
__device__ __forceinline__ void copy_async(uint32_t target, const void* source, bool is_wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(is_wanted ? 16 : 0)
               : "memory");
}

// Where another block of the cluster has what ``mine`` is of this one's shared memory.
__device__ __forceinline__ uint32_t address_at(const void* mine, int rank) {
  uint32_t result;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(result)
               : "r"(shared_address(mine)), "r"(rank));
  return result;
}

__device__ __forceinline__ void store_remote(const float4* mine, int rank, const float4& x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address_at(mine, rank)),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

__device__ __forceinline__ void store_remote(const float2* mine, int rank, const float2& x) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address_at(mine, rank)),
               "f"(x.x), "f"(x.y)
               : "memory");
}

template <bool kTranspose>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

// c (16 x 8) += a (16 x 16) * b (16 x 8).
template <typename T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

// Two of them as fp16, which holds each e4m3 value.
__device__ __forceinline__ uint32_t widen_float8(uint32_t pair) {
  uint32_t result;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(static_cast<uint16_t>(pair)));
  return result;
}

// tanh.approx is off by 2^-11, which a cap of 50 makes a logit error of 0.02; this by 2^-22.
__device__ __forceinline__ float tanh_fast(float x) {
  return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(2.0f * kLog2E * x));
}

// Where a byte of a tile is kept: eight rows of a matrix lie in different 16-byte columns.
template <int kTokenBytes> __device__ __forceinline__ int swizzle(int byte) {
  constexpr int kShift = kTokenBytes >= 512 ? 9 : kTokenBytes == 256 ? 8 : 7;
  return byte ^ (((byte >> kShift) & 7) << 4);
}

// Over the eight lanes that hold the same columns of a product.
template <typename Reduce> __device__ __forceinline__ float over_rows(float x, Reduce reduce) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = reduce(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

}  // namespace octavo::decode
