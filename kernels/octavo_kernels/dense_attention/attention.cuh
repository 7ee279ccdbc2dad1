// The kernel: one thread asks for copies of tiles into shared memory, two or three warpgroups of
// 64 queries each compute on them.
#pragma once

#include "producer.cuh"

namespace octavo::dense {

// Zeroes the values of keys at `end` and past it. Their probabilities are zero, but another run's
// values may be NaN. Each warpgroup writes all of the zeros, also over others' that are in use: so
// none waits for another.
template <int kDim>
__device__ __forceinline__ void zero_values(uint8_t* values, int end, int warpgroup) {
  using S = Shape<kDim>;
#pragma unroll
  for (int chunk = 0; chunk < S::kChunks; ++chunk) {
    auto* at = reinterpret_cast<uint4*>(values + chunk * S::kKeys * kRowBytes);
    for (int i = end * kRowBytes / 16 + threadIdx.x % kWarpgroup; i < S::kKeys * kRowBytes / 16;
         i += kWarpgroup) {
      at[i] = uint4{0, 0, 0, 0};
    }
  }
  publish_shared_writes();
  wait_for_threads(1 + S::kWarpgroups + warpgroup, kWarpgroup);
}

// Writes the first `num_rows` of a warp's 16 rows, scaled, to `out`: through shared memory, so that
// whole rows are written at a time.
template <typename T, int kDim, int kSums>
__device__ __forceinline__ void store(uint16_t (&rows)[16][kDim + 8], const float (&o)[kSums],
                                      const float (&scale)[2], T* out, int num_rows, int head_dim,
                                      int stride) {
  const int lane = threadIdx.x % 32;
  const uint32_t row = shared_address(rows[lane % 16]) + lane / 16 * 16;
#pragma unroll
  for (int j = 0; j < kDim / 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<T>(o[4 * j + 2 * i] * scale[i % 2], o[4 * j + 2 * i + 1] * scale[i % 2]);
    }
    store_matrices(row + 16 * j, words);
  }
  __syncwarp();
  constexpr int kPieces = kDim / 8;  // of a row, 16 bytes each
#pragma unroll
  for (int i = lane; i < 16 * kPieces; i += 32) {
    const int from = i / kPieces, column = i % kPieces * 8;
    const uint4 words = *reinterpret_cast<const uint4*>(&rows[from][column]);
    if (from < num_rows && column < head_dim) {
      *reinterpret_cast<uint4*>(out + static_cast<long long>(from) * stride + column) = words;
    }
  }
  __syncwarp();
}

