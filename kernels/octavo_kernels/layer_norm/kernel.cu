// Layer norm of rows. A block a row; the row stays in registers between the mean, the variance
// around it, and the result. How sums are cut depends on a row's size and on whether pieces
// of 16 bytes are whole, so that its result does not depend on how many others there are.
#include "block_sum.cuh"

namespace {

using namespace octavo;

struct Rows {
  const void *x;
  const void *weight, *bias;  // null: one and zero
  void *out;
  int size;
  long long x_stride;
  float eps;
};

template <typename T>
__device__ __forceinline__ Vec<T> vec_or(const void *entries, int at, float otherwise) {
  if (entries) return static_cast<const Vec<T> *>(entries)[at];
  Vec<T> vec;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) vec.data[j] = from_float<T>(otherwise);
  return vec;
}

template <typename T>
__device__ __forceinline__ float entry_or(const void *entries, int at, float otherwise) {
  return entries ? to_float(static_cast<const T *>(entries)[at]) : otherwise;
}

constexpr int kVecs = 4;  // pieces of 16 bytes that a thread holds, so that many are in flight
constexpr int kMostThreads = kMaxThreads / 2;  // of 1024 each would have too few registers

template <typename T>
__global__ void __launch_bounds__(kMostThreads) norm_rows(const Rows rows) {
  constexpr int kSize = Vec<T>::kSize;
  __shared__ SumRoom room, squares_room;
  const int num_vecs = rows.size / kSize;
  const long long row = blockIdx.x;
  let_next_start();
  wait_for_previous();
  Vec<T> x[kVecs];
  const Vec<T> *x_row =
      reinterpret_cast<const Vec<T> *>(static_cast<const T *>(rows.x) + row * rows.x_stride);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = i * blockDim.x + threadIdx.x;
    if (at < num_vecs) x[i] = x_row[at];
  }
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (i * blockDim.x + threadIdx.x < num_vecs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum += to_float(x[i].data[j]);
    }
  }
  const float mean = block_sum(sum, room) / rows.size;
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (i * blockDim.x + threadIdx.x < num_vecs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float distance = to_float(x[i].data[j]) - mean;
        squares += distance * distance;
      }
    }
  }
  const float inverse = rsqrtf(block_sum(squares, squares_room) / rows.size + rows.eps);
  Vec<T> *out_row = reinterpret_cast<Vec<T> *>(static_cast<T *>(rows.out) + row * rows.size);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = i * blockDim.x + threadIdx.x;
    if (at >= num_vecs) break;
    // All rows but the first find these in the L1; loaded before, they would take registers.
    const Vec<T> weight = vec_or<T>(rows.weight, at, 1.f), bias = vec_or<T>(rows.bias, at, 0.f);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float normal = (to_float(x[i].data[j]) - mean) * inverse;
      x[i].data[j] = from_float<T>(normal * to_float(weight.data[j]) + to_float(bias.data[j]));
    }
    out_row[at] = x[i];
  }
}

// Rows of any size and alignment: an element at a time, read three times.
template <typename T> __global__ void norm_odd_rows(const Rows rows) {
  __shared__ SumRoom room, squares_room;
  const long long row = blockIdx.x;
  let_next_start();
  wait_for_previous();
  const T *x_row = static_cast<const T *>(rows.x) + row * rows.x_stride;
  float sum = 0.f;
  for (int i = threadIdx.x; i < rows.size; i += blockDim.x) sum += to_float(x_row[i]);
  const float mean = block_sum(sum, room) / rows.size;
  float squares = 0.f;
  for (int i = threadIdx.x; i < rows.size; i += blockDim.x) {
    const float distance = to_float(x_row[i]) - mean;
    squares += distance * distance;
  }
  const float inverse = rsqrtf(block_sum(squares, squares_room) / rows.size + rows.eps);
  T *out_row = static_cast<T *>(rows.out) + row * rows.size;
  for (int i = threadIdx.x; i < rows.size; i += blockDim.x) {
    const float normal = (to_float(x_row[i]) - mean) * inverse;
    out_row[i] = from_float<T>(normal * entry_or<T>(rows.weight, i, 1.f) +
                               entry_or<T>(rows.bias, i, 0.f));
  }
}

bool aligned(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename T>
cudaError_t run(const Rows &rows, long long num_rows, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize;
  const dim3 grid(static_cast<unsigned>(num_rows));
  const int num_vecs = rows.size / kSize;
  const bool whole = rows.size % kSize == 0 && rows.x_stride % kSize == 0 && aligned(rows.x) &&
                     aligned(rows.weight) && aligned(rows.bias) && aligned(rows.out);
  if (!whole || num_vecs > kVecs * kMostThreads)
    return launch(norm_odd_rows<T>, grid, 256, 0, stream, rows);
  const int threads = (num_vecs + 32 * kVecs - 1) / (32 * kVecs) * 32;
  return launch(norm_rows<T>, grid, threads, 0, stream, rows);
}

}  // namespace

OCTAVO_EXPORT int octavo_layer_norm(const void *x, const void *weight, const void *bias, void *out,
                                    long long num_rows, int size, long long x_stride, float eps,
                                    int dtype, cudaStream_t stream) {
  const Rows rows{x, weight, bias, out, size, x_stride, eps};
  switch (dtype) {
    case kFloat32: return run<float>(rows, num_rows, stream);
    case kFloat16: return run<__half>(rows, num_rows, stream);
    case kBFloat16: return run<__nv_bfloat16>(rows, num_rows, stream);
    default: return cudaErrorInvalidValue;
  }
}
