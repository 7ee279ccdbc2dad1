// y = x W^T for few tokens: a stream of weights through shared memory into the tensor cores.
//
// The tensor cores' M axis is 64 rows of the weight, their N axis the tokens, so that no work is
// lost on padding. The weight is cut into tiles of rows and these into chunks of the inner axis;
// each block takes a run of consecutive chunks. A run that begins inside a tile leaves its sums in
// `partials`; the block with the tile's first chunk adds what the others left, in their order, and
// finishes the tile. So a result depends on shapes only, never on timing.
//
// One warp of a block does nothing but start copies, into a ring of stages. It starts on the
// weights before the previous kernel has ended, so that memory is busy while small kernels between
// two products run. What remains between products is the way from the last weight to the next
// product's first: of each of its steps, latency counts, not throughput.
#include <algorithm>

#include "product.cuh"

namespace octavo::linear {
namespace {

// Fetching 256 bytes at once made streams 7 % slower.
constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

// One block per multiprocessor; up to 4 % fewer if all runs are then of one length, for then fewer
// blocks meet in a tile: 28672 x 4096 takes 55.1 us with 128 blocks and 58.7 with 132.
int choose_blocks(const Problem& problem, int multiprocessors) {
  const int64_t chunks = int64_t(problem.tiles) * problem.chunks;
  const int room = std::min(multiprocessors, kMaxBlocks);
  const int most = static_cast<int>(std::min<int64_t>(chunks, room));
  for (int blocks = most; blocks * 100 > most * 96; --blocks) {
    if (chunks % blocks == 0) return blocks;
  }
  return most;
}

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a) {
  Problem problem;
  problem.out = a.out, problem.bias = a.bias, problem.out_stride = a.out_stride;
  problem.tokens = a.tokens;
  problem.out_features = a.out_features();
  problem.tiles = (a.rows + Tile::kRows - 1) / Tile::kRows;
  problem.chunks = (a.features + Tile::kChunk - 1) / Tile::kChunk;
  problem.epilogue = a.epilogue;

  constexpr auto kKernel = linear_kernel<T, Tile>;
  int multiprocessors;
  CUtensorMap weight, x;
  cudaError_t error = prepare<kKernel>(sizeof(Ring<Tile>), &multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_weight(&weight, kDtypeOf<T>, a, Tile::kRows, kFetch);
  if (error != cudaSuccess) return error;
  error = encode_matrix(&x, kDtypeOf<T>, a.x, a.tokens, a.features, a.x_stride, Tile::kTokens,
                        kFetch);
  if (error != cudaSuccess) return error;
  return launch(kKernel, dim3(choose_blocks(problem, multiprocessors)), dim3(kThreads),
                sizeof(Ring<Tile>), a.stream, weight, x, problem);
}

// From so many rows on, tiles of 128: with 32 tokens, 128256 x 2048 took 125 us in them and 132 in
// tiles of 64. With fewer, too many blocks meet in a tile: 4096 x 4096 took 15.5 us and 12.9.
constexpr int kTallRows = 16384;

template <typename T> cudaError_t run(const Arguments& arguments, int tile_tokens) {
  const bool tall = arguments.rows >= kTallRows;
  switch (tile_tokens) {
    case 8:
      return run_tile<T, Tiling<8, 64>>(arguments);
    case 16:
      return run_tile<T, Tiling<16, 64>>(arguments);
    case 32:
      return tall ? run_tile<T, Tiling<32, 128>>(arguments)
                  : run_tile<T, Tiling<32, 64>>(arguments);
    case 64:
      return tall ? run_tile<T, Tiling<64, 128>>(arguments)
                  : run_tile<T, Tiling<64, 64>>(arguments);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace octavo::linear

OCTAVO_EXPORT int octavo_linear(void* out, const void* x, const void* weight, const void* bias,
                                int dtype, int epilogue, int tile_tokens, int tokens, int features,
                                int rows, int64_t x_stride, int64_t out_stride, void* stream) {
  using namespace octavo::linear;
  for (int token = 0; token < tokens; token += tile_tokens) {
    const Arguments arguments = {static_cast<char*>(out) + token * out_stride * 2,
                                 static_cast<const char*>(x) + token * x_stride * 2,
                                 weight,
                                 bias,
                                 epilogue,
                                 std::min(tile_tokens, tokens - token),
                                 features,
                                 rows,
                                 x_stride,
                                 out_stride,
                                 static_cast<cudaStream_t>(stream)};
    const cudaError_t error = dtype == octavo::kBFloat16
                                  ? run<__nv_bfloat16>(arguments, tile_tokens)
                                  : run<__half>(arguments, tile_tokens);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
