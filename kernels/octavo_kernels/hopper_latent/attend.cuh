// Attention of all heads over rows that are key and value at once. A tile of rows is the left
// operand of both products, so that no head is padded: scores are rows x heads, each warp summing
// over its entries; outputs are entries x heads, each warp having its own entries.
#pragma once

#include "share.cuh"

namespace octavo::latent {

// A warp's entries of the queries of one row, as right operands of the scores.
template <typename S> struct Queries {
  uint32_t words[S::kSteps][S::kGroups][2];

  __device__ __forceinline__ void load(const Arguments& arguments, int row) {
    using T = typename S::T;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const T* const q = static_cast<const T*>(arguments.q) + row * arguments.at.q_row_stride +
                       warp * S::kWarpDim + 2 * c;
#pragma unroll
    for (int n = 0; n < S::kGroups; ++n) {
      const int head = 8 * n + g;
      const bool is_there = head < arguments.at.heads;
      const T* const at = q + head * arguments.at.q_head_stride;
#pragma unroll
      for (int k = 0; k < S::kSteps; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          words[k][n][half] =
              is_there ? *reinterpret_cast<const uint32_t*>(at + 16 * k + 8 * half) : 0;
        }
      }
    }
  }
};

// The scores of one head and of four rows of a tile, by the first kScorers threads.
struct Softmax {
  float largest = -INFINITY, sum = 0.f;

  template <typename S>
  __device__ __forceinline__ void take(typename S::Scores& scores, int left, float scale) {
    const int head = threadIdx.x / 4, place = threadIdx.x % 4 * 4;
    const float* const sums = &scores.sums[0][0][0] + S::sum_at(head, place);
    float score[4] = {};
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float4 own = *reinterpret_cast<const float4*>(sums + w * (sizeof(scores.sums[0]) / sizeof(float)));
      score[0] += own.x, score[1] += own.y, score[2] += own.z, score[3] += own.w;
    }
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[i] = place + i < left ? score[i] * scale : -INFINITY;
      most = fmaxf(most, score[i]);
    }
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFF, most, 2));
    // Weights of up to 2^8 are as exact as those of up to 1, and spare most of the rescaling.
    float by = 1.f;
    if (most > largest + 8.f) {
      by = exp2_fast(largest - most);
      largest = most;
    }
    sum *= by;
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += score[i] = exp2_fast(score[i] - largest);
    using T = typename S::T;
    *reinterpret_cast<uint2*>(&scores.weights[head][place]) =
        make_uint2(pack<T>(score[0], score[1]), pack<T>(score[2], score[3]));
    if (place == 0) scores.rescale[head] = by;
  }

  template <typename S> __device__ __forceinline__ void tell(typename S::Scores& scores) {
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
    if (threadIdx.x % 4 == 0) scores.totals[threadIdx.x / 4] = {largest, sum};
  }
};

// One step of 16 entries of all heads.
template <typename S>
__device__ __forceinline__ void store_step(const Arguments& arguments, int row, int step,
                                           const float (&sums)[S::kGroups][4],
                                           const float (&factor)[S::kGroups][2]) {
  using T = typename S::T;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
  T* const out = static_cast<T*>(arguments.out) + row * arguments.at.out_row_stride +
                 warp * S::kWarpDim + 16 * step + g;
#pragma unroll
  for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = 8 * n + 2 * c + i % 2;
      if (head < arguments.at.heads) {
        out[head * arguments.at.out_head_stride + i / 2 * 8] =
            from_float<T>(sums[n][i] * factor[n][i % 2]);
      }
    }
}

// A warp's entries of the outputs, as sums of products.
template <typename S> struct Outputs {
  float sums[S::kSteps][S::kGroups][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < S::kSteps; ++m)
#pragma unroll
      for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.f;
  }

  __device__ __forceinline__ void add(const typename S::Scores& scores, uint32_t tile) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, warp = threadIdx.x / 32;
    uint32_t weights[S::kGroups][2];
    float by[S::kGroups][2];
    bool all_same = true;
