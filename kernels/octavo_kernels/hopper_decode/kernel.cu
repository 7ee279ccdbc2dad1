#include "decode.cuh"

namespace {

using namespace octavo;
using namespace octavo::decode;

template <typename T> cudaError_t launch_for(const Arguments& arguments, cudaStream_t stream) {
  return arguments.at.cache_dtype == kFloat8 ? launch_decode<T, true>(arguments, stream)
                                             : launch_decode<T, false>(arguments, stream);
}

}  // namespace

OCTAVO_EXPORT int octavo_hopper_decode(const Geometry* geometry, const void* q, const void* pages,
                                       const void* table, const void* table_rows,
                                       const void* context_lens, const void* sinks, void* out,
                                       void* partials, float scale, float softcap,
                                       float v_scale, cudaStream_t stream) {
  const Arguments arguments = {*geometry,
                               q,
                               static_cast<const uint8_t*>(pages),
                               static_cast<const int*>(table),
                               static_cast<const int*>(table_rows),
                               static_cast<const int*>(context_lens),
                               sinks,
                               out,
                               static_cast<float*>(partials),
                               scale,
                               softcap,
                               v_scale};
  return geometry->dtype == kFloat16 ? launch_for<__half>(arguments, stream)
                                     : launch_for<__nv_bfloat16>(arguments, stream);
}
