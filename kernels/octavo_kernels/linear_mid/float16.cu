#include "launch.cuh"

namespace octavo::linear_mid {

cudaError_t run_float16(const Arguments& a) { return run<__half>(a); }

}  // namespace octavo::linear_mid
