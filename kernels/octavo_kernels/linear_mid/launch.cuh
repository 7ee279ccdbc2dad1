// Makes the tensor maps and launches the kernel of a tile.
#pragma once

#include "product.cuh"

namespace octavo::linear_mid {

constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a, int splits) {
  Problem problem;
  problem.out = a.out, problem.bias = a.bias, problem.out_stride = a.out_stride;
  problem.tokens = a.tokens;
  problem.out_features = a.out_features();
  problem.row_tiles = ceil_div(a.rows, Tile::kRows);
  problem.token_tiles = ceil_div(a.tokens, kTokens);
  problem.chunks = ceil_div(a.features, kChunk);
  problem.splits = splits;
  problem.epilogue = a.epilogue;
  const int sums = splits > 1 ? splits * ceil_div(Tile::kUnits, splits) * kUnitBytes : 0;
  problem.stages = std::min((kRoomBytes - sums) / Tile::kStageBytes, kMaxStages);
  if (problem.stages < 2 || problem.chunks < splits) return cudaErrorInvalidValue;

  constexpr auto kKernel = product_kernel<T, Tile>;
  int multiprocessors;
  CUtensorMap weight, x;
  cudaError_t error = prepare<kKernel>(sizeof(Shared), &multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_weight(&weight, kDtypeOf<T>, a, Tile::kRows, kFetch);
  if (error != cudaSuccess) return error;
  error = encode_matrix(&x, kDtypeOf<T>, a.x, a.tokens, a.features, a.x_stride, kTokens, kFetch);
  if (error != cudaSuccess) return error;

  // A block without splits takes tile after tile; with them, its shared memory holds one's sums.
  const int tiles = problem.row_tiles * problem.token_tiles;
  const int blocks = splits > 1 ? tiles * splits : std::min(tiles, multiprocessors);
  return launch_clusters(kKernel, splits, dim3(blocks), dim3(kThreads), sizeof(Shared), a.stream,
                         weight, x, problem);
}

// As TILE_ROWS in tiling.py.
template <typename T> cudaError_t run(const Arguments& a, int tile_rows, int splits) {
  switch (tile_rows) {
    case 32: return run_tile<T, Tile<32>>(a, splits);
    case 48: return run_tile<T, Tile<48>>(a, splits);
    case 64: return run_tile<T, Tile<64>>(a, splits);
    case 80: return run_tile<T, Tile<80>>(a, splits);
    case 96: return run_tile<T, Tile<96>>(a, splits);
    case 112: return run_tile<T, Tile<112>>(a, splits);
    case 128: return run_tile<T, Tile<128>>(a, splits);
    case 160: return run_tile<T, Tile<160>>(a, splits);
    case 224: return run_tile<T, Tile<224>>(a, splits);
    case 256: return run_tile<T, Tile<256>>(a, splits);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t run_bfloat16(const Arguments& a, int tile_rows, int splits);
cudaError_t run_float16(const Arguments& a, int tile_rows, int splits);

}  // namespace octavo::linear_mid
