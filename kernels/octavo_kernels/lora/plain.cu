// The products one number at a time: float32, sizes and places of any kind, GPUs before Ampere.
#include <algorithm>

#include "lora.cuh"

namespace octavo::lora {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxGridRows = 16;

// Block (token, share of its run's rows of `down`), a warp a row. One split: zeros are left in the
// others.
template <typename T> __global__ void __launch_bounds__(kThreads) shrink_kernel(const Shrink a) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.x, lane = threadIdx.x % 32;
  const int first = a.first_of[token], rank = a.rank_of[token];
  if (!is_run(first, rank, a.pool_rows, a.max_rank)) return;
  const T* x = static_cast<const T*>(a.x) + token * a.x_stride;
  const T* rows = static_cast<const T*>(a.down) + int64_t(first) * a.parts * a.features;
  for (int n = blockIdx.y * kWarps + threadIdx.x / 32; n < rank * a.parts;
       n += gridDim.y * kWarps) {
    const T* row = rows + int64_t(n) * a.features;
    float sum = 0.f;
    for (int i = lane; i < a.features; i += 32) sum += to_float(x[i]) * to_float(row[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    for (int split = lane; split < a.splits; split += 32) {
      a.sum(split, token, n % a.parts)[n / a.parts] = split == 0 ? sum : 0.f;
    }
  }
}

// Block (token, columns), a thread a column.
template <typename T> __global__ void __launch_bounds__(kThreads) expand_kernel(const Expand a) {
  let_next_start();
  wait_for_previous();
  const int token = blockIdx.x, column = blockIdx.y * kThreads + threadIdx.x;
  const int first = a.first_of[token], rank = a.rank_of[token];
  if (column >= a.columns() || !is_run(first, rank, a.pool_rows, a.max_rank)) return;
  int part = 0;
  while (column >= a.part_ends[part]) ++part;
  const T* up = static_cast<const T*>(a.up) + int64_t(first) * a.columns() + column;
  const float* sums = a.sum(token, part);
  float added = 0.f;
  for (int r = 0; r < rank; ++r) {
    float sum = 0.f;
    for (int split = 0; split < a.splits; ++split) sum += sums[split * a.split_stride() + r];
    added += to_float(from_float<T>(sum)) * to_float(up[int64_t(r) * a.columns()]);
  }
  T* target = static_cast<T*>(a.out) + token * a.out_stride + column;
  *target = from_float<T>(to_float(*target) + added);
}

template <typename T> cudaError_t run(const Shrink& a, cudaStream_t stream) {
  const int rows = std::min(a.max_rank * a.parts, kMaxGridRows * kWarps);
  const dim3 grid(a.tokens, (rows + kWarps - 1) / kWarps);
  return launch(shrink_kernel<T>, grid, dim3(kThreads), 0, stream, a);
}

template <typename T> cudaError_t run(const Expand& a, cudaStream_t stream) {
  const dim3 grid(a.tokens, (a.columns() + kThreads - 1) / kThreads);
  return launch(expand_kernel<T>, grid, dim3(kThreads), 0, stream, a);
}

template <typename Arguments>
cudaError_t run_typed(const Arguments& a, Dtype dtype, cudaStream_t stream) {
  switch (dtype) {
    case kFloat32: return run<float>(a, stream);
    case kFloat16: return run<__half>(a, stream);
    case kBFloat16: return run<__nv_bfloat16>(a, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t shrink_plainly(const Shrink& a, Dtype dtype, cudaStream_t stream) {
  return run_typed(a, dtype, stream);
}

cudaError_t expand_plainly(const Expand& a, Dtype dtype, cudaStream_t stream) {
  return run_typed(a, dtype, stream);
}

}  // namespace octavo::lora
