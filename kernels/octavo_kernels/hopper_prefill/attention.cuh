// The kernel: one producer warp copies tiles into shared memory, two or three warpgroups of 64
// rows each compute on them.
//
// A row of a tile of queries is one query head of one token. The `group` query heads that share a
// kv head stand side by side, so that a tile holds `tile_tokens` = rows / group tokens and one kv
// head, whatever the group. The tiles of a launch are numbered; blocks take numbers from a counter
// until there are none left. Where there are fewer tiles than processors, several blocks share a
// tile, each with a part of its keys; `merge` then joins what they found.
//
// In shared memory a tile of 128 keys or values is a run of octets (8 tokens); an octet is one atom
// of 8 rows x 128 bytes for each 64 elements of the head. So one copy brings one cache block, and
// all steps between atoms are the same, whatever the block's size.
#pragma once

#include "hopper.cuh"

namespace octavo::prefill {

using namespace octavo::hopper;

constexpr int kKeys = 128;
constexpr int kStages = 2;  // of queries, of keys and of values
constexpr int kWarpgroup = 128;  // threads
constexpr float kLog2e = 1.44269504088896f;
// The maximum that scores are taken relative to lags behind by up to this much (a power of two):
// most tiles then leave the sums as they are. Probabilities stay below 2^8, in range for fp16.
constexpr float kLag = 8.f;
// No part of a tile has fewer tiles of keys: 7 us of work, against 4 for writing and joining parts.
constexpr int kMinPart = 4;

struct Params {
  const int* table;         // [slots, table_width]
  const int* table_rows;    // [rows]
  const int* query_starts;  // [rows + 1]
  const int* context_lens;  // [rows]
  const void* sinks;        // [heads] or null
  void* out;                // [tokens, heads, dim]
  unsigned* counter;        // items taken; 0 between launches
  float* parts;             // what blocks that share a tile found: see Part
  long long table_stride;
  int out_stride;
  int rows;
  int num_items;  // tiles times `splits`
  int splits;     // blocks that may share a tile
  int tile_tokens;
  int kv_heads;
  int group;
  int block_bits;      // log2 of a block's tokens
  int section_tokens;  // keys and values of this many tokens of one head fill the L2's share
  int window;          // tokens that a query sees; 0 for all
  int causal;
  int sinks_are_float;
  float score_scale;  // of a raw score, before the soft cap if there is one
  float exp2_scale;   // from then on, with log2(e)
  float out_scale;
};

// What one tile of queries asks for.
struct alignas(16) Work {
  int first_token;
  int num_tokens;  // 0: no more work
  int position;    // of the first token
  int context;
  int kv_head;
  int first_tile, last_tile;  // of keys
  int table_row;
  int item;
  int num_parts;  // of which the tile is joined
};

// Head dim 64 has half the products to each exponential: a third warpgroup hides what it waits for.
template <int kDim> struct Tile {
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;  // that compute
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = kWarpgroup * (kWarpgroups + 1);
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 40;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 232;
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kOctetBytes = 8 * kDim * 2;
};

template <int kDim> struct Shared {
  alignas(1024) uint8_t queries[kStages][Tile<kDim>::kQueryBytes];
  alignas(1024) uint8_t keys[kStages][Tile<kDim>::kKeyBytes];
  alignas(1024) uint8_t values[kStages][Tile<kDim>::kKeyBytes];
  // Results on their way out, by warp; padded so that rows start in different banks.
  alignas(16) uint16_t out[Tile<kDim>::kRows / 16][16][kDim + 8];
  Work work[kStages];
  Barrier queries_full[kStages], queries_free[kStages];
  Barrier keys_full[kStages], keys_free[kStages];
  Barrier values_full[kStages], values_free[kStages];
};

// What a block found on its part of a tile, in float32; sums are not yet divided.
template <int kDim> struct Part {
  float sums[Tile<kDim>::kRows][kDim];
  float2 softmax[Tile<kDim>::kRows];  // maximum, in units of exp2's argument; sum
};

// ---- The producer.

// a / b for 0 <= a < 2^24 and b > 0: a third of the latency of the compiler's.
__device__ __forceinline__ int divide(int a, int b) {
  int quotient = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  quotient -= quotient * b > a;
  return quotient + ((quotient + 1) * b <= a);
}

// Finds what an item is; a warp works together, and asks for ever higher items. Empty are parts that
// a tile is too short for, and tiles that the host counted but the device's lengths lack.
class Rows {
 public:
  __device__ Rows(const Params& params) : p_(params) { load(); }

