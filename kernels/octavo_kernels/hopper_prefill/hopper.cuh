// Hopper's own instructions, as functions: barriers in shared memory, bulk tensor copies, warpgroup
// matrix products.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "octavo.cuh"

namespace octavo::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- Barriers. `phase` counts how often the barrier has been passed; only its lowest bit counts.

struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this))
                 : "memory");
  }
  // Arrives, and lets the phase end only when copies have brought that many bytes.
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }
  // Until phase number `phase` has ended.
  __device__ __forceinline__ void wait(uint32_t phase) {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(shared_address(this)), "r"(phase & 1)
          : "memory");
    } while (!done);
  }
};

__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Makes ordinary writes to shared memory visible to the tensor cores and the copy engine.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers order warpgroups: `wait` ends when `threads`, itself included, have come.
__device__ __forceinline__ void named_barrier_wait(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Bulk tensor copies, from global to shared memory.

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void copy_3d(uint32_t to, const CUtensorMap& map, Barrier& barrier,
                                        int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

__device__ __forceinline__ void copy_5d(uint32_t to, const CUtensorMap& map, Barrier& barrier,
                                        int c0, int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// ---- Registers, given and taken by a whole warpgroup.

template <int kRegisters> __device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> __device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- Warpgroup products. A matrix in shared memory lies in atoms of 8 rows x 128 bytes, swizzled
// by the copy engine. `leading_bytes` is the step between atoms along the 128 bytes' axis where that
// is not the summed one, `stride_bytes` the step between atoms along the other axis.

__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, int leading_bytes,
                                                      int stride_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<uint64_t>(stride_bytes >> 4) << 32 |
         static_cast<uint64_t>(leading_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Registers written before it are seen by the products after it.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// A point that the compiler moves no computation of `values` across, in either direction.
template <int kSize> __device__ __forceinline__ void pin(float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kSize> __device__ __forceinline__ void pin(uint32_t (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Until at most kPending committed groups run; `values` is what the finished ones wrote.
template <int kPending, int kSize>
__device__ __forceinline__ void wait_products(float (&values)[kSize]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  pin(values);
}

#define OCTAVO_ACC8(x, i)                                                                         \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]),     \
      "+f"(x[i + 6]), "+f"(x[i + 7])
#define OCTAVO_ACC32(x, i) \
  OCTAVO_ACC8(x, i), OCTAVO_ACC8(x, i + 8), OCTAVO_ACC8(x, i + 16), OCTAVO_ACC8(x, i + 24)
#define OCTAVO_NAMES_0_31                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                        \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTAVO_NAMES_32_63                                                                        \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "              \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sum += A B for 64 rows and 128 columns, 16 summed; A and B in shared memory, both with the summed
// axis along the atoms' 128 bytes. `keep` = 0 replaces the sum.
#define OCTAVO_PRODUCT_SHARED_128(type)                                                           \
  asm volatile(                                                                                   \
      "{\n.reg .pred keep;\nsetp.ne.b32 keep, %66, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                \
      " {" OCTAVO_NAMES_0_31 ", " OCTAVO_NAMES_32_63 "}, %64, %65, keep, 1, 1, 0, 0;\n}"          \
      : OCTAVO_ACC32(sum, 0), OCTAVO_ACC32(sum, 32)                                               \
      : "l"(a), "l"(b), "r"(keep))

template <typename T>
__device__ __forceinline__ void product_shared(float (&sum)[64], uint64_t a, uint64_t b, int keep) {
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_SHARED_128("f16");
  } else {
    OCTAVO_PRODUCT_SHARED_128("bf16");
  }
}

// sum += A B with A (64 x 16) in registers and B in shared memory with its columns along the
// atoms' 128 bytes; as many columns as the sum has room for.
#define OCTAVO_PRODUCT_REGISTERS_64(type)                                                         \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                        \
               " {" OCTAVO_NAMES_0_31 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                 \
               : OCTAVO_ACC32(sum, 0)                                                             \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
#define OCTAVO_PRODUCT_REGISTERS_128(type)                                                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                       \
               " {" OCTAVO_NAMES_0_31 ", " OCTAVO_NAMES_32_63                                     \
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                        \
               : OCTAVO_ACC32(sum, 0), OCTAVO_ACC32(sum, 32)                                      \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))

template <typename T>
__device__ __forceinline__ void product_registers(float (&sum)[32], uint32_t a0, uint32_t a1,
                                                  uint32_t a2, uint32_t a3, uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_REGISTERS_64("f16");
  } else {
    OCTAVO_PRODUCT_REGISTERS_64("bf16");
  }
}

template <typename T>
__device__ __forceinline__ void product_registers(float (&sum)[64], uint32_t a0, uint32_t a1,
                                                  uint32_t a2, uint32_t a3, uint64_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    OCTAVO_PRODUCT_REGISTERS_128("f16");
  } else {
    OCTAVO_PRODUCT_REGISTERS_128("bf16");
  }
}

// Four 8 x 8 matrices in the layout of a product's sum; lane i gives the address of row i % 8 of
// matrix i / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// ---- Scalars.

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as two elements in one word, the first in the low half.
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

}  // namespace octavo::hopper
