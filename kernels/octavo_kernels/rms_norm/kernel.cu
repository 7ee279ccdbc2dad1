// RMS norm of rows, with or without a sum before it. A block a row; the row stays in registers.
#include "block_sum.cuh"

namespace {

using namespace octavo;

// The value is rounded to T before the weight is applied, as in the reference.
template <typename T> __device__ __forceinline__ T weighted(float x, float inverse, T weight) {
  return from_float<T>(to_float(from_float<T>(x * inverse)) * to_float(weight));
}

struct Rows {
  const void *x;
  void *residual;  // null: x is normalised as it is
  const void *weight;
  void *out;
  int size;
  long long x_stride, residual_stride;
  float eps;
};

// With four pieces a thread, 1024 threads would have too few registers.
constexpr int max_threads(int vecs) { return vecs == 4 ? kMaxThreads / 2 : kMaxThreads; }

// Each thread holds kVecs pieces of 16 bytes: one where few rows are to be done soon, four where
// many rows need many bytes in flight (8192 x 8192: 3.7 TB/s, with one 2.8). Both give the same bits.
template <typename T, int kVecs, bool kAdd>
__global__ void __launch_bounds__(max_threads(kVecs)) norm_rows(const Rows rows) {
  constexpr int kSize = Vec<T>::kSize;
  const int num_vecs = rows.size / kSize;
  const long long row = blockIdx.x;
  let_next_start();
  Vec<T> weight[kVecs], x[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = i * blockDim.x + threadIdx.x;
    if (at < num_vecs) weight[i] = static_cast<const Vec<T> *>(rows.weight)[at];
  }
  wait_for_previous();
  const T *x_row = static_cast<const T *>(rows.x) + row * rows.x_stride;
  Vec<T> *residual_row = reinterpret_cast<Vec<T> *>(static_cast<T *>(rows.residual) +
                                                    row * rows.residual_stride);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = i * blockDim.x + threadIdx.x;
    if (at < num_vecs) x[i] = reinterpret_cast<const Vec<T> *>(x_row)[at];
  }
  if constexpr (kAdd) {
    Vec<T> residual[kVecs];
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int at = i * blockDim.x + threadIdx.x;
      if (at < num_vecs) residual[i] = residual_row[at];
    }
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int at = i * blockDim.x + threadIdx.x;
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        x[i].data[j] = from_float<T>(to_float(x[i].data[j]) + to_float(residual[i].data[j]));
      if (at < num_vecs) residual_row[at] = x[i];
    }
  }
  float sums[kVecs] = {};
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (i * blockDim.x + threadIdx.x < num_vecs) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float value = to_float(x[i].data[j]);
        sums[i] = fmaf(value, value, sums[i]);
      }
    }
  }
  __shared__ SumRoom room;
  const float inverse = rsqrtf(block_sum(sums, room) / rows.size + rows.eps);
  Vec<T> *out_row = reinterpret_cast<Vec<T> *>(static_cast<T *>(rows.out) + row * rows.size);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = i * blockDim.x + threadIdx.x;
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      x[i].data[j] = weighted<T>(to_float(x[i].data[j]), inverse, weight[i].data[j]);
    if (at < num_vecs) out_row[at] = x[i];
  }
}

// Rows of any size and alignment: an element at a time, read twice.
template <typename T, bool kAdd> __global__ void norm_odd_rows(const Rows rows) {
  const long long row = blockIdx.x;
  let_next_start();
  wait_for_previous();
  const T *x_row = static_cast<const T *>(rows.x) + row * rows.x_stride;
  T *residual_row = static_cast<T *>(rows.residual) + row * rows.residual_stride;
  float sum = 0.f;
  for (int i = threadIdx.x; i < rows.size; i += blockDim.x) {
    T x = x_row[i];
    if constexpr (kAdd)
      residual_row[i] = x = from_float<T>(to_float(x) + to_float(residual_row[i]));
    sum += to_float(x) * to_float(x);
  }
  __shared__ SumRoom room;
  const float inverse = rsqrtf(block_sum(sum, room) / rows.size + rows.eps);
  const T *weight = static_cast<const T *>(rows.weight);
  T *out_row = static_cast<T *>(rows.out) + row * rows.size;
  for (int i = threadIdx.x; i < rows.size; i += blockDim.x)
    out_row[i] = weighted<T>(to_float(kAdd ? residual_row[i] : x_row[i]), inverse, weight[i]);
}

bool aligned(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename T, bool kAdd>
cudaError_t run(const Rows &rows, long long num_rows, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize;
  const dim3 grid(static_cast<unsigned>(num_rows));
  const int num_vecs = rows.size / kSize;
  const bool whole = rows.size % kSize == 0 && rows.x_stride % kSize == 0 &&
                     rows.residual_stride % kSize == 0 && aligned(rows.x) &&
                     aligned(rows.residual) && aligned(rows.weight) && aligned(rows.out);
  if (!whole || num_vecs > 4 * max_threads(4))
    return launch(norm_odd_rows<T, kAdd>, grid, 256, 0, stream, rows);
  const auto threads = [&](int vecs) {
    return dim3((num_vecs + 32 * vecs - 1) / (32 * vecs) * 32);
  };
  // Up to here all rows run at once, and the time is that of one row.
  constexpr int kFewRows = 264;
  if (num_vecs <= 64 || (num_rows <= kFewRows && num_vecs <= kMaxThreads))
    return launch(norm_rows<T, 1, kAdd>, grid, threads(1), 0, stream, rows);
  return launch(norm_rows<T, 4, kAdd>, grid, threads(4), 0, stream, rows);
}

template <typename T>
cudaError_t run(const Rows &rows, long long num_rows, cudaStream_t stream) {
  return rows.residual ? run<T, true>(rows, num_rows, stream)
                       : run<T, false>(rows, num_rows, stream);
}

}  // namespace

OCTAVO_EXPORT int octavo_rms_norm(const void *x, void *residual, const void *weight, void *out,
                                  long long num_rows, int size, long long x_stride,
                                  long long residual_stride, float eps, int dtype,
                                  cudaStream_t stream) {
  const Rows rows{x, residual, weight, out, size, x_stride, residual_stride, eps};
  switch (dtype) {
    case kFloat32: return run<float>(rows, num_rows, stream);
    case kFloat16: return run<__half>(rows, num_rows, stream);
    case kBFloat16: return run<__nv_bfloat16>(rows, num_rows, stream);
    default: return cudaErrorInvalidValue;
  }
}
