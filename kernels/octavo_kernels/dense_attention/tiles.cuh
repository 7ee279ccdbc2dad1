// What is asked of the kernel, how it is cut into tiles, and where those lie in shared memory.
//
// A tile is up to `kRows` queries of one run, of one head. The host lists the tiles of a head,
// those with most keys first; items are these tiles for each head in turn, so that blocks at work
// at a time read the keys and values of few heads. Blocks take items from a counter until there are
// none left.
//
// In shared memory a head's entries lie in chunks of 64: rows of 128 bytes, one for each token,
// chunk behind chunk. Entries past the head's come as zeros; products skip those from kDim on.
#pragma once

#include "hopper_softmax.cuh"

namespace octavo::dense {

using namespace octavo::hopper;

constexpr int kWarpgroup = 128;  // threads
constexpr int kChunk = 64;       // entries
constexpr int kRowBytes = 2 * kChunk;
constexpr int kStages = 2;  // of keys and of values

// A run's queries from `first_token` on, and the run's keys; as `tiles` of __init__.py has them.
struct alignas(16) Tile {
  int first_token;
  int num_tokens;  // 0: no more work
  int first_key;
  int num_keys;
};

struct Params {
  void* out;          // [tokens, heads, head_dim]
  unsigned* counter;  // items taken; 0 between launches
  const Tile* tiles;
  int num_tiles;
  int num_items;  // num_tiles for each head
  int heads;
  int head_dim;
  float exp2_scale;  // of scores, with log2(e)
};

// How the work on heads of up to kDim entries is cut. Head dim 64 has half the products to each
// exponential that 128 has: a third warpgroup hides what it waits for.
template <int kDim> struct Shape {
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;  // that compute
  static constexpr int kKeys = 128;
  static constexpr int kQueryStages = 2;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = kWarpgroup * (kWarpgroups + 1);
  static constexpr int kChunks = (kDim + kChunk - 1) / kChunk;
  static constexpr int kColumns = kDim;  // of values in a product; they may end within a chunk
  static constexpr int kQueryBytes = kChunks * kRows * kRowBytes;
  static constexpr int kKeyBytes = kChunks * kKeys * kRowBytes;
  // Registers of a thread of the producer's warpgroup, and of those that compute: all there are.
  static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : 24;
  static constexpr int kConsumerRegisters = kWarpgroups == 3 ? 160 : 240;
};

template <int kDim> struct Shared {
  using S = Shape<kDim>;
  // The next tile's queries come while the last keys are worked on.
  alignas(1024) uint8_t queries[S::kQueryStages][S::kQueryBytes];
  alignas(1024) uint8_t keys[kStages][S::kKeyBytes];
  alignas(1024) uint8_t values[kStages][S::kKeyBytes];
  // Results on their way out, by warp; padded so that rows start in different banks.
  alignas(16) uint16_t out[S::kRows / 16][16][kDim + 8];
  Tile tiles[S::kQueryStages];
  int heads[S::kQueryStages];
  Barrier queries_full[S::kQueryStages], queries_free[S::kQueryStages];
  Barrier keys_full[kStages], keys_free[kStages];
  Barrier values_full[kStages], values_free[kStages];
};

}  // namespace octavo::dense
