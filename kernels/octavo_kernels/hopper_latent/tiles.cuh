// What one block keeps in shared memory, and where rows of the cache lie.
#pragma once

#include "hopper.cuh"

namespace octavo::latent {

using namespace octavo::hopper;

constexpr int kTileRows = 16;  // cached rows of a tile
constexpr int kMostShared = 227 * 1024;
constexpr float kLog2E = 1.4426950408889634f;

// As in __init__.py.
struct Geometry {
  long long q_row_stride, q_head_stride, out_row_stride, out_head_stride;  // in elements
  long long block_stride, lane_stride;                                     // in bytes
  long long table_stride;
  int dtype, rows, heads, dim, lanes, lane_rows, blocks, by_row;
};

struct Arguments {
  Geometry at;
  const void* q;
  const uint8_t* pages;
  const int* table;
  const int* table_rows;
  const int* context_lens;
  void* out;
  uint8_t* workspace;
  float scale;

  __device__ __forceinline__ int tiles_of(int row) const {
    return (context_lens[row] + kTileRows - 1) / kTileRows;
  }

  // Where a cached row begins: in a row's so many-th block, which is cut over lanes.
  __device__ __forceinline__ const uint8_t* address(int row, int column, int lane,
                                                    int place) const {
    const long long block = table[table_rows[row] * at.table_stride + column];
    return pages + block * at.block_stride + lane * at.lane_stride + 2ll * place * at.dim;
  }
};

// Of each block of threads in the workspace: the row and the tile in it that it begins with, and
// how many tiles are its own.
struct Share {
  int row, tile, count, unused;
};

template <typename S> struct Copies;

// Each warp has a part of the entries of a row, and 8 * kGroups heads of all.
template <typename Element, int kEntries, int kGroups_> struct Shape {
  using T = Element;
  static constexpr int kDim = kEntries;
  static constexpr int kGroups = kGroups_;  // of 8 heads
  static constexpr int kHeads = 8 * kGroups;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kWarpDim = kDim / kWarps;
  static constexpr int kSteps = kWarpDim / 16;
  static constexpr int kScorers = 4 * kHeads;  // threads, of one head and four rows each
  static_assert(kWarpDim % 16 == 0 && kScorers <= kThreads);
  static constexpr int kRowPieces = kDim / 8;            // of 16 bytes
  static constexpr int kRowBytes = 16 * kRowPieces + 16;  // so that rows begin in different banks
  static constexpr int kStageBytes = kTileRows * kRowBytes;
  static constexpr int kWeightStride = 24;  // of a head, in weights: no two threads in one bank
  // Of part of a row: the largest scores and the sums of weights, then outputs as elements.
  static constexpr int kTotalsBytes = 8 * kHeads;
  static constexpr int kPartialBytes = kTotalsBytes + kSteps * kGroups * kThreads * 8;

  struct Scores {
    alignas(16) float sums[kWarps][kHeads / 2][40];
    alignas(16) T weights[kHeads][kWeightStride];
    float rescale[kHeads];
    float2 totals[kHeads];  // the largest score and the sum of weights
    long long scan[kWarps];
    Share share;
  };
  static constexpr int kFit = (kMostShared - 256 - int(sizeof(Scores))) / kStageBytes;
  static constexpr int kStages = kFit < 8 ? kFit : 8;

  struct Shared {
    alignas(128) uint8_t tiles[kStages][kStageBytes];
    Scores scores;
    Barrier full[kStages];
    Copies<Shape> copies[kTileRows];
  };

  // Where the sum of a head and a row is in a warp's: neither those who write nor those who read
  // have two in one bank.
  __device__ __forceinline__ static int sum_at(int head, int place) {
    return head / 2 * 40 + head % 2 * 16 + place;
  }
};

// Loads four 8 x 8 matrices of 16-bit entries; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&pairs)[4], uint32_t source) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
               : "r"(source)
               : "memory");
}

}  // namespace octavo::latent
