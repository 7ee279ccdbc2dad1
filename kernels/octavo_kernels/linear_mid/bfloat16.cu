#include "launch.cuh"

namespace octavo::linear_mid {

cudaError_t run_bfloat16(const Arguments& a, int tile_rows, int splits) {
  return run<__nv_bfloat16>(a, tile_rows, splits);
}

}  // namespace octavo::linear_mid
