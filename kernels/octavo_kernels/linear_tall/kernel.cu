// Makes the tensor maps and launches the kernel.
#include <algorithm>
#include <atomic>

#include "product.cuh"

namespace {

using namespace octavo::tall;

constexpr int kMaxDevices = 64;
constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

template <typename Tile> constexpr int kSharedBytes = 1024 + sizeof(Shared<Tile>);

struct Call {
  void* out;
  const void *x, *weight, *bias;
  Epilogue epilogue;
  int tokens, features, rows;
  long long x_stride, out_stride;  // in elements
};

// Also lets the kernel have its shared memory, once per device.
template <typename T, typename Tile> cudaError_t multiprocessors(int* count) {
  static std::atomic<int> counts[kMaxDevices];
  int device;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  *count = counts[device].load();
  if (*count != 0) return cudaSuccess;
  if (cudaError_t error =
          cudaFuncSetAttribute(product<T, Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kSharedBytes<Tile>)) {
    return error;
  }
  cudaError_t error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  counts[device] = *count;
  return error;
}

template <typename T>
cudaError_t encode(CUtensorMap* map, const void* matrix, int rows, int columns, long long stride,
                   int box_rows, int box_columns) {
  return encode_map<2>(map, octavo::kDtypeOf<T>, matrix, {cuuint64_t(columns), cuuint64_t(rows)},
                       {cuuint64_t(stride) * sizeof(T)},
                       {cuuint32_t(box_columns), cuuint32_t(box_rows)}, kFetch);
}

template <typename T, typename Tile> cudaError_t run(const Call& call, cudaStream_t stream) {
  Params p = {};
  p.bias = call.bias;
  p.epilogue = call.epilogue;
  p.outputs = Tile::kGated ? call.rows / 2 : call.rows;
  p.half_to_half = Tile::kGated ? p.outputs : Tile::kHalf;
  p.slices = (call.features + kSlice - 1) / kSlice;
  p.pairs = (call.tokens + 2 * kTokens - 1) / (2 * kTokens);
  p.units = p.pairs * ((p.outputs + Tile::kOutputs - 1) / Tile::kOutputs);

  int processors;
  CUtensorMap x_map, weight_map, out_map;
  if (cudaError_t error = multiprocessors<T, Tile>(&processors)) return error;
  if (cudaError_t error =
          encode<T>(&x_map, call.x, call.tokens, call.features, call.x_stride, kTokens, kSlice)) {
    return error;
  }
  if (cudaError_t error = encode<T>(&weight_map, call.weight, call.rows, call.features,
                                    call.features, Tile::kHalf, kSlice)) {
    return error;
  }
  if (cudaError_t error = encode<T>(&out_map, call.out, call.tokens, p.outputs, call.out_stride,
                                    64, Tile::kBox)) {
    return error;
  }
  const int blocks = 2 * std::min(processors / 2, p.units);
  return octavo::launch(product<T, Tile>, dim3(blocks), dim3(kThreads), kSharedBytes<Tile>, stream,
                        x_map, weight_map, out_map, p);
}

template <typename T, bool kGated>
cudaError_t run(const Call& call, int tile_rows, cudaStream_t stream) {
  switch (tile_rows) {
    case 192: return run<T, Tile<192, 4, kGated>>(call, stream);
    case 256: return run<T, Tile<256, 4, kGated>>(call, stream);
    default: return cudaErrorInvalidValue;
  }
}

template <typename T> cudaError_t run(const Call& call, int tile_rows, cudaStream_t stream) {
  return call.epilogue >= kSilu ? run<T, true>(call, tile_rows, stream)
                                : run<T, false>(call, tile_rows, stream);
}

}  // namespace

// `x_stride` and `out_stride` are elements from row to row.
OCTAVO_EXPORT int octavo_linear_tall(void* out, const void* x, const void* weight,
                                     const void* bias, int dtype, int epilogue, int tile_rows,
                                     int tokens, int features, int rows, long long x_stride,
                                     long long out_stride, cudaStream_t stream) {
  const Call call = {out,      x,    weight,   bias,      static_cast<Epilogue>(epilogue), tokens,
                     features, rows, x_stride, out_stride};
  return dtype == octavo::kFloat16 ? run<__half>(call, tile_rows, stream)
                                   : run<__nv_bfloat16>(call, tile_rows, stream);
}
