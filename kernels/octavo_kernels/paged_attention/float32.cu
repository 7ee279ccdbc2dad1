#include "paged_attention.cuh"

namespace octavo::paged {

cudaError_t launch_float32(const Params& p, cudaStream_t stream) {
  return launch_dtype<float>(p, stream);
}

}  // namespace octavo::paged
