// What is asked of the kernels, how it is cut into tiles, and where those lie in shared memory.
//
// A row of a tile of queries is one query head of one token. The `group` query heads that share a
// kv head stand side by side, so that a tile holds `tile_tokens` = rows / group tokens and one kv
// head, whatever the group. The tiles of a launch are numbered; blocks take numbers from a counter
// until there are none left. Where there are fewer tiles than processors, several blocks share a
// tile, each with a part of its keys; `merge` then joins what they found.
//
// Where no result may depend on others', parts are pieces of the context that begin at fixed
// positions. Each is an item, or a block takes those of a tile in turn and joins them itself: with
// the same operations in the same order as `merge`, so that the host is free to choose.
//
// In shared memory a tile of 128 keys or values is a run of octets (8 tokens); an octet is one atom
// of 8 rows x 128 bytes for each 64 elements of the head. So one copy brings one cache block, and
// all steps between atoms are the same, whatever the block's size. Tiles of a float8 cache come as
// they lie in it, and are widened to float16 on the way to their places.
#pragma once

#include "hopper.cuh"

namespace octavo::prefill {

using namespace octavo::hopper;

constexpr int kKeys = 128;
constexpr int kStages = 2;  // of keys and of values
constexpr int kWarpgroup = 128;  // threads
// No part of a tile has fewer tiles of keys: 7 us of work, against 4 for writing and joining parts.
constexpr int kMinPart = 4;
constexpr int kPiece = 8;  // tiles of keys that are a part if parts follow from positions alone

// What parts are, if they follow from positions alone.
enum Pieces : int { kNone, kItems, kInTurn };

struct Params {
  const int* table;         // [slots, table_width]
  const int* table_rows;    // [rows]
  const int* query_starts;  // [rows + 1]
  const int* context_lens;  // [rows]
  const void* sinks;        // [heads] or null
  void* out;                // [tokens, heads, dim]
  const uint8_t* cache;     // float8 only: others are copied by a tensor map
  long long block_bytes;    // from block to block of that
  unsigned* counter;        // items taken; 0 between launches
  float* parts;             // what is found on parts of tiles: see Part
  long long table_stride;
  int out_stride;
  int rows;
  int num_items;  // tiles times `splits`
  int splits;     // blocks that may share a tile
  Pieces pieces;
  int part_rows;  // of a tile that hold queries
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
  int part;
  int num_parts;  // of which the tile is joined
};

// Head dim 64 has half the products to each exponential: a third warpgroup hides what it waits for.
template <int kDim> struct Tile {
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;  // that compute
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = kWarpgroup * (kWarpgroups + 1);
  static constexpr int kQueryBytes = kRows * kDim * 2;
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kOctetBytes = 8 * kDim * 2;
};

// Of a thread of the producer's warpgroup, and of those that compute: all that there are.
template <int kDim, bool kFloat8> struct Registers {
  static constexpr int kProducer = kDim == 64 ? 32 : kFloat8 ? 56 : 40;
  static constexpr int kConsumer = kDim == 64 ? 160 : kFloat8 ? 224 : 232;
};

// Tiles of a float8 cache, as they lie in it, on their way to the warps that widen them.
template <int kDim> struct RawTiles {
  enum Kind : int { kTileOfKeys, kTileOfValues, kEnd };
  static constexpr int kStages = 2;
  static constexpr int kBytes = kKeys * kDim;
  alignas(16) uint8_t bytes[kStages][kBytes];
  Kind kind[kStages];
  Barrier full[kStages], free[kStages];
};

struct Nothing {};

template <int kDim, bool kFloat8> struct Shared {
  // The next tile's queries come while the last keys are worked on. Raw tiles leave them no room.
  static constexpr int kQueryStages = kFloat8 ? 1 : 2;
  alignas(1024) uint8_t queries[kQueryStages][Tile<kDim>::kQueryBytes];
  alignas(1024) uint8_t keys[kStages][Tile<kDim>::kKeyBytes];
  alignas(1024) uint8_t values[kStages][Tile<kDim>::kKeyBytes];
  std::conditional_t<kFloat8, RawTiles<kDim>, Nothing> raw;
  // Results on their way out, by warp; padded so that rows start in different banks.
  alignas(16) uint16_t out[Tile<kDim>::kRows / 16][16][kDim + 8];
  Work work[kQueryStages];
  Barrier queries_full[kQueryStages], queries_free[kQueryStages];
  Barrier keys_full[kStages], keys_free[kStages];
  Barrier values_full[kStages], values_free[kStages];
};

// What was found on the so many-th part, in float32: of each row sums that are not yet divided, and
// behind all of them each row's maximum, in units of exp2's argument, and sum of weights.
template <int kDim> struct Part {
  float* sums;
  float2* softmax;

  __device__ __forceinline__ Part(const Params& p, int number)
      : sums(p.parts + static_cast<long long>(number) * p.part_rows * (kDim + 2)),
        softmax(reinterpret_cast<float2*>(sums + p.part_rows * kDim)) {}
};

// One row of two parts together: what the sums of each are multiplied by.
struct Join {
  float before, after, max, sum;

  __device__ __forceinline__ Join(float2 first, float2 second) {
    max = fmaxf(first.x, second.x);
    // A part of which the row sees nothing is left out.
    before = second.x == -INFINITY ? 1.f : exp2_fast(first.x - max);
    after = second.x == -INFINITY ? 0.f : exp2_fast(second.x - max);
    sum = join(first.y, second.y);
  }

  __device__ __forceinline__ float join(float first, float second) const {
    return __fmaf_rn(second, after, __fmul_rn(first, before));
  }
};

// a / b for 0 <= a < 2^24, b > 0 and a result below 2^21: a third of the latency of the compiler's.
__device__ __forceinline__ int divide(int a, int b) {
  int quotient = static_cast<int>(__fdividef(static_cast<float>(a), static_cast<float>(b)));
  quotient -= quotient * b > a;
  return quotient + ((quotient + 1) * b <= a);
}

// Finds what an item is; a warp works together, and asks for ever higher items. Empty are parts
// that a tile is too short for, and tiles that the host counted but the device's lengths lack.
class Rows {
 public:
  __device__ Rows(const Params& params) : p_(params) { load(); }

  // `piece`: the one of an item whose pieces come in turn.
  __device__ Work find(int item, int piece) {
    int tile = p_.splits > 1 ? divide(item, p_.splits) : item;
    const int part = p_.pieces == kInTurn ? piece : item - tile * p_.splits;
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
    if (p_.pieces != kNone) {
      take_piece(work, part);
    } else if (p_.splits > 1) {
      take_part(work, part);
    }
    return work;
  }

 private:
  __device__ static void take_piece(Work& work, int part) {
    const int first = work.first_tile / kPiece, piece = first + part;
    work.part = part;
    work.num_parts = work.last_tile / kPiece - first + 1;
    if (part >= work.num_parts) work.num_tokens = 0;
    work.first_tile = max(work.first_tile, piece * kPiece);
    work.last_tile = min(work.last_tile, piece * kPiece + kPiece - 1);
  }

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

}  // namespace octavo::prefill
