// What the parts of LoRA share.
//
// A run is an adapter's rank rows in the pool: (first row, rank). `down` has a row for each rank
// and part, rank outermost, so that a run's are consecutive: from row first * parts on, rank r and
// part q have the (r * parts + q)-th. Sums between the two products are [splits, tokens, parts,
// max_rank], by token.
#pragma once

#include "octavo.cuh"

namespace octavo::lora {

constexpr int kMaxParts = 8;  // as in __init__.py

// Up to `tile_tokens` tokens of one run: those from `begin` on in the order by runs.
struct alignas(16) TokenTile {
  int first, rank, begin, tokens;
};

// What `group_kernel` leaves on the device.
struct Groups {
  int* num_tiles;
  int* largest_rank;  // of the step's runs
  TokenTile* tiles;
  int* token_of;  // by place in the order
};

// `room` holds 4 ints, `max_tiles` tiles, and an int a token.
inline Groups groups_in(void* room, int max_tiles) {
  int* num_tiles = static_cast<int*>(room);
  auto* tiles = reinterpret_cast<TokenTile*>(num_tiles + 4);
  return {num_tiles, num_tiles + 1, tiles, reinterpret_cast<int*>(tiles + max_tiles)};
}

// Whether a token has an adapter. The host has checked runs; a wrong one must not reach memory.
__device__ __forceinline__ bool is_run(int first, int rank, int pool_rows, int max_rank) {
  return first >= 0 && 0 < rank && rank <= max_rank && first <= pool_rows - rank;
}

struct Shrink {
  float* sums;
  const void *x, *down;
  const int *first_of, *rank_of;  // by token
  Groups groups;
  int tokens, features, parts, max_rank, pool_rows;
  int splits;        // of the inner axis
  int max_tiles;     // bounds *groups.num_tiles
  bool settled;      // groups may be read before the kernel in front has ended
  int64_t x_stride;  // in elements, as below

  __device__ float* sum(int split, int token, int part) const {
    const int64_t row = (int64_t(split) * tokens + token) * parts + part;
    return sums + row * max_rank;
  }
};

struct Expand {
  void* out;
  const float* sums;
  const void* up;
  const int *first_of, *rank_of;
  Groups groups;
  int part_ends[kMaxParts];  // of columns
  int tokens, parts, max_rank, pool_rows;
  int splits, max_tiles;
  bool settled;
  int64_t out_stride;

  __host__ __device__ int columns() const { return part_ends[parts - 1]; }
  // From here on, one split after the other is `split_stride` further.
  __device__ const float* sum(int token, int part) const {
    return sums + (int64_t(token) * parts + part) * max_rank;
  }
  __device__ int64_t split_stride() const { return int64_t(tokens) * parts * max_rank; }
};

// On tensor cores: 16-bit floats, rows and parts of whole 16 bytes, an Ampere GPU or later.
cudaError_t shrink_on_tensor_cores(const Shrink& a, Dtype dtype, int tile_tokens,
                                   cudaStream_t stream);
cudaError_t expand_on_tensor_cores(const Expand& a, Dtype dtype, cudaStream_t stream);
// All else.
cudaError_t shrink_plainly(const Shrink& a, Dtype dtype, cudaStream_t stream);
cudaError_t expand_plainly(const Expand& a, Dtype dtype, cudaStream_t stream);

}  // namespace octavo::lora
