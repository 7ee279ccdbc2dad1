// Products of a warpgroup up to 256 columns wide, and what the blocks of a cluster do together.
#pragma once

#include "hopper.cuh"

namespace octavo::linear_mid {

using namespace octavo::hopper;

// ---- products -------------------------------------------------------------------------------

#define OCTAVO_D8(i)                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),      \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define OCTAVO_D16(i) OCTAVO_D8(i), OCTAVO_D8(i + 8)
#define OCTAVO_D32(i) OCTAVO_D16(i), OCTAVO_D16(i + 16)
#define OCTAVO_D64(i) OCTAVO_D32(i), OCTAVO_D32(i + 32)
#define OCTAVO_NAMES16                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define OCTAVO_NAMES24                                                                             \
  OCTAVO_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define OCTAVO_NAMES32                                                                             \
  OCTAVO_NAMES24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTAVO_NAMES40                                                                             \
  OCTAVO_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define OCTAVO_NAMES48                                                                             \
  OCTAVO_NAMES40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define OCTAVO_NAMES56                                                                             \
  OCTAVO_NAMES48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define OCTAVO_NAMES64                                                                             \
  OCTAVO_NAMES56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTAVO_NAMES72                                                                             \
  OCTAVO_NAMES64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define OCTAVO_NAMES80                                                                             \
  OCTAVO_NAMES72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define OCTAVO_NAMES88                                                                             \
  OCTAVO_NAMES80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define OCTAVO_NAMES96                                                                             \
  OCTAVO_NAMES88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define OCTAVO_NAMES104                                                                            \
  OCTAVO_NAMES96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define OCTAVO_NAMES112                                                                            \
  OCTAVO_NAMES104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define OCTAVO_NAMES128                                                                            \
  OCTAVO_NAMES112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, "     \
  "%124, %125, %126, %127"
#define OCTAVO_PRODUCT(N, TYPE, NAMES, A, B, KEEP, ...)                                            \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                             \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                      \
               " {" NAMES "}, " A ", " B ", keep, 1, 1, 0, 0;\n}"                                  \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(keep))
#define OCTAVO_PRODUCT_SIZES(TYPE)                                                                 \
  if constexpr (kSums == 16) {                                                                     \
    OCTAVO_PRODUCT("32", TYPE, OCTAVO_NAMES16, "%16", "%17", "%18", OCTAVO_D16(0));                \
  } else if constexpr (kSums == 24) {                                                              \
    OCTAVO_PRODUCT("48", TYPE, OCTAVO_NAMES24, "%24", "%25", "%26", OCTAVO_D16(0),                 \
                   OCTAVO_D8(16));                                                                 \
  } else if constexpr (kSums == 32) {                                                              \
    OCTAVO_PRODUCT("64", TYPE, OCTAVO_NAMES32, "%32", "%33", "%34", OCTAVO_D32(0));                \
  } else if constexpr (kSums == 40) {                                                              \
    OCTAVO_PRODUCT("80", TYPE, OCTAVO_NAMES40, "%40", "%41", "%42", OCTAVO_D32(0),                 \
                   OCTAVO_D8(32));                                                                 \
  } else if constexpr (kSums == 48) {                                                              \
    OCTAVO_PRODUCT("96", TYPE, OCTAVO_NAMES48, "%48", "%49", "%50", OCTAVO_D32(0),                 \
                   OCTAVO_D16(32));                                                                \
  } else if constexpr (kSums == 56) {                                                              \
    OCTAVO_PRODUCT("112", TYPE, OCTAVO_NAMES56, "%56", "%57", "%58", OCTAVO_D32(0),                \
                   OCTAVO_D16(32), OCTAVO_D8(48));                                                 \
  } else if constexpr (kSums == 64) {                                                              \
    OCTAVO_PRODUCT("128", TYPE, OCTAVO_NAMES64, "%64", "%65", "%66", OCTAVO_D64(0));               \
  } else if constexpr (kSums == 80) {                                                              \
    OCTAVO_PRODUCT("160", TYPE, OCTAVO_NAMES80, "%80", "%81", "%82", OCTAVO_D64(0),                \
                   OCTAVO_D16(64));                                                                \
  } else if constexpr (kSums == 112) {                                                             \
    OCTAVO_PRODUCT("224", TYPE, OCTAVO_NAMES112, "%112", "%113", "%114", OCTAVO_D64(0),            \
                   OCTAVO_D32(64), OCTAVO_D16(96));                                                \
  } else {                                                                                         \
    static_assert(kSums == 128);                                                                   \
    OCTAVO_PRODUCT("256", TYPE, OCTAVO_NAMES128, "%128", "%129", "%130", OCTAVO_D64(0),            \
                   OCTAVO_D64(64));                                                                \
  }

// As hopper::multiply: d = A B^T, or d += A B^T, for A [64, 16] and B [2 kSums, 16].
template <typename T, int kSums>
__device__ __forceinline__ void multiply_wide(float (&d)[kSums], uint64_t a, uint64_t b,
                                              bool adds) {
  const int keep = adds;
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_SIZES("f16")
  } else {
    OCTAVO_PRODUCT_SIZES("bf16")
  }
}

#undef OCTAVO_D8
#undef OCTAVO_D16
#undef OCTAVO_D32
#undef OCTAVO_D64
#undef OCTAVO_NAMES16
#undef OCTAVO_NAMES24
#undef OCTAVO_NAMES32
#undef OCTAVO_NAMES40
#undef OCTAVO_NAMES48
#undef OCTAVO_NAMES56
#undef OCTAVO_NAMES64
#undef OCTAVO_NAMES72
#undef OCTAVO_NAMES80
#undef OCTAVO_NAMES88
#undef OCTAVO_NAMES96
#undef OCTAVO_NAMES104
#undef OCTAVO_NAMES112
#undef OCTAVO_NAMES128
#undef OCTAVO_PRODUCT
#undef OCTAVO_PRODUCT_SIZES

// ---- clusters -------------------------------------------------------------------------------

// Waits until all threads of the cluster's blocks have come. Of what they wrote it tells nothing
// but published barriers: a release would wait for the L2, a microsecond.
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile(
      "barrier.cluster.arrive.relaxed;\n"
      "barrier.cluster.wait.acquire;" ::: "memory");
}

// Where in the cluster an address of this block's shared memory is in the block of that rank.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
}

// Stores 16 bytes in any block; a barrier there counts them.
__device__ __forceinline__ void store_in_cluster(uint32_t address, uint32_t barrier_in_cluster,
                                                 const float* values) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(address),
      "r"(barrier_in_cluster), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
      : "memory");
}

__device__ __forceinline__ float4 load_shared(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

}  // namespace octavo::linear_mid