  __device__ Work find(int item) {
    int tile = p_.splits > 1 ? divide(item, p_.splits) : item;
    const int part = item - tile * p_.splits;
    while (tile >= before_ + __shfl_sync(~0u, end_, 31)) {
      before_ += __shfl_sync(~0u, end_, 31);
      base_ += 32;
      load();
      if (base_ >= p_.rows) return {};
    }
    int lane = __ffs(__ballot_sync(~0u, tile < before_ + end_)) - 1;
    int start = __shfl_sync(~0u, start_, lane);
    int length = __shfl_sync(~0u, length_, lane);
    int tiles = __shfl_sync(~0u, tiles_, lane);
    Work work = {};
    work.context = __shfl_sync(~0u, context_, lane);
    work.table_row = __shfl_sync(~0u, table_row_, lane);
    tile -= before_ + __shfl_sync(~0u, end_, lane) - tiles * p_.kv_heads;

    // Heads go in sections whose keys and values stay in the L2 together; in a section the last
    // queries, which have most to do, come first.
    int section = p_.kv_heads, first_head = 0;
    if (static_cast<long long>(work.context) * section > p_.section_tokens) {
      section = max(1, p_.section_tokens / work.context);
      first_head = divide(tile, tiles * section) * section;
      tile -= first_head * tiles;
      section = min(section, p_.kv_heads - first_head);
    }
    const int from_last = divide(tile, section);
    const int offset = (tiles - 1 - from_last) * p_.tile_tokens;
    work.kv_head = first_head + tile - from_last * section;
    work.first_token = start + offset;
    work.num_tokens = min(p_.tile_tokens, length - offset);
    work.position = work.context - length + offset;
    int end = p_.causal ? work.position + work.num_tokens : work.context;
    work.last_tile = (end - 1) / kKeys;
    work.first_tile = p_.window ? max(0, work.position - p_.window + 1) / kKeys : 0;
    work.item = item;
    work.num_parts = 1;
    if (p_.splits > 1) take_part(work, part);
    return work;
  }

 private:
  __device__ void take_part(Work& work, int part) {
    int tiles = work.last_tile - work.first_tile + 1;
    int length = (tiles - 1) / min(max(1, tiles / kMinPart), p_.splits) + 1;
    work.num_parts = (tiles - 1) / length + 1;
    if (part >= work.num_parts) work.num_tokens = 0;
    work.first_tile += part * length;
    work.last_tile = min(work.last_tile, work.first_tile + length - 1);
  }

  __device__ void load() {
    int row = base_ + threadIdx.x % 32;
    bool valid = row < p_.rows;
    start_ = valid ? p_.query_starts[row] : 0;
    length_ = valid ? p_.query_starts[row + 1] - start_ : 0;
    context_ = valid ? p_.context_lens[row] : 0;
    table_row_ = valid ? p_.table_rows[row] : 0;
    tiles_ = divide(length_ + p_.tile_tokens - 1, p_.tile_tokens);
    end_ = tiles_ * p_.kv_heads;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      int below = __shfl_up_sync(~0u, end_, step);
      if (threadIdx.x % 32 >= step) end_ += below;
    }
  }

  const Params& p_;
  int base_ = 0;    // row of lane 0
  int before_ = 0;  // tiles of rows before base_
  int start_, length_, context_, table_row_, tiles_;
  int end_;  // tiles of rows from base_ to this lane's, all heads
};

