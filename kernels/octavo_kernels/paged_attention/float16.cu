#include "paged_attention.cuh"

namespace octavo::paged {

cudaError_t launch_float16(const Params& p, cudaStream_t stream) {
  return launch_dtype<__half>(p, stream);
}

}  // namespace octavo::paged
