// What kernels share: element types, programmatic dependent launch, vector access.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define OCTAVO_EXPORT extern "C" __attribute__((visibility("default")))

namespace octavo {

// As DTYPE_CODES in library.py.
enum Dtype : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat8 = 3 };

template <typename T> constexpr Dtype kDtypeOf = kFloat32;
template <> inline constexpr Dtype kDtypeOf<__half> = kFloat16;
template <> inline constexpr Dtype kDtypeOf<__nv_bfloat16> = kBFloat16;
template <> inline constexpr Dtype kDtypeOf<__nv_fp8_e4m3> = kFloat8;

// Programmatic dependent launch. A kernel launched by `launch` may start while the one before it in
// the stream still runs. Rules that every kernel keeps:
//  - before `wait_for_previous` it reads only what no kernel of a step writes (weights), and writes
//    nothing in global memory;
//  - every block calls `wait_for_previous`, so that the end of a kernel implies the end of all
//    kernels before it;
//  - `let_next_start` comes as early as it pays; it promises nothing about memory. One exception:
//    between the kernel that writes a step's inputs and the first layer's qkv product some kernel
//    calls it after `wait_for_previous`, since `hopper_decode` reads them before it waits for that
//    product (docs/kernels.md). Today that is the embedding, an ordinary launch of PyTorch's.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Launches a kernel that keeps the rules above, in clusters of so many blocks; returns the launch's
// error.
template <typename... Parameters, typename... Arguments>
inline cudaError_t launch_clusters(void (*kernel)(Parameters...), int cluster, dim3 grid,
                                   dim3 block, size_t shared_bytes, cudaStream_t stream,
                                   Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = OCTAVO_ARCH < 90 ? 0 : cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// The same for blocks of no cluster, or of one that the kernel declares.
template <typename... Parameters, typename... Arguments>
inline cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                          cudaStream_t stream, Arguments&&... arguments) {
  return launch_clusters(kernel, 1, grid, block, shared_bytes, stream, arguments...);
}

template <typename T> __device__ __forceinline__ float to_float(T x) { return static_cast<float>(x); }
template <> __device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x) { return static_cast<T>(x); }
template <> __device__ __forceinline__ __half from_float(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float x) {
  return __float2bfloat16_rn(x);
}

// 16 bytes of elements, loaded and stored at once.
template <typename T> struct alignas(16) Vec {
  static constexpr int kSize = 16 / sizeof(T);
  T data[kSize];
};

}  // namespace octavo
