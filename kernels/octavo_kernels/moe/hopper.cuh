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

// Arrives when this thread's `copy_async`s have ended.
__device__ __forceinline__ void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// Waits until the phase of that parity has ended.
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- copies ----------------------------------------------------------------------------------

// How long the L2 keeps what is copied: values of createpolicy.fractional for all of an access.
constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1000000000000000;

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_tile(void* target, const CUtensorMap* map, uint64_t* barrier,
                                          uint64_t policy, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "r"(c4)
      : "memory");
}

// Copies 16 bytes, or writes 16 zeros.
__device__ __forceinline__ void copy_async(uint32_t target, const void* source, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(copies ? 16 : 0)
               : "memory");
}

// Between ordinary accesses to shared memory that this thread knows of and later ones by the tensor
// cores.
__device__ __forceinline__ void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- matrix products -------------------------------------------------------------------------

// Describes rows of 128 bytes, swizzled by 128 bytes, in shared memory aligned to 1024: groups of
// 8 rows lie 1024 bytes apart. Adding (bytes >> 4) to it moves along a row.
__device__ __forceinline__ uint64_t describe(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t(1) << 62, kGroupStride = uint64_t(1024 >> 4) << 32;
  return kSwizzle128 | kGroupStride | (uint64_t(1) << 16) | (address & 0x3FFFF) >> 4;
}

__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups run.
template <int kPending> __device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A point that the compiler moves no use of `values` across.
template <int kSize> __device__ __forceinline__ void pin(float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

#define OCTAVO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCTAVO_D16(i) OCTAVO_D4(i), OCTAVO_D4(i + 4), OCTAVO_D4(i + 8), OCTAVO_D4(i + 12)
#define OCTAVO_WGMMA(N, TYPE, REGISTERS, A, B, ...)                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE           \
               " {" REGISTERS "}, " A ", " B ", 1, 1, 1, 0, 0;"                         \
               : __VA_ARGS__                                                            \
               : "l"(a), "l"(b))
#define OCTAVO_WGMMA_SIZES(TYPE)                                                           \
  if constexpr (kN == 8) {                                                                 \
    OCTAVO_WGMMA("8", TYPE,                                                                \
                 "%0,%1,%2,%3",                                                            \
                 "%4", "%5", OCTAVO_D4(0));                                                \
  } else if constexpr (kN == 16) {                                                         \
    OCTAVO_WGMMA("16", TYPE,                                                               \
                 "%0,%1,%2,%3,%4,%5,%6,%7",                                                \
                 "%8", "%9", OCTAVO_D4(0), OCTAVO_D4(4));                                  \
  } else if constexpr (kN == 32) {                                                         \
    OCTAVO_WGMMA("32", TYPE,                                                               \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15",                  \
                 "%16", "%17", OCTAVO_D16(0));                                             \
  } else if constexpr (kN == 64) {                                                         \
    OCTAVO_WGMMA("64", TYPE,                                                               \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"\
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31",                                \
                 "%32", "%33", OCTAVO_D16(0), OCTAVO_D16(16));                             \
  } else {                                                                                 \
    static_assert(kN == 128);                                                              \
    OCTAVO_WGMMA("128", TYPE,                                                              \
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"\
                 "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,"\
                 "%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,"\
                 "%60,%61,%62,%63",                                                        \
                 "%64", "%65", OCTAVO_D16(0), OCTAVO_D16(16), OCTAVO_D16(32), OCTAVO_D16(48));\
  }

// d += A B^T for A [64, 16] and B [kN, 16] by their descriptors. Entry 4j + 2h + c of d is row
// 16 warp + 8 h + lane / 4, column 8 j + 2 (lane % 4) + c.
template <typename T, int kN>
__device__ __forceinline__ void multiply(float (&d)[kN / 2], uint64_t a, uint64_t b) {
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

// Stores an 8 x 8 matrix of 2-byte entries transposed: the warp's lane l gives row l / 4, columns
// 2 (l % 4) and the next, and lanes 0 to 7 where the matrix's columns go.
__device__ __forceinline__ void store_transposed(uint32_t target, uint32_t pair) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(target),
               "r"(pair)
               : "memory");
}

// Waits for `threads` threads, whole warps, that use the barrier of this id (1 to 15).
__device__ __forceinline__ void wait_for_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace octavo::hopper