template <typename T, int kDim>
__device__ __forceinline__ void consume(Shared<kDim>& shared, const Params& p, int warpgroup) {
  using S = Shape<kDim>;
  const int lane = threadIdx.x % 32;
  const int first_row = warpgroup * 64 + threadIdx.x / 32 % 4 * 16;  // of this warp, in the tile
  constexpr bool kPresume = S::kWarpgroups == 2;  // three lack the registers for it

  uint32_t queries;  // where this warpgroup's begin
  float s[S::kKeys / 2];
  float o[S::kColumns / 2];
  uint32_t probabilities[S::kKeys / 4];
  Softmax softmax;
  uint32_t tiles = 0;  // of keys, so far

  auto multiply_keys = [&] {
    const uint32_t keys = shared_address(shared.keys[tiles % kStages]);
    fence_products();
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const uint32_t chunk = d / kChunk, within = d % kChunk * 2;
      multiply<T>(s, describe(queries + chunk * S::kRows * kRowBytes + within),
                  describe(keys + chunk * S::kKeys * kRowBytes + within), d > 0);
    }
    commit_products();
  };
  auto multiply_values = [&](uint32_t tile) {
    const uint32_t values = shared_address(shared.values[tile % kStages]);
    fence_products();
#pragma unroll
    for (int k = 0; k < S::kKeys; k += 16) {
      multiply_registers<T>(o, probabilities + k / 4,
                            describe(values + k * kRowBytes, S::kKeys * kRowBytes));
    }
    commit_products();
  };
  auto pack_probabilities = [&] {
#pragma unroll
    for (int i = 0; i < S::kKeys / 4; ++i) probabilities[i] = pack<T>(s[2 * i], s[2 * i + 1]);
  };
  // One lane arrives for its warp: what the others read or zeroed came before a barrier that all of
  // them passed, that of the turn or of zero_values; products are waited for.
  auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  // Warpgroups take turns to issue products, so that one's softmax runs under another's products.
  auto wait_turn = [&] { wait_for_threads(1 + warpgroup, 2 * kWarpgroup); };
  auto pass_turn = [&] {
    arrive_for_threads(1 + (warpgroup + 1) % S::kWarpgroups, 2 * kWarpgroup);
  };

  if (warpgroup == 0) arrive_for_threads(1, 2 * kWarpgroup);  // the first turn
  for (uint32_t done = 0;; ++done) {
    const int slot = done % S::kQueryStages;
    shared.queries_full[slot].wait_phase(done / S::kQueryStages);
    const Tile work = shared.tiles[slot];
    const int head = shared.heads[slot];
    if (work.num_tokens == 0) break;
    queries = shared_address(shared.queries[slot]) + warpgroup * 64 * kRowBytes;
    int tile = (work.num_keys - 1) / S::kKeys;
    // Tiles of keys come from the last to the first: that one may end with keys of another run.
    const int end = work.num_keys - tile * S::kKeys;
    const uint32_t first = tiles;

    auto wait_values = [&](uint32_t number) {
      shared.values_full[number % kStages].wait_phase(number / kStages);
      if (number == first && end < S::kKeys) {
        zero_values<kDim>(shared.values[number % kStages], end, warpgroup);
      }
    };

#pragma unroll
    for (int i = 0; i < S::kColumns / 2; ++i) o[i] = 0.f;
    shared.keys_full[tiles % kStages].wait_phase(tiles / kStages);
    wait_turn();
    multiply_keys();
    pass_turn();
    wait_products<0>();
    pin(s);
    release(shared.keys_free[tiles % kStages]);
    if (tile == 0) release(shared.queries_free[slot]);
    if (end < S::kKeys) {
#pragma unroll
      for (int i = 0; i < S::kKeys / 2; ++i) {
        if (8 * (i / 4) + 2 * (lane % 4) + i % 2 >= end) s[i] = -INFINITY;
      }
    }
    softmax.reset();
    softmax.update(s, p.exp2_scale);
    pack_probabilities();
    ++tiles;
    while (--tile >= 0) {
      shared.keys_full[tiles % kStages].wait_phase(tiles / kStages);
      wait_turn();
      multiply_keys();
      wait_values(tiles - 1);
      multiply_values(tiles - 1);
      pass_turn();
      wait_products<1>();
      pin(s);
      release(shared.keys_free[tiles % kStages]);
      if (tile == 0) release(shared.queries_free[slot]);
      // All of the softmax runs under the products of values. Their operand must not change before
      // they are done: ptxas would make each product wait for the one before.
      uint32_t words[S::kKeys / 4];
      bool rescale;
      if constexpr (kPresume) {
        rescale = softmax.update<T>(s, p.exp2_scale, words);
        pin(words);
      } else {
        rescale = softmax.update(s, p.exp2_scale);
        pin(s);
      }
      wait_products<0>();
      pin(o);
      release(shared.values_free[(tiles - 1) % kStages]);
      if constexpr (kPresume) {
        const uint32_t zero = tiles >> 31;  // which ptxas cannot see: it must not merge the two
#pragma unroll
        for (int i = 0; i < S::kKeys / 4; ++i) probabilities[i] = words[i] ^ zero;
      } else {
        pack_probabilities();
      }
      if (rescale) {
#pragma unroll
        for (int i = 0; i < S::kColumns / 2; ++i) o[i] *= softmax.rescale[i / 2 % 2];
      }
      ++tiles;
    }
    wait_values(tiles - 1);
    multiply_values(tiles - 1);
    wait_products<0>();
    pin(o);
    release(shared.values_free[(tiles - 1) % kStages]);
    softmax.add_lanes();
    const float scale[2] = {__fdividef(1.f, softmax.sum[0]), __fdividef(1.f, softmax.sum[1])};
    const int stride = p.heads * p.head_dim;
    T* out = static_cast<T*>(p.out) + head * p.head_dim +
             static_cast<long long>(work.first_token + first_row) * stride;
    store<T, kDim>(shared.out[first_row / 16], o, scale, out, work.num_tokens - first_row,
                   p.head_dim, stride);
  }
}

template <typename T, int kDim>
__global__ void __launch_bounds__(Shape<kDim>::kThreads, 1)
    attend(const __grid_constant__ CUtensorMap query_map,
           const __grid_constant__ CUtensorMap key_map,
           const __grid_constant__ CUtensorMap value_map, const __grid_constant__ Params params) {
  using S = Shape<kDim>;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    prefetch(query_map);
    prefetch(key_map);
    prefetch(value_map);
    constexpr int kConsumerWarps = 4 * S::kWarpgroups;
    for (int i = 0; i < S::kQueryStages; ++i) {
      shared.queries_full[i].init(1);
      shared.queries_free[i].init(kConsumerWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      shared.keys_full[i].init(1);
      shared.values_full[i].init(1);
      shared.keys_free[i].init(kConsumerWarps);
      shared.values_free[i].init(kConsumerWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (warpgroup == S::kWarpgroups) {
    shrink_registers<S::kProducerRegisters>();
    if (threadIdx.x % kWarpgroup == 0) produce(shared, query_map, key_map, value_map, params);
  } else {
    grow_registers<S::kConsumerRegisters>();
    consume<T>(shared, params, warpgroup);
  }
}

}  // namespace octavo::dense
