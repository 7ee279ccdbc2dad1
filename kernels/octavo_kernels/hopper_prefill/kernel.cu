// Makes the tensor maps and launches the kernels.
#include <algorithm>

#include "attention.cuh"
#include "merge.cuh"

namespace {

using namespace octavo::prefill;

// A tile of head dim 128 has the larger parts. As in __init__.py.
constexpr long long kMostPartFloats = 128 * (128 + 2);
// Keys and values that are read by all blocks at about the same time; of 50 MB.
constexpr long long kL2Share = 32 << 20;
constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

// What calls share that differ in addresses and lengths only; as in geometry.py.
struct Geometry {
  long long q_stride, out_stride, block_stride, table_stride;  // in elements
  int heads, kv_heads, head_dim, dtype, cache_dtype;
  int blocks, block_tokens;
  int window;  // 0: none
  int causal;
  int sinks_are_float;
  float scale;
  float softcap;  // 0: none
  float out_scale;
};

template <typename T, int kDim, bool kSoftcap, bool kFloat8>
cudaError_t launch_kernels(const CUtensorMap& query_map, const CUtensorMap& cache_map,
                           const Params& params, int processors, cudaStream_t stream) {
  const auto kernel = attend<T, kDim, kSoftcap, kFloat8>;
  const int bytes = sizeof(Shared<kDim, kFloat8>);
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) {
    return error;
  }
  if (cudaError_t error =
          octavo::launch(kernel, dim3(std::min(processors, params.num_items)),
                         dim3(Tile<kDim>::kThreads), bytes, stream, query_map, cache_map, params)) {
    return error;
  }
  if (params.splits == 1) return cudaSuccess;
  constexpr int kRows = kMergeWarps * kMergeRows;  // of a block
  const dim3 grid(params.num_items / params.splits, (params.part_rows + kRows - 1) / kRows);
  return octavo::launch(merge<T, kDim>, grid, dim3(32 * kMergeWarps), 0, stream, params);
}

}  // namespace

// `query_lens` is in the host's memory; it, table_rows, query_starts and context_lens start at row
// 0. No context is longer than `max_context`. `workspace` begins with 16 bytes of zeros, which it
// gets back; the rest has room for a Part for each processor.
OCTAVO_EXPORT int octavo_hopper_prefill(const Geometry* geometry, const void* q, void* out,
                                        const void* cache, const int* table, const int* table_rows,
                                        const int* query_starts, const int* context_lens,
                                        const void* sinks, const int* query_lens, char* workspace,
                                        int num_tokens, int first_row, int num_rows,
                                        int max_context, int batch_invariant,
                                        cudaStream_t stream) {
  const Geometry& g = *geometry;
  const int group = g.heads / g.kv_heads;
  const bool is_float8 = g.cache_dtype == octavo::kFloat8;
  const int tile_tokens = (g.head_dim == 64 ? Tile<64>::kRows : Tile<128>::kRows) / group;
  int num_tiles = 0, longest = 0;
  for (int row = first_row; row < num_rows; ++row) {
    num_tiles += (query_lens[row] + tile_tokens - 1) / tile_tokens;
    longest = std::max(longest, query_lens[row]);
  }
  num_tiles *= g.kv_heads;
  if (num_tiles == 0) return cudaSuccess;

  int device, processors;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (cudaError_t error =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) {
    return error;
  }
  const int part_rows = std::min(longest, tile_tokens) * group;
  int splits = std::max(1, std::min(processors / num_tiles, max_context / (kKeys * kMinPart)));
  Pieces pieces = kNone;
  if (batch_invariant) {
    constexpr int kPieceTokens = kKeys * kPiece;
    int most = (max_context - 1) / kPieceTokens + 1;
    if (g.window) most = std::min(most, (g.window + tile_tokens) / kPieceTokens + 2);
    // The workspace is for a whole tile of each processor.
    const long long room = processors * kMostPartFloats / (part_rows * (g.head_dim + 2));
    const bool are_items = 2 * num_tiles <= processors && num_tiles <= room / most;
    if (most > 1) pieces = are_items ? kItems : kInTurn;
    splits = are_items ? most : 1;
  }

  const cuuint64_t dim = g.head_dim, halves = g.head_dim / 64;
  const auto dtype = static_cast<octavo::Dtype>(g.dtype);
  CUtensorMap query_map, cache_map = {};
  if (cudaError_t error = encode_map<3>(
          &query_map, dtype, q, {dim, cuuint64_t(g.heads), cuuint64_t(num_tokens)},
          {dim * 2, cuuint64_t(g.q_stride) * 2},
          {64, cuuint32_t(group), cuuint32_t(tile_tokens)}, kFetch)) {
    return error;
  }
  // (64 elements, token of an octet, which 64 of the head, octet of the block, block)
  if (!is_float8) {
    if (cudaError_t error = encode_map<5>(
            &cache_map, dtype, cache,
            {64, 8, halves, cuuint64_t(2 * g.kv_heads * g.block_tokens / 8), cuuint64_t(g.blocks)},
            {dim * 2, 128, dim * 16, cuuint64_t(g.block_stride) * 2},
            {64, 8, cuuint32_t(halves), cuuint32_t(g.block_tokens / 8), 1}, kFetch)) {
      return error;
    }
  }

  Params params = {};
  params.cache = static_cast<const uint8_t*>(cache);
  params.block_bytes = g.block_stride;
  params.table = table;
  params.table_rows = table_rows + first_row;
  params.query_starts = query_starts + first_row;
  params.context_lens = context_lens + first_row;
  params.sinks = sinks;
  params.out = out;
  params.counter = reinterpret_cast<unsigned*>(workspace);
  params.parts = reinterpret_cast<float*>(workspace + 16);
  params.table_stride = g.table_stride;
  params.out_stride = static_cast<int>(g.out_stride);
  params.rows = num_rows - first_row;
  params.num_items = num_tiles * splits;
  params.splits = splits;
  params.pieces = pieces;
  params.part_rows = part_rows;
  params.tile_tokens = tile_tokens;
  params.kv_heads = g.kv_heads;
  params.group = group;
  while (1 << params.block_bits < g.block_tokens) ++params.block_bits;
  const int entry_bytes = is_float8 ? 1 : 2;
  params.section_tokens = static_cast<int>(kL2Share / (2 * entry_bytes * g.head_dim));
  params.window = g.window;
  params.causal = g.causal;
  params.sinks_are_float = g.sinks_are_float;
  params.score_scale = g.softcap > 0 ? g.scale / g.softcap : g.scale;
  params.exp2_scale = (g.softcap > 0 ? g.softcap : g.scale) * kLog2e;
  params.out_scale = g.out_scale;

  auto run = [&](auto element, auto cap, auto float8) {
    using T = decltype(element);
    const auto launch = g.head_dim == 64 ? launch_kernels<T, 64, cap(), float8()>
                                         : launch_kernels<T, 128, cap(), float8()>;
    return launch(query_map, cache_map, params, processors, stream);
  };
  auto run_cache = [&](auto element, auto cap) {
    return is_float8 ? run(element, cap, std::true_type())
                             : run(element, cap, std::false_type());
  };
  auto run_type = [&](auto element) {
    return g.softcap > 0 ? run_cache(element, std::true_type())
                         : run_cache(element, std::false_type());
  };
  return g.dtype == octavo::kFloat16 ? run_type(__half()) : run_type(__nv_bfloat16());
}
