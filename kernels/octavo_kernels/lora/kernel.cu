// Adds adapters' products to a layer's: what __init__.py calls.
#include <algorithm>

#include "lora.cuh"

namespace {

bool takes(int dtype, bool aligned) {
  return OCTAVO_ARCH >= 80 && dtype != octavo::kFloat32 && aligned;
}

}  // namespace

OCTAVO_EXPORT int octavo_lora_shrink(void* sums, const void* x, const void* down,
                                     const void* first_of, const void* rank_of, void* room,
                                     int dtype, int aligned, int tokens, int features, int parts,
                                     int max_rank, int pool_rows, int splits, int tile_tokens,
                                     int max_tiles, int settled, int64_t x_stride,
                                     void* stream) {
  using namespace octavo;
  using namespace octavo::lora;
  Shrink a = {};
  a.sums = static_cast<float*>(sums);
  a.x = x, a.down = down;
  a.first_of = static_cast<const int*>(first_of), a.rank_of = static_cast<const int*>(rank_of);
  a.groups = groups_in(room, max_tiles);
  a.tokens = tokens, a.features = features, a.parts = parts;
  a.max_rank = max_rank, a.pool_rows = pool_rows;
  a.splits = splits, a.max_tiles = max_tiles, a.settled = settled, a.x_stride = x_stride;
  const auto on = static_cast<cudaStream_t>(stream);
  const auto type = static_cast<Dtype>(dtype);
  return takes(dtype, aligned) ? shrink_on_tensor_cores(a, type, tile_tokens, on)
                               : shrink_plainly(a, type, on);
}

OCTAVO_EXPORT int octavo_lora_expand(void* out, const void* sums, const void* up,
                                     const void* first_of, const void* rank_of, void* room,
                                     const void* part_ends, int dtype, int aligned, int tokens,
                                     int parts, int max_rank, int pool_rows, int splits,
                                     int max_tiles, int settled, int64_t out_stride,
                                     void* stream) {
  using namespace octavo;
  using namespace octavo::lora;
  Expand a = {};
  a.out = out, a.sums = static_cast<const float*>(sums), a.up = up;
  a.first_of = static_cast<const int*>(first_of), a.rank_of = static_cast<const int*>(rank_of);
  a.groups = groups_in(room, max_tiles);
  std::copy_n(static_cast<const int*>(part_ends), parts, a.part_ends);
  a.tokens = tokens, a.parts = parts, a.max_rank = max_rank, a.pool_rows = pool_rows;
  a.splits = splits, a.max_tiles = max_tiles, a.settled = settled, a.out_stride = out_stride;
  const auto on = static_cast<cudaStream_t>(stream);
  const auto type = static_cast<Dtype>(dtype);
  return takes(dtype, aligned) ? expand_on_tensor_cores(a, type, on)
                               : expand_plainly(a, type, on);
}
