// Copies by the copy engine, of boxes that tensor maps describe, and by threads.
#pragma once

#include <cuda.h>

#include "hopper_barriers.cuh"

namespace octavo::hopper {

// ---- into shared memory ---------------------------------------------------------------------

// How long the L2 keeps what is copied: values of createpolicy.fractional for all of an access.
constexpr uint64_t kNoPolicy = 0, kEvictNormal = 0x1000000000000000,
                   kEvictFirst = 0x12F0000000000000, kEvictLast = 0x14F0000000000000;

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

#define OCTAVO_COPY(AXES, PLACE, HINT, POLICY, ...)                                                \
  asm volatile("cp.async.bulk.tensor." AXES                                                        \
               "d.shared::cluster.global.mbarrier::complete_tx::bytes" HINT                        \
               " [%0], [%1, {" PLACE "}], [%2]" POLICY ";" ::"r"(shared_address(target)),          \
               "l"(&map), "r"(shared_address(&barrier)), "l"(kPolicy), __VA_ARGS__                 \
               : "memory")
#define OCTAVO_COPY_AXES(HINT, POLICY)                                                             \
  if constexpr (kAxes == 2) {                                                                      \
    OCTAVO_COPY("2", "%4, %5", HINT, POLICY, "r"(c0), "r"(c1));                                    \
  } else if constexpr (kAxes == 3) {                                                               \
    OCTAVO_COPY("3", "%4, %5, %6", HINT, POLICY, "r"(c0), "r"(c1), "r"(c2));                       \
  } else if constexpr (kAxes == 4) {                                                               \
    OCTAVO_COPY("4", "%4, %5, %6, %7", HINT, POLICY, "r"(c0), "r"(c1), "r"(c2), "r"(c3));          \
  } else {                                                                                         \
    static_assert(kAxes == 5);                                                                     \
    OCTAVO_COPY("5", "%4, %5, %6, %7, %8", HINT, POLICY, "r"(c0), "r"(c1), "r"(c2), "r"(c3),       \
                "r"(c4));                                                                          \
  }

// Starts the copy of the map's box at (c0, c1, ...), innermost axis first; the barrier counts its
// bytes. The target is a pointer into shared memory, or an address.
template <int kAxes, uint64_t kPolicy = kNoPolicy, typename Target>
__device__ __forceinline__ void copy_tile(Target target, const CUtensorMap& map,
                                          Barrier& barrier, int c0, int c1, int c2 = 0, int c3 = 0,
                                          int c4 = 0) {
  if constexpr (kPolicy == kNoPolicy) {
    OCTAVO_COPY_AXES("", "")
  } else {
    OCTAVO_COPY_AXES(".L2::cache_hint", ", %3")
  }
}

#undef OCTAVO_COPY
#undef OCTAVO_COPY_AXES

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

// Starts the copy of so many bytes, a multiple of 16; the barrier counts them.
__device__ __forceinline__ void copy_bytes(uint32_t target, const void* source, int bytes,
                                           Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target), "l"(source), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// Starts to bring so many bytes into the L2; they and the address are multiples of 16.
__device__ __forceinline__ void prefetch_bytes(const void* source, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// Copies 16 bytes on a thread's own account, not through the L1, or writes 16 zeros.
__device__ __forceinline__ void copy_async(uint32_t target, const void* source, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(copies ? 16 : 0)
               : "memory");
}

// Makes a group of those that this thread has started.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all of this thread's groups but the last kPending.
template <int kPending> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- out of shared memory -------------------------------------------------------------------

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

// ---- tensor maps ----------------------------------------------------------------------------

// The map of a tensor of 16-bit floats. Sizes and box by axis, innermost first; strides in bytes,
// of all axes but the innermost. `promotion` is what the L2 fetches.
template <int kAxes>
cudaError_t encode_map(CUtensorMap* map, Dtype dtype, const void* tensor,
                       const cuuint64_t (&sizes)[kAxes], const cuuint64_t (&strides)[kAxes - 1],
                       const cuuint32_t (&box)[kAxes], CUtensorMapL2promotion promotion,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  // The driver's function, found through the runtime so that nothing links to libcuda.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                     &status);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint32_t steps[kAxes];
  for (cuuint32_t& step : steps) step = 1;
  const CUresult result = encode(
      map,
      dtype == kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      kAxes, const_cast<void*>(tensor), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace octavo::hopper
