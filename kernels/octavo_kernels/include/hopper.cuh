// What kernels for Hopper share: its instructions as functions, by topic, and tensor maps on the
// host. Here, what a warp does by itself.
#pragma once

#include <type_traits>

#include "hopper_barriers.cuh"
#include "hopper_clusters.cuh"
#include "hopper_copies.cuh"
#include "hopper_warpgroup.cuh"

namespace octavo::hopper {

// ---- matrices of a warp ---------------------------------------------------------------------

// Transposes an 8 x 8 matrix of 16-bit entries: before and after, lane 4 r + c holds entries
// (r, 2 c) and (r, 2 c + 1).
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

// Stores an 8 x 8 matrix of 16-bit entries transposed, whose entries lanes have as above; lane c of
// the first eight gives the address of column c.
__device__ __forceinline__ void store_transposed(uint32_t target, uint32_t pair) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(target),
               "r"(pair)
               : "memory");
}

// Stores four of them as they are; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices(uint32_t target, const uint32_t (&pairs)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(target),
               "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
               : "memory");
}

// Loads four, each transposed as above; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_transposed(uint32_t (&pairs)[4], uint32_t source) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(source)
               : "memory");
}

// sums (16 x 8) += a (16 x 16) b (16 x 8). With lane = 4 g + c: `sums` are (g, 2c), (g, 2c + 1),
// (g + 8, 2c), (g + 8, 2c + 1); `a` has, along its second axis, the pairs from (g, 2c),
// (g + 8, 2c), (g, 2c + 8) and (g + 8, 2c + 8) on; `b`, along its first, those from
// (2c, g) and (2c + 8, g) on.
template <typename T>
__device__ __forceinline__ void multiply_matrices(float (&sums)[4], uint32_t a0, uint32_t a1,
                                                  uint32_t a2, uint32_t a3, uint32_t b0,
                                                  uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Loads 16 bytes.
__device__ __forceinline__ float4 load_shared(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// ---- numbers --------------------------------------------------------------------------------

// Two floats as elements in one word, the first in its low half.
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

// And back.
template <typename T> __device__ __forceinline__ float2 unpack(uint32_t word) {
  union {
    uint32_t word;
    T values[2];
  } pair = {word};
  return make_float2(to_float(pair.values[0]), to_float(pair.values[1]));
}

__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace octavo::hopper
