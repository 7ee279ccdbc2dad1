// More of Hopper's instructions: for pairs of blocks that share what they read, for stores by the
// copy engine, and the widest products.
#pragma once

#include "hopper.cuh"

namespace octavo::hopper {

// ---- clusters of blocks -----------------------------------------------------------------------

__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void wait_for_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Arrives at this barrier of the block of that rank. It is not a release at cluster scope, which
// costs a fence of global memory; reads by the tensor cores have ended without it.
__device__ __forceinline__ void arrive_at(Barrier& barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(shared_address(&barrier)),
      "r"(rank)
      : "memory");
}

// As copy_tile of two axes, but to the same place of each block whose bit is set in `ranks`; each
// one's barrier counts.
__device__ __forceinline__ void copy_tile_to(uint16_t ranks, uint32_t target,
                                             const CUtensorMap& map, Barrier& barrier, int c0,
                                             int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(target),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "h"(ranks)
      : "memory");
}

// ---- stores by the copy engine ----------------------------------------------------------------

// Starts to store a box from shared memory; what lies outside of the tensor is left out.
__device__ __forceinline__ void store_tile(const CUtensorMap& map, uint32_t source, int c0,
                                           int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map),
      "r"(source), "r"(c0), "r"(c1)
      : "memory");
}

// The same, but adds to what is there and rounds the sum.
__device__ __forceinline__ void add_tile(const CUtensorMap& map, uint32_t source, int c0, int c1) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%2, %3}], [%1];" ::
          "l"(&map),
      "r"(source), "r"(c0), "r"(c1)
      : "memory");
}

// Makes a group of the stores that this thread has started.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until of this thread's groups all but the last kPending have left shared memory.
template <int kPending> __device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// ---- the widest products ----------------------------------------------------------------------

#define OCTAVO_D8(i)                                                                               \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),      \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define OCTAVO_D32(i) OCTAVO_D8(i), OCTAVO_D8(i + 8), OCTAVO_D8(i + 16), OCTAVO_D8(i + 24)
#define OCTAVO_NAMES96                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "\
  "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "\
  "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, "\
  "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "\
  "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OCTAVO_NAMES128                                                                            \
  OCTAVO_NAMES96                                                                                   \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OCTAVO_PRODUCT(N, TYPE, NAMES, A, B, KEEP, ...)                                            \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                             \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                      \
               " {" NAMES "}, " A ", " B ", keep, 1, 1, 0, 0;\n}"                                  \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(keep))
#define OCTAVO_PRODUCT_SIZES(TYPE)                                                                 \
  if constexpr (kSums == 96) {                                                                     \
    OCTAVO_PRODUCT("192", TYPE, OCTAVO_NAMES96, "%96", "%97", "%98", OCTAVO_D32(0),                \
                   OCTAVO_D32(32), OCTAVO_D32(64));                                                \
  } else {                                                                                         \
    static_assert(kSums == 128);                                                                   \
    OCTAVO_PRODUCT("256", TYPE, OCTAVO_NAMES128, "%128", "%129", "%130", OCTAVO_D32(0),            \
                   OCTAVO_D32(32), OCTAVO_D32(64), OCTAVO_D32(96));                                \
  }

// As hopper.cuh's multiply, for B of 192 or 256 rows.
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
#undef OCTAVO_D32
#undef OCTAVO_PRODUCT

}  // namespace octavo::hopper
