#include "attend.cuh"

namespace {

using namespace octavo;
using namespace octavo::latent;

template <typename T, int kDim>
cudaError_t launch_dim(const Arguments& arguments, cudaStream_t stream) {
  const int groups = (arguments.at.heads + 7) / 8;
  if (groups == 1) return launch_shape<Shape<T, kDim, 1>>(arguments, stream);
  if constexpr (kDim > 512) {
    if (groups == 3) return launch_shape<Shape<T, kDim, 3>>(arguments, stream);
  }
  return launch_shape<Shape<T, kDim, 2>>(arguments, stream);
}

// The caller has checked that there is such a shape.
template <typename T> cudaError_t launch_for(const Arguments& arguments, cudaStream_t stream) {
  switch (arguments.at.dim) {
    case 384: return launch_dim<T, 384>(arguments, stream);
    case 512: return launch_dim<T, 512>(arguments, stream);
    case 768: return launch_dim<T, 768>(arguments, stream);
    case 1024: return launch_dim<T, 1024>(arguments, stream);
    default: return launch_dim<T, 1280>(arguments, stream);
  }
}

}  // namespace

OCTAVO_EXPORT int octavo_hopper_latent(const Geometry* geometry, const void* q,
                                       const uint8_t* pages, const int* table,
                                       const int* table_rows, const int* context_lens, void* out,
                                       uint8_t* workspace, float scale, cudaStream_t stream) {
  const Arguments arguments = {*geometry,    q,   pages,     table, table_rows,
                               context_lens, out, workspace, scale};
  return geometry->dtype == kFloat16 ? launch_for<__half>(arguments, stream)
                                     : launch_for<__nv_bfloat16>(arguments, stream);
}
