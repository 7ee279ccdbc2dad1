#include "decode.cuh"

namespace {

using namespace octavo;
using namespace octavo::decode;

template <typename T> cudaError_t launch_for(const Arguments& arguments, cudaStream_t stream) {
  return arguments.at.cache_dtype == kFloat8 ? launch_decode<T, true>(arguments, stream)
                                             : launch_decode<T, false>(arguments, stream);
}

}  // namespace

OCTAVO_EXPORT int octavo_hopper_decode(const Geometry* geometry, const void* q,
                                       const uint8_t* pages, const int* table,
                                       const int* table_rows, const int* context_lens,
                                       const void* sinks, void* out, float* partials, const void* k,
                                       const void* v, const void* cos, const void* sin,
                                       const void* q_norm, const void* k_norm,
                                       const long long* slots, float scale, float softcap,
                                       float k_scale, float v_scale, float eps,
                                       cudaStream_t stream) {
  const Arguments arguments = {*geometry, q,      pages,  table, table_rows, context_lens,
                               sinks,     out,    partials, k,   v,          cos,
                               sin,       q_norm, k_norm, slots, scale,      softcap,
                               k_scale,   v_scale, eps};
  return geometry->dtype == kFloat16 ? launch_for<__half>(arguments, stream)
                                     : launch_for<__nv_bfloat16>(arguments, stream);
}
