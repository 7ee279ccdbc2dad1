// Joins the parts of tiles that several blocks shared: a warp a row at a time.
#pragma once

#include "softmax.cuh"

namespace octavo::prefill {

constexpr int kMergeWarps = 8;
constexpr int kMergeRows = 2;  // of a warp

template <typename T, int kDim>
__global__ void __launch_bounds__(32 * kMergeWarps)
    merge(const __grid_constant__ Params p) {
  constexpr int kColumns = kDim / 32;  // of a lane
  wait_for_previous();
  let_next_start();
  const int lane = threadIdx.x % 32;
  const Work work = Rows(p).find(blockIdx.x * p.splits);
  if (work.num_parts == 1) return;
  const auto* parts = reinterpret_cast<const Part<kDim>*>(p.parts) + work.item;
#pragma unroll
  for (int i = 0; i < kMergeRows; ++i) {
    const int row = (blockIdx.y * kMergeWarps + threadIdx.x / 32) * kMergeRows + i;
    const int token = row / p.group, q_head = work.kv_head * p.group + row % p.group;
    if (token >= work.num_tokens) return;
    float max = -INFINITY;
    for (int j = lane; j < work.num_parts; j += 32) max = fmaxf(max, parts[j].softmax[row].x);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
    float total = sink_weight<T>(p, q_head, max);
    float o[kColumns] = {};
#pragma unroll 4
    for (int j = 0; j < work.num_parts; ++j) {
      const float2 softmax = parts[j].softmax[row];
      const float weight = exp2_fast(softmax.x - max);
      total += softmax.y * weight;
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const float2 sums =
            *reinterpret_cast<const float2*>(&parts[j].sums[row][32 * c + 2 * lane]);
        o[c] += sums.x * weight;
        o[c + 1] += sums.y * weight;
      }
    }
    const float scale = p.out_scale / total;
    T* out = static_cast<T*>(p.out) +
             static_cast<long long>(work.first_token + token) * p.out_stride + q_head * kDim;
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      *reinterpret_cast<uint32_t*>(out + 32 * c + 2 * lane) =
          pack<T>(o[c] * scale, o[c + 1] * scale);
    }
  }
}

}  // namespace octavo::prefill
