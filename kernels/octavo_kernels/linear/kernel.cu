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
#include "cutting.cuh"
#include "product.cuh"

namespace octavo::linear {
namespace {

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a) {
  const Problem problem = problem_of<Tile>(a);
  constexpr auto kKernel = linear_kernel<T, Tile>;
  int multiprocessors;
  CUtensorMap weight, x;
  cudaError_t error = prepare<kKernel>(sizeof(Ring<Tile>), &multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_operands<T, Tile>(&weight, &x, a);
  if (error != cudaSuccess) return error;
  return launch(kKernel, dim3(choose_blocks(problem, multiprocessors)), dim3(kThreads),
                sizeof(Ring<Tile>), a.stream, weight, x, problem);
}

// From so many rows on, tiles of 128: with 32 tokens, 128256 x 2048 took 125 us in them and 132 in
// tiles of 64. With fewer, too many blocks meet in a tile: 4096 x 4096 took 15.5 us and 12.9.
constexpr int kTallRows = 16384;

template <typename T> cudaError_t run(const Arguments& a, int tile_tokens) {
  if (a.rows >= kTallRows && tile_tokens == 32) return run_tile<T, Tiling<32, 128>>(a);
  if (a.rows >= kTallRows && tile_tokens == 64) return run_tile<T, Tiling<64, 128>>(a);
  return with_tiling(tile_tokens, [&](auto tile) { return run_tile<T, decltype(tile)>(a); });
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
