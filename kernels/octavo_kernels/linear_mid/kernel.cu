#include "launch.cuh"

// Sizes are checked by the caller: features and rows multiples of 8, a gated product's rows of 16;
// rows of x begin at multiples of 16 bytes, those of out at multiples of 8.
OCTAVO_EXPORT int octavo_linear_mid(void* out, const void* x, const void* weight, const void* bias,
                                    int dtype, int epilogue, int tile_rows, int splits, int tokens,
                                    int features, int rows, int64_t x_stride, int64_t out_stride,
                                    void* stream) {
  using namespace octavo::linear_mid;
  const Arguments arguments = {
      out,  x,        weight,     bias, epilogue, tokens, features,
      rows, x_stride, out_stride, static_cast<cudaStream_t>(stream)};
  return dtype == octavo::kBFloat16 ? run_bfloat16(arguments, tile_rows, splits)
                                    : run_float16(arguments, tile_rows, splits);
}
