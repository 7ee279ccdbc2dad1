// What kernels for Hopper share: its instructions as functions, and tensor maps on the host.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "octavo.cuh"

namespace octavo::hopper {

// In shared memory an address takes half the registers that a pointer does.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint32_t shared_address(uint32_t address) { return address; }

// ---- barriers -------------------------------------------------------------------------------

// A barrier in shared memory. Its phases count from 0; before them, one of parity 1 has ended.
struct Barrier {
  // By one thread, before `publish_barriers`.
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this))
                 : "memory");
  }

  // Arrives, and lets the phase end only when `copy_tile` has brought that many bytes as well.
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }

  // Arrives when this thread's `copy_async`s so far have ended.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     shared_address(this))
                 : "memory");
  }

  // Waits until the phase of that parity has ended.
  __device__ __forceinline__ void wait(uint32_t parity) { wait_at(shared_address(this), parity); }

  // The same for a phase by its number.
  __device__ __forceinline__ void wait_phase(uint32_t phase) {
    wait_at(shared_address(this), phase & 1);
  }

 private:
  __device__ __forceinline__ static void wait_at(uint32_t address, uint32_t parity) {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    } while (!done);
  }

  uint64_t state_;
};

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Makes ordinary writes to shared memory, those that this thread knows of, visible to the tensor
// cores and the copy engine.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Numbered barriers, 1 to 15, of some of the block's warps: `wait_for_threads` ends when `threads`
// threads, its own included, have come to either function.
__device__ __forceinline__ void wait_for_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_for_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- copies ---------------------------------------------------------------------------------

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

// Copies 16 bytes on a thread's own account, not through the L1, or writes 16 zeros.
__device__ __forceinline__ void copy_async(uint32_t target, const void* source, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(copies ? 16 : 0)
               : "memory");
}

// ---- products of a warpgroup ----------------------------------------------------------------

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

#define OCTAVO_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OCTAVO_D16(i) OCTAVO_D4(i), OCTAVO_D4(i + 4), OCTAVO_D4(i + 8), OCTAVO_D4(i + 12)
#define OCTAVO_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define OCTAVO_NAMES16 OCTAVO_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define OCTAVO_NAMES32                                                                             \
  OCTAVO_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OCTAVO_NAMES64                                                                             \
  OCTAVO_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "   \
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "\
                 "%63"
#define OCTAVO_PRODUCT(N, TYPE, NAMES, A, B, KEEP, ...)                                            \
  asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                             \
               "wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                      \
               " {" NAMES "}, " A ", " B ", keep, 1, 1, 0, 0;\n}"                                  \
               : __VA_ARGS__                                                                       \
               : "l"(a), "l"(b), "r"(keep))
#define OCTAVO_PRODUCT_SIZES(TYPE)                                                                 \
  if constexpr (kSums == 4) {                                                                      \
    OCTAVO_PRODUCT("8", TYPE, "%0, %1, %2, %3", "%4", "%5", "%6", OCTAVO_D4(0));                   \
  } else if constexpr (kSums == 8) {                                                               \
    OCTAVO_PRODUCT("16", TYPE, OCTAVO_NAMES8, "%8", "%9", "%10", OCTAVO_D4(0), OCTAVO_D4(4));      \
  } else if constexpr (kSums == 16) {                                                              \
    OCTAVO_PRODUCT("32", TYPE, OCTAVO_NAMES16, "%16", "%17", "%18", OCTAVO_D16(0));                \
  } else if constexpr (kSums == 32) {                                                              \
    OCTAVO_PRODUCT("64", TYPE, OCTAVO_NAMES32, "%32", "%33", "%34", OCTAVO_D16(0),                 \
                   OCTAVO_D16(16));                                                                \
  } else {                                                                                         \
    static_assert(kSums == 64);                                                                    \
    OCTAVO_PRODUCT("128", TYPE, OCTAVO_NAMES64, "%64", "%65", "%66", OCTAVO_D16(0),                \
                   OCTAVO_D16(16), OCTAVO_D16(32), OCTAVO_D16(48));                                \
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
    OCTAVO_PRODUCT("64", TYPE, OCTAVO_NAMES32, "%32, %33, %34, %35", "%36", OCTAVO_D16(0),         \
                   OCTAVO_D16(16));                                                                \
  } else {                                                                                         \
    static_assert(kSums == 64);                                                                    \
    OCTAVO_PRODUCT("128", TYPE, OCTAVO_NAMES64, "%64, %65, %66, %67", "%68", OCTAVO_D16(0),        \
                   OCTAVO_D16(16), OCTAVO_D16(32), OCTAVO_D16(48));                                \
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

#undef OCTAVO_D4
#undef OCTAVO_D16
#undef OCTAVO_NAMES8
#undef OCTAVO_NAMES16
#undef OCTAVO_NAMES32
#undef OCTAVO_NAMES64
#undef OCTAVO_PRODUCT
#undef OCTAVO_PRODUCT_SIZES

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

// ---- numbers --------------------------------------------------------------------------------

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

__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// ---- tensor maps ----------------------------------------------------------------------------

// The map of a tensor of 16-bit floats, swizzled by 128 bytes. Sizes and box by axis, innermost
// first; strides in bytes, of all axes but the innermost. `promotion` is what the L2 fetches.
template <int kAxes>
cudaError_t encode_map(CUtensorMap* map, Dtype dtype, const void* tensor,
                       const cuuint64_t (&sizes)[kAxes], const cuuint64_t (&strides)[kAxes - 1],
                       const cuuint32_t (&box)[kAxes], CUtensorMapL2promotion promotion) {
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
      CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace octavo::hopper