#pragma unroll
    for (int n = 0; n < S::kGroups; ++n) {
      const auto* const pair =
          reinterpret_cast<const uint32_t*>(scores.weights[8 * n + g]) + c;
      weights[n][0] = pair[0];
      weights[n][1] = pair[4];
      by[n][0] = scores.rescale[8 * n + 2 * c];
      by[n][1] = scores.rescale[8 * n + 2 * c + 1];
      all_same &= by[n][0] == 1.f && by[n][1] == 1.f;
    }
    if (!all_same) {
#pragma unroll
      for (int m = 0; m < S::kSteps; ++m)
#pragma unroll
        for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][n][i] *= by[n][i % 2];
    }
    __syncwarp();
    const int matrix = lane / 8;
    const uint32_t source = tile + (lane % 8 + matrix / 2 * 8) * S::kRowBytes +
                            2 * (warp * S::kWarpDim + matrix % 2 * 8);
    uint32_t x[2][4];  // the next step's come while this one's are multiplied
    load_transposed(x[0], source);
#pragma unroll
    for (int m = 0; m < S::kSteps; ++m) {
      if (m + 1 < S::kSteps) load_transposed(x[(m + 1) % 2], source + 32 * (m + 1));
      const uint32_t(&own)[4] = x[m % 2];
#pragma unroll
      for (int n = 0; n < S::kGroups; ++n) {
        multiply_matrices<typename S::T>(sums[m][n], own[0], own[1], own[2], own[3],
                                         weights[n][0], weights[n][1]);
      }
    }
  }

  __device__ __forceinline__ void store(const Arguments& arguments,
                                        const typename S::Scores& scores, int row) const {
    float inverse[S::kGroups][2];
#pragma unroll
    for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        inverse[n][i] = 1.f / scores.totals[8 * n + 2 * (threadIdx.x % 4) + i].y;
#pragma unroll
    for (int m = 0; m < S::kSteps; ++m) store_step<S>(arguments, row, m, sums[m], inverse);
  }

  // Divided by their sums of weights, so that elements hold them well.
  __device__ __forceinline__ void store_partial(const Arguments& arguments,
                                                const typename S::Scores& scores,
                                                uint8_t* partial) const {
    uint2* const target = reinterpret_cast<uint2*>(partial + S::kTotalsBytes) + threadIdx.x;
#pragma unroll
    for (int n = 0; n < S::kGroups; ++n) {
      const int head = 8 * n + 2 * (threadIdx.x % 4);
      if (head >= arguments.at.heads) break;
      const float first = 1.f / scores.totals[head].y, second = 1.f / scores.totals[head + 1].y;
#pragma unroll
      for (int m = 0; m < S::kSteps; ++m) {
        const float(&own)[4] = sums[m][n];
        target[(m * S::kGroups + n) * S::kThreads] =
            make_uint2(pack<typename S::T>(own[0] * first, own[1] * second),
                       pack<typename S::T>(own[2] * first, own[3] * second));
      }
    }
    if (threadIdx.x < S::kHeads) {
      reinterpret_cast<float2*>(partial)[threadIdx.x] = scores.totals[threadIdx.x];
    }
  }
};

template <typename S>
__device__ __forceinline__ void score(const Queries<S>& queries, typename S::Scores& scores,
                                      uint32_t tile) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, matrix = lane / 8;
  const uint32_t source = tile + (lane % 8 + matrix % 2 * 8) * S::kRowBytes +
                          2 * (warp * S::kWarpDim + matrix / 2 * 8);
  float sums[S::kGroups][4] = {};
  uint32_t x[2][4];
  load_matrices(x[0], source);