template <int kDim>
__device__ __forceinline__ void produce(Shared<kDim>& shared, const CUtensorMap& query_map,
                                        const CUtensorMap& cache_map, const Params& p) {
  const int lane = threadIdx.x % 32;
  const int blocks = kKeys >> p.block_bits;
  const int octets = 1 << p.block_bits >> 3;
  const int block_bytes = octets * Tile<kDim>::kOctetBytes;
  Rows rows(p);
  uint32_t tiles = 0;  // of keys, so far

  // One lane a block.
  auto copy = [&](uint8_t* to, Barrier& full, Barrier& free, int block, int head) {
    free.wait(tiles / kStages + 1);
    if (lane == 0) full.arrive_and_expect(Tile<kDim>::kKeyBytes);
    __syncwarp();
    if (lane < blocks) {
      copy_5d(shared_address(to) + lane * block_bytes, cache_map, full, 0, 0, 0, head * octets,
              block);
    }
  };

  int next = blockIdx.x;
  for (uint32_t done = 0;; ++done) {
    Work work = {};
    while (work.num_tokens == 0 && next < p.num_items) {
      work = rows.find(next);
      // The counter ends where it began: it is asked once for each item.
      if (lane == 0) next = gridDim.x + atomicInc(p.counter, p.num_items - 1);
      if (work.num_tokens == 0) next = __shfl_sync(~0u, next, 0);
    }
    const bool last = work.num_tokens == 0;
    const int* line = p.table + work.table_row * p.table_stride;
    const int last_block = (work.context - 1) >> p.block_bits;  // of the context
    auto block_of = [&](int tile) {
      return lane < blocks ? __ldg(line + min(tile * blocks + lane, last_block)) : 0;
    };
    int block = last ? 0 : block_of(work.last_tile), later_block = 0;
    const int slot = done % kStages;
    Barrier& full = shared.queries_full[slot];
    shared.queries_free[slot].wait(done / kStages + 1);
    if (lane == 0) {
      shared.work[slot] = work;
      if (last) {
        full.arrive();
      } else {
        full.arrive_and_expect(p.tile_tokens * p.group * kDim * 2);
#pragma unroll
        for (int half = 0; half < kDim / 64; ++half) {
          copy_3d(shared_address(shared.queries[slot]) + half * Tile<kDim>::kRows * 128, query_map, full,
                  half * 64, work.kv_head * p.group, work.first_token);
        }
      }
    }
    if (last) return;
    for (int i = work.last_tile; i >= work.first_tile; --i) {
      const int earlier_block = i > work.first_tile ? block_of(i - 1) : 0;
      const int stage = tiles % kStages;
      copy(shared.keys[stage], shared.keys_full[stage], shared.keys_free[stage], block,
           work.kv_head);
      // Values are asked for a tile later than keys: here those of tile i + 1.
      if (i < work.last_tile) {
        --tiles;
        copy(shared.values[stage ^ 1], shared.values_full[stage ^ 1],
             shared.values_free[stage ^ 1], later_block, p.kv_heads + work.kv_head);
        ++tiles;
      }
      later_block = block;
      block = earlier_block;
      ++tiles;
    }
    --tiles;
    const int stage = tiles % kStages;
    copy(shared.values[stage], shared.values_full[stage], shared.values_free[stage], later_block,
         p.kv_heads + work.kv_head);
    ++tiles;
    next = __shfl_sync(~0u, next, 0);
  }
}

// ---- The consumers.

// A thread's part of 64 rows x 128 scores: rows r and r + 8, with r = lane / 4 in its warp's 16;
// element 4 j + 2 h + e is row r + 8 h, key 8 j + 2 (lane % 4) + e.
using Scores = float[64];

// The running softmax of a thread's two rows. Sums are of the thread's own keys until the end.
struct Softmax {
  float max[2], sum[2], rescale[2];

  __device__ __forceinline__ void reset() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.f;
  }

  // Scores become probabilities; true if `rescale` is due to earlier sums.
  __device__ __forceinline__ bool update(Scores& s, float scale) {
    float part[2], largest[2];
    find_largest(s, largest);
    const bool grew = grow(largest, scale);
    exponentiate(s, scale, part, largest, [&](int i, float low, float high) {
      s[2 * i] = low;
      s[2 * i + 1] = high;
    });
    add(part);
    return grew;
  }

  // The same, with the probabilities packed elsewhere. That no maximum grows past the lag is
  // presumed, and checked under the exponentials: 3 % faster, but scores must be kept.
  template <typename T>
  __device__ __forceinline__ bool update(const Scores& s, float scale, uint32_t (&words)[32]) {
    float part[2], largest[2];
    const auto emit = [&](int i, float low, float high) { words[i] = pack<T>(low, high); };
    exponentiate(s, scale, part, largest, emit);
    const bool grew = grow(largest, scale);
    if (grew) exponentiate(s, scale, part, largest, emit);
    add(part);
    return grew;
  }

  // Of the four lanes that share a row.
  __device__ __forceinline__ void add_lanes() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
  }

 private:
  // Of the thread's scores; in chains of half the row, for the instructions' latency.
  __device__ __forceinline__ static void find_largest(const Scores& s, float (&largest)[2]) {
    float chains[4];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float larger = fmaxf(s[2 * i], s[2 * i + 1]);
      chains[i % 4] = i < 4 ? larger : fmaxf(chains[i % 4], larger);
    }
    largest[0] = fmaxf(chains[0], chains[2]);
    largest[1] = fmaxf(chains[1], chains[3]);
  }

  // Finds the largest scores on the way: in this order, so that the compiler mixes the two.
  template <typename Emit>
  __device__ __forceinline__ void exponentiate(const Scores& s, float scale, float (&part)[2],
                                               float (&largest)[2], Emit emit) const {
    float offset[2], sums[4] = {0.f, 0.f, 0.f, 0.f}, chains[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) offset[h] = max[h] == -INFINITY ? 0.f : max[h] * scale;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const float larger = fmaxf(s[2 * i], s[2 * i + 1]);
      chains[i % 4] = i < 4 ? larger : fmaxf(chains[i % 4], larger);
      const float low = exp2_fast(fmaf(s[2 * i], scale, -offset[i % 2]));
      const float high = exp2_fast(fmaf(s[2 * i + 1], scale, -offset[i % 2]));
      emit(i, low, high);
      sums[i % 2] += low;
      sums[2 + i % 2] += high;
    }
    part[0] = sums[0] + sums[2];
    part[1] = sums[1] + sums[3];
    largest[0] = fmaxf(chains[0], chains[2]);
    largest[1] = fmaxf(chains[1], chains[3]);
  }

  __device__ __forceinline__ void add(const float (&part)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = sum[h] * rescale[h] + part[h];
  }

  // Raises the maxima of rows that grow past the lag; true if there are any in the warp.
  __device__ __forceinline__ bool grow(float (&largest)[2], float scale) {
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 1));
      largest[h] = fmaxf(largest[h], __shfl_xor_sync(~0u, largest[h], 2));
      // Of two infinite maxima the difference is NaN: no growth.
      const float growth = (largest[h] - max[h]) * scale;
      const bool grows = growth > kLag;
      rescale[h] = grows ? exp2_fast(-growth) : 1.f;
      max[h] = grows ? largest[h] : max[h];
      any |= grows;
    }
    return __any_sync(~0u, any);
  }
};

