// What kernels for Hopper share: its instructions as functions, by topic, and tensor maps on the
// host. Here, what a warp does by itself.
#pragma once

#include <type_traits>

#include "hopper_barriers.cuh"
#include "hopper_clusters.cuh"
#include "hopper_copies.cuh"
#include "hopper_warpgroup.cuh"
#include "matrices.cuh"

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

// The two elements of a word, the one in its low half first.
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
