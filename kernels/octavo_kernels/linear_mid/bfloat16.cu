#include "launch.cuh"

namespace octavo::linear_mid {

cudaError_t run_bfloat16(const Arguments& a) { return run<__nv_bfloat16>(a); }

}  // namespace octavo::linear_mid