// What a head's sink adds to the sum of a softmax with that maximum.
template <typename T>
__device__ __forceinline__ float sink_weight(const Params& p, int q_head, float max) {
  if (p.sinks == nullptr) return 0.f;
  const float sink = p.sinks_are_float ? static_cast<const float*>(p.sinks)[q_head]
                                       : to_float(static_cast<const T*>(p.sinks)[q_head]);
  return exp2_fast(sink * kLog2e - max);
}

// Zeroes the values of keys outside [begin, end) of a tile. Their probabilities are zero, but what
// lies past a context, or before a window, may be NaN.
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
  named_barrier_wait(1 + Tile<kDim>::kWarpgroups + warpgroup, kWarpgroup);
}

// Writes a warp's 16 rows, scaled, to `out`: through shared memory, so that whole rows are written at
// a time. Lane i has the offset of row i % 16; rows at `end` and past it are left out.
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

template <int kDim>
__device__ __forceinline__ void store_part(Part<kDim>& part, const float (&o)[kDim / 2],
                                           const Softmax& softmax, float exp2_scale,
                                           int first_row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<float2*>(&part.sums[row][8 * j + 2 * (lane % 4)]) =
          float2{o[4 * j + 2 * h], o[4 * j + 2 * h + 1]};
    }
    if (lane % 4 == 0) part.softmax[row] = float2{softmax.max[h] * exp2_scale, softmax.sum[h]};
  }
}

template <typename T, int kDim, bool kSoftcap>
__device__ __forceinline__ void consume(Shared<kDim>& shared, const Params& p, int warpgroup) {
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
  Scores s;
  float o[kDim / 2];
  uint32_t probabilities[32];
  Softmax softmax;
  uint32_t tiles = 0;  // of keys, so far

  auto multiply_keys = [&] {
    const uint32_t keys = shared_address(shared.keys[tiles % kStages]);
    begin_products();
#pragma unroll
    for (int d = 0; d < kDim; d += 16) {
      const uint32_t half = d / 64, within = d % 64 * 2;
      product_shared<T>(
          s, matrix_descriptor(queries + half * Tile<kDim>::kRows * 128 + within, 0, 1024),
          matrix_descriptor(keys + half * 1024 + within, 0, Tile<kDim>::kOctetBytes), d > 0);
    }
    commit_products();
  };
  auto multiply_values = [&](uint32_t tile) {
    const uint32_t values = shared_address(shared.values[tile % kStages]);
    begin_products();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      const uint32_t* a = probabilities + k / 4;
      product_registers<T>(o, a[0], a[1], a[2], a[3],
                           matrix_descriptor(values + k / 8 * Tile<kDim>::kOctetBytes, 1024,
                                             Tile<kDim>::kOctetBytes));
    }
    commit_products();
  };
  auto pack_probabilities = [&] {
#pragma unroll
    for (int i = 0; i < 32; ++i) probabilities[i] = pack<T>(s[2 * i], s[2 * i + 1]);
  };
  auto release = [&](Barrier& barrier) {
    if (lane == 0) barrier.arrive();
  };
  // Warpgroups take turns to issue products, so that one's softmax runs under another's products.
  auto wait_turn = [&] { named_barrier_wait(1 + warpgroup, 2 * kWarpgroup); };
  auto pass_turn = [&] {
    named_barrier_arrive(1 + (warpgroup + 1) % Tile<kDim>::kWarpgroups, 2 * kWarpgroup);
  };

  if (warpgroup == 0) named_barrier_arrive(1, 2 * kWarpgroup);  // the first turn
  for (uint32_t done = 0;; ++done) {
    const int slot = done % kStages;
    shared.queries_full[slot].wait(done / kStages);
    const Work work = shared.work[slot];
    if (work.num_tokens == 0) break;
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
      shared.values_full[number % kStages].wait(number / kStages);
      const int first_key = tile * kKeys;
      if (first_key + kKeys > work.context || first_key < first_seen) {
        zero_values<kDim>(shared.values[number % kStages], first_seen - first_key,
                          work.context - first_key, warpgroup);
      }
    };

