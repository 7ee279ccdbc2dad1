// What the kernels of octavo_kernels.linear's products share; see hopper_products.py.
#pragma once

#include <atomic>

#include "hopper.cuh"

namespace octavo::hopper {

// What is done with sums; as EPILOGUES in hopper_products.py.
enum Epilogue : int {
  kPlainQuickGelu = -3,
  kPlainGelu = -2,
  kPlainGeluTanh = -1,
  kStore = 0,
  kAdd = 1,
  kSilu = 2,
  kGelu = 3,
  kGeluTanh = 4
};

__host__ __device__ inline bool is_gated(int epilogue) { return epilogue >= kSilu; }
__host__ __device__ inline bool is_plain_activation(int epilogue) { return epilogue < kStore; }

// A swizzled row of shared memory: 128 bytes, so many features.
constexpr int kSlice = 64;

struct Arguments {
  void* out;
  const void *x, *weight, *bias;  // bias or null
  int epilogue, tokens, features, rows;
  int64_t x_stride, out_stride;  // in elements
  cudaStream_t stream;

  int out_features() const { return is_gated(epilogue) ? rows / 2 : rows; }
};

// The weight, by boxes of so many rows and a slice. For a gated product the third of four axes is
// gate or up, so that one copy takes 8 rows of the one and the same 8 of the other by turns.
inline cudaError_t encode_weight(CUtensorMap* map, Dtype dtype, const Arguments& a,
                                 cuuint32_t box_rows, CUtensorMapL2promotion promotion) {
  const cuuint64_t rows = a.rows, features = a.features, row = features * 2;
  if (is_gated(a.epilogue)) {
    return encode_map<4>(map, dtype, a.weight, {features, 8, 2, rows / 16},
                         {row, rows / 2 * row, 8 * row}, {kSlice, 8, 2, box_rows / 16}, promotion);
  }
  return encode_map<4>(map, dtype, a.weight, {features, rows, 1, 1}, {row, row, row},
                       {kSlice, box_rows, 1, 1}, promotion);
}

// A matrix [rows, columns] whose rows are so many elements apart, by boxes of a slice's width.
inline cudaError_t encode_matrix(CUtensorMap* map, Dtype dtype, const void* matrix, cuuint64_t rows,
                                 cuuint64_t columns, cuuint64_t stride, cuuint32_t box_rows,
                                 CUtensorMapL2promotion promotion) {
  return encode_map<2>(map, dtype, matrix, {columns, rows}, {stride * 2}, {kSlice, box_rows},
                       promotion);
}

// The device's multiprocessors; at first also lets the kernel have so much shared memory.
template <auto kKernel> cudaError_t prepare(int shared_bytes, int* multiprocessors) {
  constexpr int kMaxDevices = 64;
  static std::atomic<int> known[kMaxDevices];
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  *multiprocessors = known[device].load();
  if (*multiprocessors != 0) return cudaSuccess;
  error = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  // Else the driver may part shared memory and L1 so that this and the next kernel do not fit.
  error = cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) known[device] = *multiprocessors;
  return error;
}

}  // namespace octavo::hopper