#pragma unroll
  for (int k = 0; k < S::kSteps; ++k) {
    if (k + 1 < S::kSteps) load_matrices(x[(k + 1) % 2], source + 32 * (k + 1));
    const uint32_t(&own)[4] = x[k % 2];
#pragma unroll
    for (int n = 0; n < S::kGroups; ++n) {
      multiply_matrices<typename S::T>(sums[n], own[0], own[1], own[2], own[3],
                                       queries.words[k][n][0], queries.words[k][n][1]);
    }
  }
  const int g = lane / 4, c = lane % 4;
  float* const target = &scores.sums[warp][0][0];
#pragma unroll
  for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      target[S::sum_at(8 * n + 2 * c + i % 2, g + i / 2 * 8)] = sums[n][i];
}

// Zeros for rows of a tile that are not there: their weights are 0, but what is there may be NaN.
template <typename S> __device__ __forceinline__ void zero_rows(uint8_t* tile, int first) {
  for (int i = threadIdx.x; i < (kTileRows - first) * S::kRowPieces; i += S::kThreads) {
    uint8_t* const row = tile + (first + i / S::kRowPieces) * S::kRowBytes;
    *reinterpret_cast<uint4*>(row + i % S::kRowPieces * 16) = uint4{0, 0, 0, 0};
  }
  publish_shared_writes();
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1) attend_kernel(const Arguments arguments) {
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<typename S::Shared*>(
      (reinterpret_cast<uintptr_t>(memory) + 127) & ~uintptr_t{127});
  auto& scores = shared.scores;
  if (threadIdx.x == 0) {
    for (Barrier& each : shared.full) each.init(1);
    publish_barriers();
  }
  const Share share = find_share<S>(arguments, shared);
  const bool copies_tiles =
      threadIdx.x / 32 == S::kWarps - 1 && threadIdx.x % 32 < kTileRows;
  auto& copies = shared.copies[threadIdx.x % kTileRows];
  if (copies_tiles) {
    copies.start(arguments, share);
    for (int i = 0; i < S::kStages; ++i) copies.copy_tile(arguments, shared);
  }
  wait_for_previous();
  Share* const shares = reinterpret_cast<Share*>(arguments.workspace);
  if (threadIdx.x == 0) shares[blockIdx.x] = share;
  if (share.count == 0) return;
  uint8_t* const partials =
      arguments.workspace + gridDim.x * sizeof(Share) + 2ll * blockIdx.x * S::kPartialBytes;

  const float scale = arguments.scale * kLog2E;
  Queries<S> queries;
  Outputs<S> outputs;
  int left = share.count, stage = 0, before = 0;
  uint32_t round = 0;
  const auto find_next = [&](int& row, int& tile) {
    while (arguments.tiles_of(row) == tile) ++row, tile = 0;
  };
  int row = share.row, tile = share.tile;
  find_next(row, tile);
  queries.load(arguments, row);
  while (left > 0) {
    const int length = arguments.context_lens[row], own_row = row;
    const int tiles = (length + kTileRows - 1) / kTileRows, begin = tile;
    const int end = min(tiles, tile + left);
    outputs.clear();
    Softmax softmax;
    // The scores of a tile are made with the outputs of the one before.
    for (; tile < end; ++tile) {
      shared.full[stage].wait_phase(round);
      score<S>(queries, scores, shared_address(shared.tiles[stage]));
      if (tile > begin) outputs.add(scores, shared_address(shared.tiles[before]));
      __syncthreads();
      if (tile > begin && copies_tiles) copies.copy_tile(arguments, shared);
      const int seen = length - tile * kTileRows;
      if (threadIdx.x < S::kScorers) softmax.take<S>(scores, seen, scale);
      if (seen < kTileRows) zero_rows<S>(shared.tiles[stage], seen);
      __syncthreads();
      before = stage;
      if (++stage == S::kStages) stage = 0, ++round;
    }
    left -= end - begin;
    if (left > 0) {
      find_next(row, tile);
      queries.load(arguments, row);
    }
    outputs.add(scores, shared_address(shared.tiles[before]));
    if (threadIdx.x < S::kScorers) softmax.tell<S>(scores);
    __syncthreads();
    if (copies_tiles) copies.copy_tile(arguments, shared);
    if (end - begin == tiles) {
      outputs.store(arguments, scores, own_row);
    } else {
      outputs.store_partial(arguments, scores, partials + (begin == 0 ? S::kPartialBytes : 0));
    }
  }
  let_next_start();
}