#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) o[i] = 0.f;
    int tile = work.last_tile;
    shared.keys_full[tiles % kStages].wait(tiles / kStages);
    wait_turn();
    multiply_keys();
    pass_turn();
    wait_products<0>(s);
    release(shared.keys_free[tiles % kStages]);
    if (tile == work.first_tile) release(shared.queries_free[slot]);
    cap_and_mask(tile);
    softmax.reset();
    softmax.update(s, p.exp2_scale);
    pack_probabilities();
    ++tiles;
    while (--tile >= work.first_tile) {
      shared.keys_full[tiles % kStages].wait(tiles / kStages);
      wait_turn();
      multiply_keys();
      wait_values(tile + 1, tiles - 1);
      multiply_values(tiles - 1);
      pass_turn();
      wait_products<1>(s);
      release(shared.keys_free[tiles % kStages]);
      if (tile == work.first_tile) release(shared.queries_free[slot]);
      cap_and_mask(tile);
      // All of the softmax runs under the products of values. Their operand must not change before
      // they are done: ptxas would make each product wait for the one before.
      uint32_t words[32];
      bool rescale;
      if constexpr (kPresume) {
        rescale = softmax.update<T>(s, p.exp2_scale, words);
        pin(words);
      } else {
        rescale = softmax.update(s, p.exp2_scale);
        pin(s);
      }
      wait_products<0>(o);
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
    wait_products<0>(o);
    release(shared.values_free[(tiles - 1) % kStages]);
    softmax.add_lanes();
    if (work.num_parts > 1) {
      auto& part = reinterpret_cast<Part<kDim>*>(p.parts)[work.item];
      store_part<kDim>(part, o, softmax, p.exp2_scale, first_row);
      continue;
    }
    float scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float max = softmax.max[h] * p.exp2_scale;
      const float sink = sink_weight<T>(p, work.kv_head * p.group + head[h], max);
      scale[h] = __fdividef(p.out_scale, softmax.sum[h] + sink);
    }
    T* out = static_cast<T*>(p.out) + static_cast<long long>(work.first_token) * p.out_stride +
             work.kv_head * p.group * kDim;
    store<T, kDim>(shared.out[first_row / 16], o, scale, out, out_offset,
                   work.num_tokens * p.out_stride);
  }
}

template <typename T, int kDim, bool kSoftcap>
__global__ void __launch_bounds__(Tile<kDim>::kThreads, 1)
    attend(const __grid_constant__ CUtensorMap query_map,
           const __grid_constant__ CUtensorMap cache_map, const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    prefetch(query_map);
    prefetch(cache_map);
    constexpr int kConsumerWarps = 4 * Tile<kDim>::kWarpgroups;
    for (int i = 0; i < kStages; ++i) {
      shared.queries_full[i].init(1);
      shared.queries_free[i].init(kConsumerWarps);
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
  if (warpgroup == Tile<kDim>::kWarpgroups) {
    shrink_registers<Tile<kDim>::kProducerRegisters>();
    if (threadIdx.x / 32 % 4 == 0) produce(shared, query_map, cache_map, params);
  } else {
    grow_registers<Tile<kDim>::kConsumerRegisters>();
    consume<T, kDim, kSoftcap>(shared, params, warpgroup);
  }
}

// ---- Joining the parts of shared tiles: a warp a row at a time.

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
