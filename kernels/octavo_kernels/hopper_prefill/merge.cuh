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
  const Work work = Rows(p).find(blockIdx.x * p.splits, 0);
  if (work.num_parts == 1) return;
#pragma unroll
  for (int i = 0; i < kMergeRows; ++i) {
    const int row = (blockIdx.y * kMergeWarps + threadIdx.x / 32) * kMergeRows + i;
    const int token = row / p.group, q_head = work.kv_head * p.group + row % p.group;
    if (token >= work.num_tokens) return;
    float2 softmax = {-INFINITY, 0.f};
    float o[kColumns] = {};
#pragma unroll 4
    for (int j = 0; j < work.num_parts; ++j) {
      const Part<kDim> part(p, work.item + j);
      const Join join(softmax, part.softmax[row]);
      softmax = {join.max, join.sum};
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const float2 sums =
            *reinterpret_cast<const float2*>(part.sums + row * kDim + 32 * c + 2 * lane);
        o[c] = join.join(o[c], sums.x);
        o[c + 1] = join.join(o[c + 1], sums.y);
      }
    }
    const float scale = out_scale<T>(p, q_head, softmax);
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
