// Who fills shared memory: a warp that asks for tiles, and warps that widen those in float8.
#pragma once

#include "tiles.cuh"

namespace octavo::prefill {

constexpr int kWideners = 3;  // warps: those of the producer's warpgroup that are left

template <int kDim, bool kFloat8>
__device__ __forceinline__ void produce(Shared<kDim, kFloat8>& shared,
                                        const CUtensorMap& query_map,
                                        const CUtensorMap& cache_map, const Params& p) {
  constexpr int kQueryStages = Shared<kDim, kFloat8>::kQueryStages;
  const int lane = threadIdx.x % 32;
  const int blocks = kKeys >> p.block_bits;
  const int octets = 1 << p.block_bits >> 3;
  Rows rows(p);
  uint32_t tiles = 0;  // of keys, so far
  [[maybe_unused]] uint32_t raw_tiles = 0;

  // Asks for a tile of a head's keys or values, the `number`-th of its kind; one lane a block.
  auto copy = [&](bool is_keys, uint32_t number, int block, int kv_head) {
    const int head = is_keys ? kv_head : p.kv_heads + kv_head;
    if constexpr (kFloat8) {
      auto& raw = shared.raw;
      const int stage = raw_tiles % raw.kStages, run_bytes = octets * 8 * kDim;
      raw.free[stage].wait_phase(raw_tiles / raw.kStages + 1);
      if (lane == 0) {
        raw.kind[stage] = is_keys ? raw.kTileOfKeys : raw.kTileOfValues;
        raw.full[stage].arrive_and_expect(raw.kBytes);
      }
      __syncwarp();
      if (lane < blocks) {
        copy_bytes(shared_address(raw.bytes[stage]) + lane * run_bytes,
                   p.cache + block * p.block_bytes + head * run_bytes, run_bytes, raw.full[stage]);
      }
      ++raw_tiles;
    } else {
      const int stage = number % kStages;
      Barrier& full = is_keys ? shared.keys_full[stage] : shared.values_full[stage];
      Barrier& free = is_keys ? shared.keys_free[stage] : shared.values_free[stage];
      uint8_t* to = is_keys ? shared.keys[stage] : shared.values[stage];
      free.wait_phase(number / kStages + 1);
      if (lane == 0) full.arrive_and_expect(Tile<kDim>::kKeyBytes);
      __syncwarp();
      if (lane < blocks) {
        copy_tile<5>(shared_address(to) + lane * octets * Tile<kDim>::kOctetBytes, cache_map, full,
                     0, 0, 0, head * octets, block);
      }
    }
  };

  int next = blockIdx.x;
  int item = 0, piece = 0;  // the piece that comes next of an item whose pieces come in turn
  for (uint32_t done = 0;; ++done) {
    Work work = {};
    if (piece > 0) work = rows.find(item, piece);
    while (work.num_tokens == 0 && next < p.num_items) {
      item = next;
      work = rows.find(item, 0);
      // The counter ends where it began: it is asked once for each item.
      if (lane == 0) next = gridDim.x + atomicInc(p.counter, p.num_items - 1);
      if (work.num_tokens == 0) next = __shfl_sync(~0u, next, 0);
    }
    piece = p.pieces == kInTurn && piece + 1 < work.num_parts ? piece + 1 : 0;
    const bool last = work.num_tokens == 0;
    const int* line = p.table + work.table_row * p.table_stride;
    const int last_block = (work.context - 1) >> p.block_bits;  // of the context
    auto block_of = [&](int tile) {
      return lane < blocks ? __ldg(line + min(tile * blocks + lane, last_block)) : 0;
    };
    int block = last ? 0 : block_of(work.last_tile), later_block = 0;
    const int slot = done % kQueryStages;
    Barrier& full = shared.queries_full[slot];
    shared.queries_free[slot].wait_phase(done / kQueryStages + 1);
    if (lane == 0) {
      shared.work[slot] = work;
      if (last) {
        full.arrive();
      } else {
        full.arrive_and_expect(p.tile_tokens * p.group * kDim * 2);
#pragma unroll
        for (int half = 0; half < kDim / 64; ++half) {
          copy_tile<3>(shared_address(shared.queries[slot]) + half * Tile<kDim>::kRows * 128,
                       query_map, full, half * 64, work.kv_head * p.group, work.first_token);
        }
      }
    }
    if (last) break;
    for (int i = work.last_tile; i >= work.first_tile; --i) {
      const int earlier_block = i > work.first_tile ? block_of(i - 1) : 0;
      copy(true, tiles, block, work.kv_head);
      // Values are asked for a tile later than keys: here those of tile i + 1.
      if (i < work.last_tile) copy(false, tiles - 1, later_block, work.kv_head);
      later_block = block;
      block = earlier_block;
      ++tiles;
    }
    copy(false, tiles - 1, later_block, work.kv_head);
    next = __shfl_sync(~0u, next, 0);
  }
  if constexpr (kFloat8) {
    const int stage = raw_tiles % shared.raw.kStages;
    shared.raw.free[stage].wait_phase(raw_tiles / shared.raw.kStages + 1);
    if (lane == 0) {
      shared.raw.kind[stage] = shared.raw.kEnd;
      shared.raw.full[stage].arrive();
    }
  }
}

// Four float8 as four float16: the same numbers.
__device__ __forceinline__ uint2 widen(uint32_t four) {
  uint2 pairs;
  asm("{\n.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n"
      "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(pairs.x), "=r"(pairs.y)
      : "r"(four));
  return pairs;
}

// Takes raw tiles to where products read them, one octet in three; `widener` is the warp's number.
template <int kDim>
__device__ __forceinline__ void widen(Shared<kDim, true>& shared, int widener) {
  constexpr int kLanes = kDim / 8;      // of a token: a lane has 8 entries
  constexpr int kTokens = 32 / kLanes;  // of a warp at once
  constexpr int kTurns = 8 / kTokens;   // for an octet
  auto& raw = shared.raw;
  const int lane = threadIdx.x % 32;
  const int piece = lane % kLanes, first_token = lane / kLanes;
  uint32_t keys = 0, values = 0;  // tiles so far
  for (uint32_t done = 0;; ++done) {
    const int stage = done % raw.kStages;
    raw.full[stage].wait_phase(done / raw.kStages);
    const auto kind = raw.kind[stage];
    if (kind == raw.kEnd) return;
    const bool is_keys = kind == raw.kTileOfKeys;
    const uint32_t number = is_keys ? keys++ : values++;
    const int target = number % kStages;
    (is_keys ? shared.keys_free : shared.values_free)[target].wait_phase(number / kStages + 1);
    uint8_t* const to = (is_keys ? shared.keys : shared.values)[target] + piece / 8 * 1024;
    const uint8_t* const from = raw.bytes[stage] + lane * 8;
    for (int octet = widener; octet < kKeys / 8; octet += kWideners) {
      uint2 pieces[kTurns];
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        pieces[i] = *reinterpret_cast<const uint2*>(from + octet * 8 * kDim + i * 256);
      }
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int token = i * kTokens + first_token;
        const uint2 low = widen(pieces[i].x), high = widen(pieces[i].y);
        *reinterpret_cast<uint4*>(to + octet * Tile<kDim>::kOctetBytes + token * 128 +
                                  (piece % 8 ^ token) * 16) = uint4{low.x, low.y, high.x, high.y};
      }
    }
    // What lanes read of the raw tile and wrote of the wide one is done, for the copy engine and
    // the tensor cores too, so lane 0 arrives for all. (racecheck of CUDA 13.0 takes it for lane
    // 0's alone, and reports those of the other 31 as hazards.)
    publish_shared_writes();
    __syncwarp();
    if (lane == 0) {
      raw.free[stage].arrive();
      (is_keys ? shared.keys_full : shared.values_full)[target].arrive();
    }
  }
}

}  // namespace octavo::prefill
