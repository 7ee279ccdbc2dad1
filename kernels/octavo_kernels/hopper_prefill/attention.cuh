// The kernel: one producer warp copies tiles into shared memory, two or three warpgroups of 64
// rows each compute on them.
#pragma once

#include "producer.cuh"
#include "softmax.cuh"

namespace octavo::prefill {

// Zeroes the values of keys outside [begin, end) of a tile. Their probabilities are zero, but what
// lies past a context, or before a window, may be NaN. Each warpgroup writes all of the zeros, also
// over others' that are in use: so none waits for another.
template <int kDim>
__device__ __forceinline__ void zero_values(uint8_t* values, int begin, int end, int warpgroup) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x % kWarpgroup; i < kKeys * kChunks; i += kWarpgroup) {
    const int key = i / kChunks, chunk = i % kChunks;
    if (key >= begin && key < end) continue;
    uint8_t* at = values + key / 8 * Tile<kDim>::kOctetBytes + chunk / 8 * 1024 + key % 8 * 128;
    *reinterpret_cast<uint4*>(at + chunk % 8 * 16) = uint4{0, 0, 0, 0};
  }
  publish_shared_writes();
  wait_for_threads(1 + Tile<kDim>::kWarpgroups + warpgroup, kWarpgroup);
}

// Writes a warp's 16 rows, scaled, to `out`: through shared memory, so that whole rows are written
// at a time. Lane i has the offset of row i % 16; rows at `end` and past it are left out.
template <typename T, int kDim>
__device__ __forceinline__ void store(uint16_t (&rows)[16][kDim + 8], const float (&o)[kDim / 2],
                                      const float (&scale)[2], T* out, int offset, int end) {
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
  constexpr int kLanes = kDim / 8;  // of a row, 16 bytes each
#pragma unroll
  for (int i = 0; i < 16; i += 32 / kLanes) {
    const int from = i + lane / kLanes, column = lane % kLanes * 8;
    const int to = __shfl_sync(~0u, offset, from);
    const uint4 words = *reinterpret_cast<const uint4*>(&rows[from][column]);
    if (to < end) *reinterpret_cast<uint4*>(out + to + column) = words;
  }
  __syncwarp();
}

// Each thread writes what it reads again: the four of a row its softmax, all of them.
template <int kDim>
__device__ __forceinline__ void store_part(const Part<kDim>& part, int part_rows,
                                           const float (&o)[kDim / 2], const float2 (&softmax)[2],
                                           int first_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    if (row >= part_rows) continue;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(part.sums + row * kDim + 8 * j + 2 * (lane % 4)) =
          float2{o[4 * j + 2 * h], o[4 * j + 2 * h + 1]};
    }
    part.softmax[row] = softmax[h];
  }
}

// Puts what this thread has stored of the parts before in front of what it has now.
template <int kDim>
__device__ __forceinline__ void join_part(const Part<kDim>& part, int part_rows,
                                          float (&o)[kDim / 2], float2 (&softmax)[2],
                                          int first_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    if (row >= part_rows) continue;
    const Join join(part.softmax[row], softmax[h]);
    softmax[h] = {join.max, join.sum};
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const float2 before =
          *reinterpret_cast<const float2*>(part.sums + row * kDim + 8 * j + 2 * (lane % 4));
      o[4 * j + 2 * h] = join.join(before.x, o[4 * j + 2 * h]);
      o[4 * j + 2 * h + 1] = join.join(before.y, o[4 * j + 2 * h + 1]);
    }
  }
}

