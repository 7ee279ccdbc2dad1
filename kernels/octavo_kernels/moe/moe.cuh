// What the parts of a mixture-of-experts layer share.
//
// A pair is a token and one of its chosen experts. Pairs stand sorted by expert, and a pair's place
// in that order is its position: rows between the two products are by position.
#pragma once

#include "octavo.cuh"

namespace octavo::moe {

// As in __init__.py; all but kNone combine a gate and an up feature.
enum Activation : int { kNone = 0, kSilu, kGelu, kGeluTanh, kClampedSwiglu };

// Up to `tile_tokens` positions of one expert. Tiles of an expert follow each other.
struct alignas(16) TokenTile {
  int expert;
  int first_tile;  // of this expert
  int begin;       // the expert's first position
  int count;       // the expert's positions
};

// What the sort of pairs leaves on the device.
struct Order {
  int* num_tiles;
  TokenTile* tiles;
  int* token_of;     // by position
  int* position_of;  // by pair; -1 where the expert is not among this layer's
};

// One of the two products: out[position] = W[expert of position] x[row of position].
struct Product {
  void* out;           // [pairs, rows], or [pairs, rows / 2] with an activation
  const void* x;       // [.., features], of contiguous rows
  const void* weight;  // [experts, rows, features]; gates before ups
  const void* bias;    // [experts, rows], or null
  const int* row_of;   // by position; null: the position itself
  const TokenTile* tiles;
  const int* num_tiles;
  int experts, rows, features;
  Activation activation;

  __host__ __device__ int out_features() const { return activation == kNone ? rows : rows / 2; }
};

// `max_tiles` bounds *num_tiles, which only the device knows.
cudaError_t run_hopper(const Product& product, Dtype dtype, int tile_tokens, int max_tiles,
                       cudaStream_t stream);
cudaError_t run_portable(const Product& product, Dtype dtype, int tile_tokens, int max_tiles,
                         cudaStream_t stream);

// The only sizes of token tiles there are, in both.
constexpr int kHopperTiles[] = {8, 16, 32, 64, 128};
constexpr int kPortableTiles[] = {16, 64};

// A unit of work of a product: a token tile times a tile of rows. Units of a block's neighbours
// share what they read: an expert's token tiles take turns before the row tile advances.
struct Unit {
  int expert, row_tile, first_position, tokens;

  __device__ Unit(const TokenTile& tile, int unit, int row_tiles, int tile_tokens) {
    const int tiles = (tile.count + tile_tokens - 1) / tile_tokens;
    const int local = unit - tile.first_tile * row_tiles;
    const int begin = local % tiles * tile_tokens;
    expert = tile.expert;
    row_tile = local / tiles;
    first_position = tile.begin + begin;
    tokens = min(tile_tokens, tile.count - begin);
  }
};

__device__ __forceinline__ float activate(float gate, float up, Activation activation) {
  switch (activation) {
    case kSilu: return __fdividef(gate, 1.f + __expf(-gate)) * up;
    case kGelu: return .5f * gate * (1.f + erff(gate * .7071067811865476f)) * up;
    case kGeluTanh: {
      const float inner = .7978845608028654f * (gate + .044715f * gate * gate * gate);
      return .5f * gate * (1.f + tanhf(inner)) * up;
    }
    default: {  // kClampedSwiglu
      const float low = fminf(gate, 7.f), between = fminf(fmaxf(up, -7.f), 7.f);
      return __fdividef(low, 1.f + __expf(-1.702f * low)) * (between + 1.f);
    }
  }
}

}  // namespace octavo::moe
