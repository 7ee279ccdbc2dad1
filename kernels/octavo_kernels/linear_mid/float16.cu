#include "launch.cuh"

namespace octavo::linear_mid {

cudaError_t run_float16(const Arguments& a, int tile_rows, int splits) {
  return run<__half>(a, tile_rows, splits);
}

}  // namespace octavo::linear_mid
