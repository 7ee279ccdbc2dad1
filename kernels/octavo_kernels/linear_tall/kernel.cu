// Makes the tensor maps and launches the kernel.
#include <algorithm>

#include "product.cuh"

namespace octavo::linear_tall {
namespace {

constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a) {
  Params p = {};
  p.bias = a.bias;
  p.epilogue = a.epilogue;
  p.outputs = a.out_features();
  p.half_to_half = Tile::kGated ? p.outputs : Tile::kHalf;
  p.slices = (a.features + kSlice - 1) / kSlice;
  p.pairs = (a.tokens + 2 * kTokens - 1) / (2 * kTokens);
  p.units = p.pairs * ((p.outputs + Tile::kOutputs - 1) / Tile::kOutputs);

  constexpr auto kKernel = product_kernel<T, Tile>;
  constexpr int kSharedBytes = 1024 + sizeof(Shared<Tile>);
  constexpr Dtype kDtype = kDtypeOf<T>;
  int multiprocessors;
  CUtensorMap x, weight, out;
  cudaError_t error = prepare<kKernel>(kSharedBytes, &multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_matrix(&x, kDtype, a.x, a.tokens, a.features, a.x_stride, kTokens, kFetch);
  if (error != cudaSuccess) return error;
  error = encode_matrix(&weight, kDtype, a.weight, a.rows, a.features, a.features, Tile::kHalf,
                        kFetch);
  if (error != cudaSuccess) return error;
  error = encode_map<2>(&out, kDtype, a.out, {cuuint64_t(p.outputs), cuuint64_t(a.tokens)},
                        {cuuint64_t(a.out_stride * sizeof(T))}, {Tile::kBox, 64}, kFetch);
  if (error != cudaSuccess) return error;
  const int blocks = 2 * std::min(multiprocessors / 2, p.units);
  return launch(kKernel, dim3(blocks), dim3(kThreads), kSharedBytes, a.stream, x, weight, out, p);
}

template <typename T, int kRows> cudaError_t run_rows(const Arguments& a) {
  if (is_gated(a.epilogue)) return run_tile<T, Tile<kRows, 4, Result::kGated>>(a);
  return is_plain_activation(a.epilogue) ? run_tile<T, Tile<kRows, 4, Result::kActivated>>(a)
                                         : run_tile<T, Tile<kRows, 4, Result::kAdded>>(a);
}

// As TILE_COSTS in __init__.py.
template <typename T> cudaError_t run(const Arguments& a, int tile_rows) {
  switch (tile_rows) {
    case 192: return run_rows<T, 192>(a);
    case 256: return run_rows<T, 256>(a);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace octavo::linear_tall

// Sizes are checked by the caller: as linear_mid's, but rows of out begin at multiples of 16 bytes.
// There is no kStore: cuBLAS is as fast.
OCTAVO_EXPORT int octavo_linear_tall(void* out, const void* x, const void* weight, const void* bias,
                                     int dtype, int epilogue, int tile_rows, int tokens,
                                     int features, int rows, int64_t x_stride, int64_t out_stride,
                                     void* stream) {
  using namespace octavo::linear_tall;
  if (epilogue == kStore) return cudaErrorInvalidValue;
  const Arguments arguments = {
      out,  x,        weight,     bias, epilogue, tokens, features,
      rows, x_stride, out_stride, static_cast<cudaStream_t>(stream)};
  return dtype == octavo::kBFloat16 ? run<__nv_bfloat16>(arguments, tile_rows)
                                    : run<__half>(arguments, tile_rows);
}
