// Who fills shared memory: one thread that asks for tiles.
#pragma once

#include "tiles.cuh"

namespace octavo::dense {

// Starts the copy of so many tokens of a head, from `first` on.
template <int kDim, int kTokens>
__device__ __forceinline__ void copy_tokens(uint8_t* to, const CUtensorMap& map, Barrier& full,
                                            int head, int first) {
#pragma unroll
  for (int chunk = 0; chunk < Shape<kDim>::kChunks; ++chunk) {
    copy_tile<3>(to + chunk * kTokens * kRowBytes, map, full, chunk * kChunk, head, first);
  }
}

template <int kDim>
__device__ __forceinline__ void produce(Shared<kDim>& shared, const CUtensorMap& query_map,
                                        const CUtensorMap& key_map, const CUtensorMap& value_map,
                                        const Params& p) {
  using S = Shape<kDim>;
  auto copy_keys = [&](uint32_t number, int head, int first) {
    const int stage = number % kStages;
    shared.keys_free[stage].wait_phase(number / kStages + 1);
    shared.keys_full[stage].arrive_and_expect(S::kKeyBytes);
    copy_tokens<kDim, S::kKeys>(shared.keys[stage], key_map, shared.keys_full[stage], head, first);
  };
  auto copy_values = [&](uint32_t number, int head, int first) {
    const int stage = number % kStages;
    shared.values_free[stage].wait_phase(number / kStages + 1);
    shared.values_full[stage].arrive_and_expect(S::kKeyBytes);
    copy_tokens<kDim, S::kKeys>(shared.values[stage], value_map, shared.values_full[stage], head,
                                first);
  };

  int item = blockIdx.x;
  uint32_t tiles = 0;  // of keys, so far
  for (uint32_t done = 0;; ++done) {
    Tile tile = {};
    int head = 0;
    const bool last = item >= p.num_items;
    if (!last) {
      head = item / p.num_tiles;
      tile = p.tiles[item - head * p.num_tiles];
      // The counter ends where it began: it is asked once for each item.
      item = gridDim.x + atomicInc(p.counter, p.num_items - 1);
    }
    const int slot = done % S::kQueryStages;
    Barrier& full = shared.queries_full[slot];
    shared.queries_free[slot].wait_phase(done / S::kQueryStages + 1);
    shared.tiles[slot] = tile;
    shared.heads[slot] = head;
    if (last) {
      full.arrive();
      return;
    }
    full.arrive_and_expect(S::kQueryBytes);
    copy_tokens<kDim, S::kRows>(shared.queries[slot], query_map, full, head, tile.first_token);
    const int last_tile = (tile.num_keys - 1) / S::kKeys;
    for (int i = last_tile; i >= 0; --i) {
      copy_keys(tiles, head, tile.first_key + i * S::kKeys);
      // Values are asked for a tile later than keys: here those of tile i + 1.
      if (i < last_tile) copy_values(tiles - 1, head, tile.first_key + (i + 1) * S::kKeys);
      ++tiles;
    }
    copy_values(tiles - 1, head, tile.first_key);
  }
}

}  // namespace octavo::dense
