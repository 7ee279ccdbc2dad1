// Products of a warp's small matrices, on GPUs since Ampere.
#pragma once

#include <type_traits>

#include "octavo.cuh"

namespace octavo {

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

}  // namespace octavo
