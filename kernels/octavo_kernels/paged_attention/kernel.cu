#include "params.cuh"

// Sizes are checked by the caller: head_dim even and 256 at most, a head's key a multiple of 16
// bytes; blocks of 8, 16 or 32 tokens; `queries` 4, 8 or 16, and not less than tile_tokens times
// the heads of a group, or than 1 where those are more.
OCTAVO_EXPORT int octavo_paged_attention(
    const octavo::paged::Geometry* geometry, const void* q, const void* keys, const void* values,
    void* out, const int* table, const int* token_rows, const int* table_rows,
    const int* context_lens, const long long* positions, const float* sinks, const float* alibi,
    float* workspace, int num_tokens, int queries, int tile_tokens, int partitions, float scale,
    float v_scale, float softcap, cudaStream_t stream) {
  const octavo::paged::Params p = {
      *geometry,  q,         keys,         values,    out,   table,      token_rows,
      table_rows, context_lens, positions, sinks,     alibi, workspace,  num_tokens,
      queries,    tile_tokens,  partitions, scale,    v_scale, softcap};
  switch (geometry->dtype) {
    case octavo::kFloat32: return octavo::paged::launch_float32(p, stream);
    case octavo::kFloat16: return octavo::paged::launch_float16(p, stream);
    case octavo::kBFloat16: return octavo::paged::launch_bfloat16(p, stream);
    default: return cudaErrorInvalidValue;
  }
}
