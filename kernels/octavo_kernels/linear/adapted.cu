// A product with its tokens' adapters, for few tokens, in one launch.
#include "adapted_product.cuh"
#include "cutting.cuh"

namespace octavo::linear {
namespace {

template <typename T, typename Tile>
cudaError_t run_tile(const Arguments& a, const Adapters& adapters) {
  const Problem problem = problem_of<Tile>(a);
  constexpr auto kKernel = adapted_kernel<T, Tile>;
  constexpr size_t kSharedBytes = sizeof(AdaptedShared<Tile>);
  int multiprocessors;
  CUtensorMap weight, x;
  cudaError_t error = prepare<kKernel>(kSharedBytes, &multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_operands<T, Tile>(&weight, &x, a);
  if (error != cudaSuccess) return error;
  return launch(kKernel, dim3(choose_blocks(problem, multiprocessors)), dim3(kAdaptedThreads<Tile>),
                kSharedBytes, a.stream, weight, x, problem, adapters);
}

}  // namespace
}  // namespace octavo::linear

// As octavo_linear, for tokens of one tile; then what the adapters are.
OCTAVO_EXPORT int octavo_linear_adapted(void* out, const void* x, const void* weight,
                                        const void* bias, int dtype, int epilogue, int tile_tokens,
                                        int tokens, int features, int rows, int64_t x_stride,
                                        int64_t out_stride, const void* down, const void* up,
                                        const void* first_of, const void* rank_of, void* sums,
                                        void* stale, int stale_quads, const void* part_ends,
                                        int parts, int max_rank, int pool_rows, int splits,
                                        int settled, void* stream) {
  using namespace octavo::linear;
  const Arguments a = {out,      x,    weight,   bias,       epilogue, tokens,
                       features, rows, x_stride, out_stride, static_cast<cudaStream_t>(stream)};
  Adapters adapters = {};
  adapters.x = x, adapters.down = down, adapters.up = up;
  adapters.sums = static_cast<uint32_t*>(sums);
  adapters.stale = static_cast<uint4*>(stale), adapters.stale_quads = stale_quads;
  adapters.first_of = static_cast<const int*>(first_of);
  adapters.rank_of = static_cast<const int*>(rank_of);
  adapters.x_stride = x_stride, adapters.features = features, adapters.parts = parts;
  adapters.max_rank = max_rank, adapters.pool_rows = pool_rows, adapters.splits = splits;
  std::copy_n(static_cast<const int*>(part_ends), parts, adapters.part_ends);
  adapters.settled = settled;
  return with_tiling(tile_tokens, [&](auto tile) {
    using Tile = decltype(tile);
    return dtype == octavo::kBFloat16 ? run_tile<__nv_bfloat16, Tile>(a, adapters)
                                      : run_tile<__half, Tile>(a, adapters);
  });
}