// Makes this warpgroup's queries float16, where they lie.
template <int kDim>
__device__ __forceinline__ void narrow_queries(uint8_t* queries, int warpgroup) {
  constexpr int kHalfBytes = Tile<kDim>::kRows * 128, kOwnBytes = 64 * 128;
#pragma unroll
  for (int half = 0; half < kDim / 64; ++half) {
    auto* at = reinterpret_cast<uint4*>(queries + half * kHalfBytes + warpgroup * kOwnBytes);
#pragma unroll
    for (int i = threadIdx.x % kWarpgroup; i < kOwnBytes / 16; i += kWarpgroup) {
      const auto narrow = [](uint32_t pair) {
        return pack<__half>(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
      };
      const uint4 pairs = at[i];
      at[i] = uint4{narrow(pairs.x), narrow(pairs.y), narrow(pairs.z), narrow(pairs.w)};
    }
  }
  publish_shared_writes();
  wait_for_threads(1 + Tile<kDim>::kWarpgroups + warpgroup, kWarpgroup);
}

template <typename T, bool kSoftcap, int kDim, bool kFloat8>
__device__ __forceinline__ void consume(Shared<kDim, kFloat8>& shared, const Params& p,
                                        int warpgroup) {
  using Product = std::conditional_t<kFloat8, __half, T>;  // of matrix products
  constexpr int kQueryStages = Shared<kDim, kFloat8>::kQueryStages;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32 % 4;
  const int first_row = warpgroup * 64 + warp * 16;  // of this warp, in the tile
  constexpr bool kPresume = kDim == 128;  // three warpgroups lack the registers for it
  int token[2], head[2];  // of this thread's two rows
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    token[h] = (first_row + lane / 4 + 8 * h) / p.group;
    head[h] = (first_row + lane / 4 + 8 * h) % p.group;
  }
  const int out_row = first_row + lane % 16;
  const int out_offset = out_row / p.group * p.out_stride + out_row % p.group * kDim;
  const int first_token = warpgroup * 64 / p.group;  // of this warpgroup
  const int last_token = (warpgroup * 64 + 63) / p.group;

  uint32_t queries;  // where this warpgroup's begin
  float s[kKeys / 2];
  float o[kDim / 2];
  uint32_t probabilities[32];
  Softmax softmax;
  uint32_t tiles = 0;  // of keys, so far

  auto multiply_keys = [&] {
    const uint32_t keys = shared_address(shared.keys[tiles % kStages]);
    fence_products();
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const uint32_t half = d / 64, within = d % 64 * 2;
      multiply<Product>(
          s, describe(queries + half * Tile<kDim>::kRows * 128 + within, 0, 1024),
          describe(keys + half * 1024 + within, 0, Tile<kDim>::kOctetBytes), d > 0);
    }
    commit_products();
  };
  auto multiply_values = [&](uint32_t tile) {
    const uint32_t values = shared_address(shared.values[tile % kStages]);
    fence_products();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      multiply_registers<Product>(
          o, probabilities + k / 4,
          describe(values + k / 8 * Tile<kDim>::kOctetBytes, 1024, Tile<kDim>::kOctetBytes));
    }
    commit_products();
  };
  auto pack_probabilities = [&] {
#pragma unroll
    for (int i = 0; i < 32; ++i) probabilities[i] = pack<Product>(s[2 * i], s[2 * i + 1]);
  };
  // One lane arrives for its warp: what the others read or zeroed came before a barrier that all of
  // them passed, that of the turn or of zero_values; products are waited for.
  auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  // Warpgroups take turns to issue products, so that one's softmax runs under another's products.
  auto wait_turn = [&] { wait_for_threads(1 + warpgroup, 2 * kWarpgroup); };
  auto pass_turn = [&] {
    arrive_for_threads(1 + (warpgroup + 1) % Tile<kDim>::kWarpgroups, 2 * kWarpgroup);
  };

  if (warpgroup == 0) arrive_for_threads(1, 2 * kWarpgroup);  // the first turn
  for (uint32_t done = 0;; ++done) {
    const int slot = done % kQueryStages;
    shared.queries_full[slot].wait_phase(done / kQueryStages);
    const Work work = shared.work[slot];
    if (work.num_tokens == 0) break;
    if constexpr (!std::is_same_v<T, Product>) {
      narrow_queries<kDim>(shared.queries[slot], warpgroup);
    }
    queries = shared_address(shared.queries[slot]) + warpgroup * 64 * 128;

    auto cap_and_mask = [&](int tile) {
      if constexpr (kSoftcap) {
#pragma unroll
        for (int i = 0; i < 64; ++i) s[i] = tanh_fast(s[i] * p.score_scale);
      }
      const int first_key = tile * kKeys;
      const int end = p.causal ? work.position + first_token + 1 : work.context;
      const bool ends = first_key + kKeys > end;
      const bool begins = p.window && first_key <= work.position + last_token - p.window;
      if (!ends && !begins) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int position = work.position + token[h];
        const int column = first_key + 2 * (lane % 4);
        const int high = (p.causal ? position + 1 : work.context) - column;
        const int low = p.window ? position + 1 - p.window - column : -kKeys;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          const int key = 8 * (i / 2) + i % 2;
          float& score = s[4 * (i / 2) + 2 * h + i % 2];
          if (key >= high || key < low) score = -INFINITY;
        }
      }
    };
    // Tiles that keys outside the context, or before any query's window, are in.
    const int first_seen = p.window ? max(0, work.position - p.window + 1) : 0;
    auto wait_values = [&](int tile, uint32_t number) {
      shared.values_full[number % kStages].wait_phase(number / kStages);
      const int first_key = tile * kKeys;
      if (first_key + kKeys > work.context || first_key < first_seen) {
        zero_values<kDim>(shared.values[number % kStages], first_seen - first_key,
                          work.context - first_key, warpgroup);
      }
    };

