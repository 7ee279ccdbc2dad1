// Makes the tensor maps and launches the kernel of a tile.
#pragma once

#include <atomic>

#include "product.cuh"

namespace octavo::linear_mid {

constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
constexpr int kMaxDevices = 64;

struct Arguments {
  void* out;
  const void *x, *weight, *bias;
  int epilogue, tokens, features, rows;
  int64_t x_stride, out_stride;
  int tile_rows, splits;  // see tiling.py
  int most_blocks;        // that run at once
  cudaStream_t stream;
};

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The weight [rows, features]. For a gated product the third of four axes is gate or up, so that
// one copy takes 8 rows of the one and the same 8 of the other by turns.
inline cudaError_t encode_weight(CUtensorMap* map, Dtype dtype, const Arguments& a) {
  const cuuint64_t rows = a.rows, features = a.features, row = features * 2;
  const cuuint32_t box = a.tile_rows;
  if (a.epilogue >= kSilu) {
    return encode_map<4>(map, dtype, a.weight, {features, 8, 2, rows / 16},
                         {row, rows / 2 * row, 8 * row}, {kChunk, 8, 2, box / 16}, kFetch);
  }
  return encode_map<4>(map, dtype, a.weight, {features, rows, 1, 1}, {row, row, row},
                       {kChunk, box, 1, 1}, kFetch);
}

template <typename T, typename Tile> cudaError_t allow_shared_memory() {
  static std::atomic<bool> known[kMaxDevices];
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  if (known[device].load()) return cudaSuccess;
  const auto kernel = product_kernel<T, Tile>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Shared));
  if (error != cudaSuccess) return error;
  // Else the driver may part shared memory and L1 so that this and the next kernel do not fit.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error == cudaSuccess) known[device] = true;
  return error;
}

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a) {
  Problem problem;
  problem.out = a.out, problem.bias = a.bias, problem.out_stride = a.out_stride;
  problem.tokens = a.tokens;
  problem.out_features = a.epilogue >= kSilu ? a.rows / 2 : a.rows;
  problem.row_tiles = ceil_div(a.rows, Tile::kRows);
  problem.token_tiles = ceil_div(a.tokens, kTokens);
  problem.chunks = ceil_div(a.features, kChunk);
  problem.splits = a.splits;
  problem.epilogue = a.epilogue;
  const int sums = a.splits > 1 ? a.splits * ceil_div(Tile::kUnits, a.splits) * kUnitBytes : 0;
  problem.stages = std::min((kRoomBytes - sums) / Tile::kStageBytes, kMaxStages);
  if (problem.stages < 2 || problem.chunks < a.splits) return cudaErrorInvalidValue;

  cudaError_t error = allow_shared_memory<T, Tile>();
  if (error != cudaSuccess) return error;
  CUtensorMap weight, x;
  error = encode_weight(&weight, kDtypeOf<T>, a);
  if (error != cudaSuccess) return error;
  error = encode_map<2>(&x, kDtypeOf<T>, a.x, {cuuint64_t(a.features), cuuint64_t(a.tokens)},
                        {cuuint64_t(a.x_stride * sizeof(T))}, {kChunk, kTokens}, kFetch);
  if (error != cudaSuccess) return error;

  // A block without splits takes tile after tile; with them, its shared memory holds one's sums.
  const int tiles = problem.row_tiles * problem.token_tiles;
  const int blocks = a.splits > 1 ? tiles * a.splits : std::min(tiles, a.most_blocks);
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(a.splits), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = a.stream;
  config.attrs = attributes;
  config.numAttrs = a.splits > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, product_kernel<T, Tile>, weight, x, problem);
}

// As TILE_ROWS in tiling.py.
template <typename T> cudaError_t run(const Arguments& a) {
  switch (a.tile_rows) {
    case 32: return run_tile<T, Tile<32>>(a);
    case 48: return run_tile<T, Tile<48>>(a);
    case 64: return run_tile<T, Tile<64>>(a);
    case 80: return run_tile<T, Tile<80>>(a);
    case 96: return run_tile<T, Tile<96>>(a);
    case 112: return run_tile<T, Tile<112>>(a);
    case 128: return run_tile<T, Tile<128>>(a);
    case 160: return run_tile<T, Tile<160>>(a);
    case 224: return run_tile<T, Tile<224>>(a);
    case 256: return run_tile<T, Tile<256>>(a);
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t run_bfloat16(const Arguments& a);
cudaError_t run_float16(const Arguments& a);

}  // namespace octavo::linear_mid
