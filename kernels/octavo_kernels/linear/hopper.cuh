// Hopper's own instructions: mbarriers, copies by tensor map, matrix products of a warpgroup.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "octavo.cuh"

namespace octavo::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers -------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and lets the phase end only when that many bytes have been copied as well.
__device__ __forceinline__ void arrive_and_expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Waits until the phase of that parity has ended.
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// ---- copies by tensor map --------------------------------------------------------------------

// How long the L2 keeps what is copied: values of createpolicy.fractional for all of an access.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictLast = 0x14F0000000000000;

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_tile(void* target, const CUtensorMap* map, uint64_t* barrier,
                                          uint64_t policy, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1)
      : "memory");
}

__device__ __forceinline__ void copy_tile(void* target, const CUtensorMap* map, uint64_t* barrier,
                                          uint64_t policy, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// ---- matrix products -------------------------------------------------------------------------

// Describes rows of 128 bytes, swizzled by 128 bytes, in shared memory aligned to 1024: groups of
// 8 rows lie 1024 bytes apart. Adding (bytes >> 4) to it moves along a row.
__device__ __forceinline__ uint64_t describe(const void* tile) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62, kGroupStride = uint64_t(1024 >> 4) << 32;
  return kSwizzle128 | kGroupStride | (uint64_t(1) << 16) | (shared_address(tile) & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until only the last group of products may be unfinished.
__device__ __forceinline__ void wait_for_earlier_products() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// Keeps the compiler from moving uses of sums across this place.
template <int kSize> __device__ __forceinline__ void pin(float (&sums)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define OCTAVO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCTAVO_D16(i) OCTAVO_D4(i), OCTAVO_D4(i + 4), OCTAVO_D4(i + 8), OCTAVO_D4(i + 12)
#define OCTAVO_WGMMA(N, TYPE, REGISTERS, A, B, KEEP, ...)                               \
  asm volatile("{\n"                                                                    \
               ".reg .pred keep;\n"                                                     \
               "setp.ne.b32 keep, " KEEP ", 0;\n"                                       \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE           \
               " {" REGISTERS "}, " A ", " B ", keep, 1, 1, 0, 0;\n"                    \
               "}\n"                                                                    \
               : __VA_ARGS__                                                            \
               : "l"(a), "l"(b), "r"(keep))
#define OCTAVO_WGMMA_SIZES(TYPE)                                                            \
  if constexpr (kN == 8) {                                                                  \
    OCTAVO_WGMMA("8", TYPE, "%0,%1,%2,%3", "%4", "%5", "%6", OCTAVO_D4(0));                 \
  } else if constexpr (kN == 16) {                                                          \
    OCTAVO_WGMMA("16", TYPE, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", OCTAVO_D4(0),    \
                 OCTAVO_D4(4));                                                             \
  } else if constexpr (kN == 32) {                                                          \
    OCTAVO_WGMMA("32", TYPE, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15",       \
                 "%16", "%17", "%18", OCTAVO_D16(0));                                       \
  } else {                                                                                  \
    static_assert(kN == 64);                                                                \
    OCTAVO_WGMMA("64", TYPE,                                                                \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,"   \
                 "%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31",                         \
                 "%32", "%33", "%34", OCTAVO_D16(0), OCTAVO_D16(16));                       \
  }

// d = A B^T, or d += A B^T, for A [64, 16] and B [kN, 16] by their descriptors. Entry 4j + 2h + c
// of d is row 16 warp + 8 h + lane / 4, column 8 j + 2 (lane % 4) + c.
template <typename T, int kN>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], uint64_t a, uint64_t b, bool adds) {
  const int keep = adds;
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_WGMMA_SIZES("f16")
  } else {
    OCTAVO_WGMMA_SIZES("bf16")
  }
}

#undef OCTAVO_D4
#undef OCTAVO_D16
#undef OCTAVO_WGMMA
#undef OCTAVO_WGMMA_SIZES

// Transposes an 8 x 8 matrix of 2-byte entries that a warp holds: lane l has row l / 4, columns
// 2 (l % 4) and the next.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
}

}  // namespace octavo::hopper