#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0.f;
    int tile = work.last_tile;
    shared.keys_full[tiles % kStages].wait_phase(tiles / kStages);
    wait_turn();
    multiply_keys();
    pass_turn();
    wait_products<0>();
    pin(s);
    release(shared.keys_free[tiles % kStages]);
    if (tile == work.first_tile) release(shared.queries_free[slot]);
    cap_and_mask(tile);
    softmax.reset();
    softmax.update(s, p.exp2_scale);
    pack_probabilities();
    ++tiles;
    while (--tile >= work.first_tile) {
      shared.keys_full[tiles % kStages].wait_phase(tiles / kStages);
      wait_turn();
      multiply_keys();
      wait_values(tile + 1, tiles - 1);
      multiply_values(tiles - 1);
      pass_turn();
      wait_products<1>();
      pin(s);
      release(shared.keys_free[tiles % kStages]);
      if (tile == work.first_tile) release(shared.queries_free[slot]);
      cap_and_mask(tile);
      // All of the softmax runs under the products of values. Their operand must not change before
      // they are done: ptxas would make each product wait for the one before.
      uint32_t words[32];
      bool rescale;
      if constexpr (kPresume) {
        rescale = softmax.update<Product>(s, p.exp2_scale, words);
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
        for (int i = 0; i < 32; ++i) probabilities[i] = words[i] ^ zero;
      } else {
        pack_probabilities();
      }
      if (rescale) {
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= softmax.rescale[i / 2 % 2];
      }
      ++tiles;
    }
    wait_values(tile + 1, tiles - 1);
    multiply_values(tiles - 1);
    wait_products<0>();
    pin(o);
    release(shared.values_free[(tiles - 1) % kStages]);
    softmax.add_lanes();
    float2 found[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) found[h] = {softmax.max[h] * p.exp2_scale, softmax.sum[h]};
    if (work.num_parts > 1) {
      const bool in_turn = p.pieces == kInTurn;
      const Part<kDim> part(p, in_turn ? blockIdx.x : work.item);
      if (in_turn && work.part > 0) join_part<kDim>(part, p.part_rows, o, found, first_row);
      if (!in_turn || work.part + 1 < work.num_parts) {
        store_part<kDim>(part, p.part_rows, o, found, first_row);
        continue;
      }
    }
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = out_scale<T>(p, work.kv_head * p.group + head[h], found[h]);
    }
    T* out = static_cast<T*>(p.out) + static_cast<long long>(work.first_token) * p.out_stride +
             work.kv_head * p.group * kDim;
    store<T, kDim>(shared.out[first_row / 16], o, scale, out, out_offset,
                   work.num_tokens * p.out_stride);
  }
}

template <typename T, int kDim, bool kSoftcap, bool kFloat8>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, 1)
    attend(const __grid_constant__ CUtensorMap query_map,
           const __grid_constant__ CUtensorMap cache_map, const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, kFloat8>*>(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    prefetch(query_map);
    if constexpr (!kFloat8) prefetch(cache_map);
    constexpr int kConsumerWarps = 4 * Tile<kDim>::kWarpgroups;
    constexpr int kWriters = kFloat8 ? kWideners : 1;
    for (int i = 0; i < shared.kQueryStages; ++i) {
      shared.queries_full[i].init(1);
      shared.queries_free[i].init(kConsumerWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      shared.keys_full[i].init(kWriters);
      shared.values_full[i].init(kWriters);
      shared.keys_free[i].init(kConsumerWarps);
      shared.values_free[i].init(kConsumerWarps);
    }
    if constexpr (kFloat8) {
      for (int i = 0; i < shared.raw.kStages; ++i) {
        shared.raw.full[i].init(1);
        shared.raw.free[i].init(kWideners);
      }
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (warpgroup == Tile<kDim>::kWarpgroups) {
    shrink_registers<Registers<kDim, kFloat8>::kProducer>();
    const int warp = threadIdx.x / 32 % 4;
    if (warp == 0) {
      produce(shared, query_map, cache_map, params);
    } else if constexpr (kFloat8) {
      widen(shared, warp - 1);
    }
  } else {
    grow_registers<Registers<kDim, kFloat8>::kConsumer>();
    consume<T, kSoftcap>(shared, params, warpgroup);
  }
}

}  // namespace octavo::prefill
