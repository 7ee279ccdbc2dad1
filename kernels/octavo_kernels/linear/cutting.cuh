// How a launch cuts its product up; on the host.
#pragma once

#include <algorithm>

#include "exchange.cuh"

namespace octavo::linear {

// Fetching 256 bytes at once made streams 7 % slower.
constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

// One block per multiprocessor; up to 4 % fewer if all runs are then of one length, for then fewer
// blocks meet in a tile: 28672 x 4096 takes 55.1 us with 128 blocks and 58.7 with 132.
inline int choose_blocks(const Problem& problem, int multiprocessors) {
  const int64_t chunks = int64_t(problem.tiles) * problem.chunks;
  const int room = std::min(multiprocessors, kMaxBlocks);
  const int most = static_cast<int>(std::min<int64_t>(chunks, room));
  for (int blocks = most; blocks * 100 > most * 96; --blocks) {
    if (chunks % blocks == 0) return blocks;
  }
  return most;
}

template <typename Tile> Problem problem_of(const Arguments& a) {
  Problem problem;
  problem.out = a.out, problem.bias = a.bias, problem.out_stride = a.out_stride;
  problem.tokens = a.tokens;
  problem.out_features = a.out_features();
  problem.tiles = (a.rows + Tile::kRows - 1) / Tile::kRows;
  problem.chunks = (a.features + Tile::kChunk - 1) / Tile::kChunk;
  problem.epilogue = a.epilogue;
  return problem;
}

// The maps of the weight and of x.
template <typename T, typename Tile>
cudaError_t encode_operands(CUtensorMap* weight, CUtensorMap* x, const Arguments& a) {
  const cudaError_t error = encode_weight(weight, kDtypeOf<T>, a, Tile::kRows, kFetch);
  if (error != cudaSuccess) return error;
  return encode_matrix(x, kDtypeOf<T>, a.x, a.tokens, a.features, a.x_stride, Tile::kTokens,
                       kFetch);
}

// Calls `run` with the tiling for so many tokens a tile.
template <typename Run> cudaError_t with_tiling(int tile_tokens, Run&& run) {
  switch (tile_tokens) {
    case 8: return run(Tiling<8, 64>());
    case 16: return run(Tiling<16, 64>());
    case 32: return run(Tiling<32, 64>());
    case 64: return run(Tiling<64, 64>());
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace octavo::linear