// Rows of which several blocks had parts: of each the block that first goes on with it, and there
// one step of 16 entries of each warp.
template <typename S>
__global__ void __launch_bounds__(S::kThreads) merge_kernel(const Arguments arguments, int blocks) {
  wait_for_previous();
  let_next_start();
  const Share* const shares = reinterpret_cast<const Share*>(arguments.workspace);
  const int step = blockIdx.y;
  const Share own = shares[blockIdx.x];
  if (own.count == 0 || own.tile == 0) return;
  int first = blockIdx.x - 1;
  while (shares[first].count == 0) --first;
  if (shares[first].row == own.row && shares[first].tile > 0) return;
  const uint8_t* const partials = arguments.workspace + blocks * sizeof(Share);
  float largest[S::kGroups][2], sum[S::kGroups][2], sums[S::kGroups][4] = {};
#pragma unroll
  for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) largest[n][i] = -INFINITY, sum[n][i] = 0.f;
  // So many parts are read at a time, whether they are of this row or not.
  constexpr int kAhead = 4;
  for (int base = first; base < blocks; base += kAhead) {
    Share share[kAhead];
    uint2 parts[kAhead][S::kGroups];
    float4 totals[kAhead][S::kGroups];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int block = min(base + i, blocks - 1);
      const uint8_t* const partial = partials + (2ll * block + (block == first)) * S::kPartialBytes;
      share[i] = shares[block];
#pragma unroll
      for (int n = 0; n < S::kGroups; ++n) {
        totals[i][n] = reinterpret_cast<const float4*>(partial)[4 * n + threadIdx.x % 4];
        parts[i][n] = reinterpret_cast<const uint2*>(
            partial + S::kTotalsBytes)[(step * S::kGroups + n) * S::kThreads + threadIdx.x];
      }
    }
    bool is_last = false;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int block = base + i;
      is_last |= block >= blocks ||
                 (block > first && share[i].count > 0 && share[i].row != own.row);
      if (is_last || share[i].count == 0) continue;
#pragma unroll
      for (int n = 0; n < S::kGroups; ++n) {
        const float2 low = unpack<typename S::T>(parts[i][n].x);
        const float2 high = unpack<typename S::T>(parts[i][n].y);
        const float values[4] = {low.x, low.y, high.x, high.y};
        const float most[2] = {totals[i][n].x, totals[i][n].z};
        const float weight[2] = {totals[i][n].y, totals[i][n].w};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float top = fmaxf(largest[n][h], most[h]);
          const float old_by = exp2_fast(largest[n][h] - top);
          const float new_by = exp2_fast(most[h] - top) * weight[h];
          sum[n][h] = sum[n][h] * old_by + new_by;
          largest[n][h] = top;
          sums[n][h] = sums[n][h] * old_by + values[h] * new_by;
          sums[n][h + 2] = sums[n][h + 2] * old_by + values[h + 2] * new_by;
        }
      }
    }
    if (is_last) break;
  }
#pragma unroll
  for (int n = 0; n < S::kGroups; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[n][h] = 1.f / sum[n][h];
  store_step<S>(arguments, own.row, step, sums, sum);
}

template <typename S> cudaError_t launch_shape(const Arguments& arguments, cudaStream_t stream) {
  const auto kernel = attend_kernel<S>;
  constexpr int kBytes = sizeof(typename S::Shared) + 128;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int blocks = arguments.at.blocks;
  const cudaError_t launched = launch(kernel, blocks, S::kThreads, kBytes, stream, arguments);
  if (launched != cudaSuccess || arguments.at.by_row) return launched;
  return launch(merge_kernel<S>, dim3(blocks, S::kSteps), S::kThreads, 0, stream, arguments, blocks);
}

}  // namespace octavo::latent
