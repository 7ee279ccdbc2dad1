// Makes the tensor maps and launches the kernel.
#include <algorithm>
#include <cmath>

#include "attention.cuh"

namespace {

using namespace octavo::dense;

// Queries, keys or values: tokens so many elements apart, of which each has its heads in a run.
struct Operand {
  const void* data;
  long long stride;
};

struct Call {
  Operand q, k, v;
  void* out;
  char* work;
  int num_tokens, num_tiles, heads, head_dim, tile_rows;
  cudaStream_t stream;
};

template <typename T, int kDim> cudaError_t run(const Call& c) {
  using S = Shape<kDim>;
  if (c.tile_rows != S::kRows) return cudaErrorInvalidValue;
  if (c.num_tiles == 0) return cudaSuccess;
  int device, processors;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (cudaError_t error =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) {
    return error;
  }
  const auto encode = [&](CUtensorMap* map, const Operand& operand, cuuint32_t tokens) {
    const cuuint64_t dim = c.head_dim;
    return encode_map<3>(map, octavo::kDtypeOf<T>, operand.data,
                         {dim, cuuint64_t(c.heads), cuuint64_t(c.num_tokens)},
                         {dim * 2, cuuint64_t(operand.stride) * 2}, {kChunk, 1, tokens},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  };
  CUtensorMap query_map, key_map, value_map;
  if (cudaError_t error = encode(&query_map, c.q, S::kRows)) return error;
  if (cudaError_t error = encode(&key_map, c.k, S::kKeys)) return error;
  if (cudaError_t error = encode(&value_map, c.v, S::kKeys)) return error;

  Params params = {};
  params.out = c.out;
  params.counter = reinterpret_cast<unsigned*>(c.work);
  params.tiles = reinterpret_cast<const Tile*>(c.work) + 1;
  params.num_tiles = c.num_tiles;
  params.num_items = c.num_tiles * c.heads;
  params.heads = c.heads;
  params.head_dim = c.head_dim;
  params.exp2_scale = kLog2e / std::sqrt(static_cast<float>(c.head_dim));

  const auto kernel = attend<T, kDim>;
  constexpr int bytes = sizeof(Shared<kDim>);
  static_assert(bytes <= 227 << 10);
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) {
    return error;
  }
  return octavo::launch(kernel, dim3(std::min(processors, params.num_items)), dim3(S::kThreads),
                        bytes, c.stream, query_map, key_map, value_map, params);
}

template <typename T> cudaError_t run_dim(const Call& c) {
  if (c.head_dim <= 64) return run<T, 64>(c);
  if (c.head_dim <= 80) return run<T, 80>(c);
  if (c.head_dim <= 96) return run<T, 96>(c);
  return run<T, 128>(c);
}

}  // namespace

// `work` begins with 16 bytes of zeros, which it gets back; the tiles of a head follow, cut to
// `tile_rows` queries. Strides are in elements.
OCTAVO_EXPORT int octavo_dense_attention(const void* q, const void* k, const void* v, void* out,
                                         char* work, long long q_stride, long long k_stride,
                                         long long v_stride, int num_tokens, int num_tiles,
                                         int heads, int head_dim, int tile_rows, int dtype,
                                         cudaStream_t stream) {
  const Call call = {{q, q_stride}, {k, k_stride}, {v, v_stride}, out,       work,  num_tokens,
                     num_tiles,     heads,         head_dim,      tile_rows, stream};
  return dtype == octavo::kFloat16 ? run_dim<__half>(call) : run_dim<__nv_bfloat16>(call);
}
