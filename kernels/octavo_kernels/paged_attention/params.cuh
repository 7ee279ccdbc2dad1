// What a call is told, and how that is cut into blocks of threads.
#pragma once

#include "octavo.cuh"

namespace octavo::paged {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Keys of a thread in a chunk: what it reads of the queries in shared memory serves them both.
constexpr int kKeys = 2;
constexpr int kChunk = kKeys * kThreads;  // CHUNK_TOKENS in __init__.py
constexpr int kGrain = 128;               // Of partitions, which begin and end at its multiples.
constexpr int kUnit = 8;                  // Tokens of a head entry that a thread reads of values.
constexpr int kMaxTile = 16;              // Tokens of a block of threads, as queries at most.
constexpr int kMaxHeadDim = 256;
constexpr int kReduceThreads = 128;

__host__ __device__ constexpr int ceil_div(int x, int y) { return (x + y - 1) / y; }

// What a layer's calls have in common, in the order of _geometry in __init__.py; strides are in
// elements. Window 0: none; sparse_block 0: dense.
struct Geometry {
  int dtype, is_fp8, heads, kv_heads, head_dim, block_shift;
  int q_token_stride, q_head_stride, key_block_stride, value_block_stride, table_stride;
  int causal, window, sparse_block, sparse_local, sparse_stride, sparse_head_step;
};

struct Params : Geometry {
  const void *q, *keys, *values;
  void* out;  // [T, H, D]
  const int *table, *token_rows, *table_rows, *context_lens;
  const long long* positions;
  const float *sinks, *alibi;
  float* workspace;  // v2: [T * H, partitions, D] sums of values, then as many (maximum, sum).
  int num_tokens, queries, tile_tokens, partitions;
  float scale, v_scale, softcap;  // softcap 0: none

  __host__ __device__ int head_slice() const { return min(heads / kv_heads, queries); }
  __host__ __device__ int slices() const { return ceil_div(heads / kv_heads, head_slice()); }
  // Threads that read a block's values side by side; each reads two entries of the same tokens.
  __host__ __device__ int value_pairs() const { return head_dim / 2 << (block_shift - 3); }
  // Sets of threads that read different blocks' values. Their sums take 256 floats a query at most.
  __host__ __device__ int value_groups() const {
    return max(1, min(kThreads / value_pairs(), kMaxHeadDim / head_dim));
  }
  __host__ __device__ size_t shared_bytes() const {
    return sizeof(float) * queries * (kChunk + head_dim * (1 + value_groups()));
  }
  __device__ float2* stats() const {
    return reinterpret_cast<float2*>(
        workspace + static_cast<long long>(num_tokens) * heads * partitions * head_dim);
  }
};

// Defined in one file a type, so that they compile side by side.
cudaError_t launch_float32(const Params& p, cudaStream_t stream);
cudaError_t launch_float16(const Params& p, cudaStream_t stream);
cudaError_t launch_bfloat16(const Params& p, cudaStream_t stream);

}  // namespace octavo::paged
