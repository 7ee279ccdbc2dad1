// What the blocks of a cluster do together.
#pragma once

#include "hopper_barriers.cuh"

namespace octavo::hopper {

__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Arriving tells what this thread has written to those that wait.
__device__ __forceinline__ void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// Until all threads of the cluster's blocks have arrived.
__device__ __forceinline__ void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void meet_cluster() {
  arrive_cluster();
  wait_cluster();
}

// The same, but of what threads have written it tells nothing beyond published barriers: a release
// would wait for the L2, a microsecond.
__device__ __forceinline__ void meet_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  wait_cluster();
}

// Where in the cluster an address of this block's shared memory is in the block of that rank.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(address), "r"(rank));
  return result;
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

// Stores 16 bytes in any block; a barrier of that block counts them.
__device__ __forceinline__ void store_in_cluster(uint32_t address, uint32_t barrier_in_cluster,
                                                 const float* values) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, "
      "[%1];" ::"r"(address),
      "r"(barrier_in_cluster), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
      : "memory");
}

}  // namespace octavo::hopper
