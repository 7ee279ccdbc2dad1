// Attention over the paged cache, a block of threads for the queries of one key/value head.
//
// Keys lie as [blocks, kv_heads, D / x, N, x] with x elements in 16 bytes, values as
// [blocks, kv_heads, D, N], N tokens a block. So a thread has a key to itself: lanes side by side
// read 16 bytes each of tokens side by side, and no score is summed over lanes. Of values a thread
// has 8 tokens of a head entry, lanes again side by side.
//
// A block of threads takes up to Q queries at once, which share what is read: the heads of a group,
// and in prefill also consecutive tokens of a row. It goes through the context by chunks of 512
// tokens with a running maximum. v1 does so alone; in v2 a context is dealt out to `partitions`
// blocks of threads, whose sums `reduce` joins. All lengths are read on the device.
#pragma once

#include "run.cuh"

namespace octavo::paged {

// Grid: tiles of tokens, slices of the groups of key/value heads, partitions.
template <typename T, typename C, int Q>
__global__ void __launch_bounds__(kThreads, Q == 4 ? 4 : 2) attend(const Params p) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared<Q> shared;
  const int kv_head = blockIdx.y / p.slices(), slice = blockIdx.y % p.slices();
  const int group = p.heads / p.kv_heads;
  const int first_head = kv_head * group + slice * p.head_slice();
  const int num_heads = min(p.head_slice(), (kv_head + 1) * group - first_head);
  // The last tiles first: prefill stands after decode in a step and takes longest at its end.
  const int tile = (gridDim.x - 1 - blockIdx.x) * p.tile_tokens;
  const int num_tokens = min(p.tile_tokens, p.num_tokens - tile);
  wait_for_previous();
  let_next_start();
  if (threadIdx.x < num_tokens) {
    shared.rows[threadIdx.x] = p.token_rows[tile + threadIdx.x];
    shared.positions[threadIdx.x] = p.positions[tile + threadIdx.x];
  }
  __syncthreads();
  Run<T, C, Q> run(p, shared, reinterpret_cast<float*>(dynamic), kv_head, first_head, num_heads);
  int end = 0;
  for (int begin = 0; begin < num_tokens; begin = end) {
    for (end = begin + 1; end < num_tokens && shared.rows[end] == shared.rows[begin];) ++end;
    run.attend(tile + begin, begin, end - begin);
  }
}

// v2: joins the partitions of one token's head, a block of threads each.
template <typename T> __global__ void __launch_bounds__(kReduceThreads) reduce(const Params p) {
  wait_for_previous();
  let_next_start();
  const long long index = blockIdx.x;
  const float2* stats = p.stats() + index * p.partitions;
  const float sink = p.sinks != nullptr ? p.sinks[index % p.heads] : -INFINITY;
  float maximum = sink, total = 0.f;
  for (int i = threadIdx.x % 32; i < p.partitions; i += 32) maximum = fmaxf(maximum, stats[i].x);
  maximum = warp_max(maximum);
  for (int i = threadIdx.x % 32; i < p.partitions; i += 32) {
    total += stats[i].y * exp_below(stats[i].x, maximum);
  }
  total = warp_sum(total) + exp_below(sink, maximum);
  const float factor = total > 0.f ? p.v_scale / total : 0.f;
  for (int d = threadIdx.x; d < p.head_dim; d += kReduceThreads) {
    const float* parts = p.workspace + index * p.partitions * p.head_dim + d;
    float sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < p.partitions; ++i) {
      const float2 stat = stats[i];  // A part whose weights sum to 0 was not written.
      if (stat.y > 0.f) sum = fmaf(parts[i * p.head_dim], exp_below(stat.x, maximum), sum);
    }
    static_cast<T*>(p.out)[index * p.head_dim + d] = from_float<T>(sum * factor);
  }
}

template <typename T, typename C, int Q>
cudaError_t launch_with(const Params& p, cudaStream_t stream) {
  const size_t shared_bytes = p.shared_bytes();
  if (shared_bytes + sizeof(Shared<Q>) > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(attend<T, C, Q>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(ceil_div(p.num_tokens, p.tile_tokens), p.kv_heads * p.slices(), p.partitions);
  const cudaError_t error = launch(attend<T, C, Q>, grid, dim3(kThreads), shared_bytes, stream, p);
  if (error != cudaSuccess || p.partitions == 1) return error;
  return launch(reduce<T>, dim3(p.num_tokens * p.heads), dim3(kReduceThreads), 0, stream, p);
}

template <typename T, int Q> cudaError_t launch_queries(const Params& p, cudaStream_t stream) {
  return p.is_fp8 ? launch_with<T, __nv_fp8_e4m3, Q>(p, stream) : launch_with<T, T, Q>(p, stream);
}

template <typename T> cudaError_t launch_dtype(const Params& p, cudaStream_t stream) {
  switch (p.queries) {
    case 4: return launch_queries<T, 4>(p, stream);
    case 8: return launch_queries<T, 8>(p, stream);
    case 16: return launch_queries<T, 16>(p, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo::paged
