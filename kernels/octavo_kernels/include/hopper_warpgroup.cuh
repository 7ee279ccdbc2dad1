// Products of a warpgroup by the tensor cores, and its registers.
#pragma once

#include <type_traits>

#include "octavo.cuh"

namespace octavo::hopper {

// Registers, given back and taken by a whole warpgroup.
template <int kRegisters> __device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters> __device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Describes a matrix in shared memory, in atoms of 8 rows x 128 bytes as a tensor map swizzles
// them, each aligned to 1024 bytes. `stride_bytes` is the step between atoms along the rows' axis,
// `leading_bytes` that along the other, which counts only where sums run over the rows' axis. To
// move along an atom's rows, add bytes / 16 to the descriptor or bytes to the address.
__device__ __forceinline__ uint64_t describe(uint32_t address, int leading_bytes = 16,
                                             int stride_bytes = 1024) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62;
  return kSwizzle128 | uint64_t(stride_bytes >> 4) << 32 | uint64_t(leading_bytes >> 4) << 16 |
         (address & 0x3FFFF) >> 4;
}

// Products see registers as written before this.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups of products are unfinished.
template <int kPending> __device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A point that the compiler moves no use of `values` across, in either direction.
template <int kSize> __device__ __forceinline__ void pin(float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

template <int kSize> __device__ __forceinline__ void pin(uint32_t (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Of products 2 kSums columns wide: a thread's sums as operands, their names, and all sizes in use.
#define OCTAVO_SUMS4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCTAVO_SUMS8(i) OCTAVO_SUMS4(i), OCTAVO_SUMS4(i + 4)
#define OCTAVO_SUMS16(i) OCTAVO_SUMS8(i), OCTAVO_SUMS8(i + 8)
#define OCTAVO_SUMS32(i) OCTAVO_SUMS16(i), OCTAVO_SUMS16(i + 16)
#define OCTAVO_SUMS64(i) OCTAVO_SUMS32(i), OCTAVO_SUMS32(i + 32)
#define OCTAVO_NAMES4 "%0, %1, %2, %3"
#define OCTAVO_NAMES8 OCTAVO_NAMES4 ", %4, %5, %6, %7"
#define OCTAVO_NAMES16 OCTAVO_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define OCTAVO_NAMES24 OCTAVO_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OCTAVO_NAMES32 OCTAVO_NAMES24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTAVO_NAMES40 OCTAVO_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OCTAVO_NAMES48 OCTAVO_NAMES40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OCTAVO_NAMES56 OCTAVO_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OCTAVO_NAMES64 OCTAVO_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTAVO_NAMES80                                                                             \
  OCTAVO_NAMES64                                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define OCTAVO_NAMES96                                                                             \
  OCTAVO_NAMES80                                                                                   \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OCTAVO_NAMES112                                                                            \
  OCTAVO_NAMES96                                                                                   \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110"         \
  ", %111"
#define OCTAVO_NAMES128                                                                            \
  OCTAVO_NAMES112                                                                                  \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125"           \
  ", %126, %127"
#define OCTAVO_PRODUCT(N, TYPE, NAMES, A, B, KEEP, ...)                                            \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                             \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                      \
               " {" NAMES "}, " A ", " B ", keep, 1, 1, 0, 0;\n}"                                  \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(keep))
#define OCTAVO_PRODUCT_SIZES(TYPE)                                                                 \
  if constexpr (kSums == 4) {                                                                      \
    OCTAVO_PRODUCT("8", TYPE, OCTAVO_NAMES4, "%4", "%5", "%6", OCTAVO_SUMS4(0));                   \
  } else if constexpr (kSums == 8) {                                                               \
    OCTAVO_PRODUCT("16", TYPE, OCTAVO_NAMES8, "%8", "%9", "%10", OCTAVO_SUMS8(0));                 \
  } else if constexpr (kSums == 16) {                                                              \
    OCTAVO_PRODUCT("32", TYPE, OCTAVO_NAMES16, "%16", "%17", "%18", OCTAVO_SUMS16(0));             \
  } else if constexpr (kSums == 24) {                                                              \
    OCTAVO_PRODUCT("48", TYPE, OCTAVO_NAMES24, "%24", "%25", "%26", OCTAVO_SUMS16(0),              \
                   OCTAVO_SUMS8(16));                                                              \
  } else if constexpr (kSums == 32) {                                                              \
    OCTAVO_PRODUCT("64", TYPE, OCTAVO_NAMES32, "%32", "%33", "%34", OCTAVO_SUMS32(0));             \
  } else if constexpr (kSums == 40) {                                                              \
    OCTAVO_PRODUCT("80", TYPE, OCTAVO_NAMES40, "%40", "%41", "%42", OCTAVO_SUMS32(0),              \
                   OCTAVO_SUMS8(32));                                                              \
  } else if constexpr (kSums == 48) {                                                              \
    OCTAVO_PRODUCT("96", TYPE, OCTAVO_NAMES48, "%48", "%49", "%50", OCTAVO_SUMS32(0),              \
                   OCTAVO_SUMS16(32));                                                             \
  } else if constexpr (kSums == 56) {                                                              \
    OCTAVO_PRODUCT("112", TYPE, OCTAVO_NAMES56, "%56", "%57", "%58", OCTAVO_SUMS32(0),             \
                   OCTAVO_SUMS16(32), OCTAVO_SUMS8(48));                                           \
  } else if constexpr (kSums == 64) {                                                              \
    OCTAVO_PRODUCT("128", TYPE, OCTAVO_NAMES64, "%64", "%65", "%66", OCTAVO_SUMS64(0));            \
  } else if constexpr (kSums == 80) {                                                              \
    OCTAVO_PRODUCT("160", TYPE, OCTAVO_NAMES80, "%80", "%81", "%82", OCTAVO_SUMS64(0),             \
                   OCTAVO_SUMS16(64));                                                             \
  } else if constexpr (kSums == 96) {                                                              \
    OCTAVO_PRODUCT("192", TYPE, OCTAVO_NAMES96, "%96", "%97", "%98", OCTAVO_SUMS64(0),             \
                   OCTAVO_SUMS32(64));                                                             \
  } else if constexpr (kSums == 112) {                                                             \
    OCTAVO_PRODUCT("224", TYPE, OCTAVO_NAMES112, "%112", "%113", "%114", OCTAVO_SUMS64(0),         \
                   OCTAVO_SUMS32(64), OCTAVO_SUMS16(96));                                          \
  } else {                                                                                         \
    static_assert(kSums == 128);                                                                   \
    OCTAVO_PRODUCT("256", TYPE, OCTAVO_NAMES128, "%128", "%129", "%130", OCTAVO_SUMS64(0),         \
                   OCTAVO_SUMS64(64));                                                             \
  }

// d = A B^T, or d += A B^T, for A [64, 16] and B [2 kSums, 16] by their descriptors, the 16 along
// the atoms' rows. Entry 4 j + 2 h + c of d is row 16 warp + 8 h + lane / 4, column
// 8 j + 2 (lane % 4) + c.
template <typename T, int kSums>
__device__ __forceinline__ void multiply(float (&d)[kSums], uint64_t a, uint64_t b, bool adds) {
  const int keep = adds;
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_SIZES("f16")
  } else {
    OCTAVO_PRODUCT_SIZES("bf16")
  }
}

#undef OCTAVO_PRODUCT
#undef OCTAVO_PRODUCT_SIZES
#define OCTAVO_PRODUCT(N, TYPE, NAMES, A, B, ...)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                      \
               " {" NAMES "}, {" A "}, " B ", 1, 1, 1, 1;"                                         \
               : __VA_ARGS__                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define OCTAVO_PRODUCT_SIZES(TYPE)                                                                 \
  if constexpr (kSums == 32) {                                                                     \
    OCTAVO_PRODUCT("64", TYPE, OCTAVO_NAMES32, "%32, %33, %34, %35", "%36", OCTAVO_SUMS32(0));     \
  } else if constexpr (kSums == 40) {                                                              \
    OCTAVO_PRODUCT("80", TYPE, OCTAVO_NAMES40, "%40, %41, %42, %43", "%44", OCTAVO_SUMS32(0),      \
                   OCTAVO_SUMS8(32));                                                              \
  } else if constexpr (kSums == 48) {                                                              \
    OCTAVO_PRODUCT("96", TYPE, OCTAVO_NAMES48, "%48, %49, %50, %51", "%52", OCTAVO_SUMS32(0),      \
                   OCTAVO_SUMS16(32));                                                             \
  } else {                                                                                         \
    static_assert(kSums == 64);                                                                    \
    OCTAVO_PRODUCT("128", TYPE, OCTAVO_NAMES64, "%64, %65, %66, %67", "%68", OCTAVO_SUMS64(0));    \
  }

// d += A B for A [64, 16] in four words, its entries placed as d's, and B [16, 2 kSums] by its
// descriptor, the 16 across the atoms' rows.
template <typename T, int kSums>
__device__ __forceinline__ void multiply_registers(float (&d)[kSums], const uint32_t* a,
                                                   uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_SIZES("f16")
  } else {
    OCTAVO_PRODUCT_SIZES("bf16")
  }
}

#undef OCTAVO_SUMS4
#undef OCTAVO_SUMS8
#undef OCTAVO_SUMS16
#undef OCTAVO_SUMS32
#undef OCTAVO_SUMS64
#undef OCTAVO_NAMES4
#undef OCTAVO_NAMES8
#undef OCTAVO_NAMES16
#undef OCTAVO_NAMES24
#undef OCTAVO_NAMES32
#undef OCTAVO_NAMES40
#undef OCTAVO_NAMES48
#undef OCTAVO_NAMES56
#undef OCTAVO_NAMES64
#undef OCTAVO_NAMES80
#undef OCTAVO_NAMES96
#undef OCTAVO_NAMES112
#undef OCTAVO_NAMES128
#undef OCTAVO_PRODUCT
#undef OCTAVO_PRODUCT_SIZES

}  // namespace octavo::hopper
