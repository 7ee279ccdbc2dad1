#include "paged_attention.cuh"

namespace octavo::paged {

cudaError_t launch_bfloat16(const Params& p, cudaStream_t stream) {
  return launch_dtype<__nv_bfloat16>(p, stream);
}

}  // namespace octavo::paged
