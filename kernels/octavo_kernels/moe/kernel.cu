// A mixture of experts: sorts pairs of token and expert, multiplies twice, adds up each token's.
#include <algorithm>

#include "moe.cuh"

namespace octavo::moe {
namespace {

// ---- sort ------------------------------------------------------------------------------------

constexpr int kSortThreads = 1024, kSortWarps = kSortThreads / 32;

// Sums `value` over the threads before this one; `total` gets the sum over all.
__device__ int sum_before(int value, int* total) {
  __shared__ int sums[kSortWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int inclusive = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(0xffffffff, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  __syncthreads();  // the call before has read its sums
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < kSortWarps; ++i) {
    before += i < warp ? sums[i] : 0;
    all += sums[i];
  }
  *total = all;
  return before + inclusive - value;
}

// Block e gives positions to the pairs of expert e, in the order of pairs. Each block counts all
// experts' pairs for itself: 32768 pairs are 128 KB from the L2, less than a second kernel costs.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(const int* ids, Order order, int pairs, int chosen, int experts, int tile_tokens) {
  extern __shared__ int counts[];
  const int expert = blockIdx.x;
  for (int i = threadIdx.x; i < experts; i += kSortThreads) counts[i] = 0;
  let_next_start();
  wait_for_previous();
  __syncthreads();
  for (int pair = threadIdx.x; pair < pairs; pair += kSortThreads) {
    const int id = ids[pair];
    if (0 <= id && id < experts) {
      atomicAdd(&counts[id], 1);
    } else if (expert == 0) {
      order.position_of[pair] = -1;
    }
  }
  __syncthreads();

  int pairs_before = 0, tiles_before = 0, tiles_here = 0;
  for (int i = threadIdx.x; i < experts; i += kSortThreads) {
    const int tiles = (counts[i] + tile_tokens - 1) / tile_tokens;
    pairs_before += i < expert ? counts[i] : 0;
    tiles_before += i < expert ? tiles : 0;
    tiles_here += tiles;
  }
  int begin, first_tile, num_tiles;
  sum_before(pairs_before, &begin);
  sum_before(tiles_before, &first_tile);
  if (expert == 0) {
    sum_before(tiles_here, &num_tiles);
    if (threadIdx.x == 0) *order.num_tiles = num_tiles;
  }
  const int count = counts[expert];
  if (count == 0) return;
  const int tiles = (count + tile_tokens - 1) / tile_tokens;
  for (int i = threadIdx.x; i < tiles; i += kSortThreads) {
    order.tiles[first_tile + i] = {expert, first_tile, begin, count};
  }

  // A thread's pairs stand together, so that one sum tells its positions.
  const int share = (pairs + kSortThreads - 1) / kSortThreads;
  const int first = min(pairs, static_cast<int>(threadIdx.x) * share);
  const int last = min(pairs, first + share);
  int mine = 0, all;
  for (int pair = first; pair < last; ++pair) mine += ids[pair] == expert;
  int position = begin + sum_before(mine, &all);
  for (int pair = first; pair < last; ++pair) {
    if (ids[pair] == expert) {
      order.token_of[position] = pair / chosen;
      order.position_of[pair] = position++;
    }
  }
}

// ---- sum -------------------------------------------------------------------------------------

constexpr int kSumThreads = 128;

// out[token] = (out[token] +) sum over k of weight * expert's row, in the order of k. Block (token,
// part of the row), 16 bytes a thread.
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(T* out, const T* rows, const int* position_of, const float* weights, int chosen,
               int hidden, bool adds) {
  using Access = Vec<T>;
  let_next_start();
  wait_for_previous();
  const int at = (blockIdx.y * kSumThreads + threadIdx.x) * Access::kSize;
  if (at >= hidden) return;
  const int64_t token = blockIdx.x;
  Access* target = reinterpret_cast<Access*>(out + token * hidden + at);
  float sums[Access::kSize] = {};
  if (adds) {
    const Access old = *target;
#pragma unroll
    for (int i = 0; i < Access::kSize; ++i) sums[i] = to_float(old.data[i]);
  }
#pragma unroll 4
  for (int k = 0; k < chosen; ++k) {
    const int64_t position = position_of[token * chosen + k];
    if (position < 0) continue;
    const float weight = weights[token * chosen + k];
    const Access row = *reinterpret_cast<const Access*>(rows + position * hidden + at);
#pragma unroll
    for (int i = 0; i < Access::kSize; ++i) sums[i] += weight * to_float(row.data[i]);
  }
  Access result;
#pragma unroll
  for (int i = 0; i < Access::kSize; ++i) result.data[i] = from_float<T>(sums[i]);
  *target = result;
}

template <typename T>
cudaError_t run_sum(void* out, const void* rows, const int* position_of, const float* weights,
                    int tokens, int chosen, int hidden, bool adds, cudaStream_t stream) {
  const int part = kSumThreads * Vec<T>::kSize;
  const dim3 grid(tokens, (hidden + part - 1) / part);
  return launch(sum_kernel<T>, grid, dim3(kSumThreads), 0, stream, static_cast<T*>(out),
                static_cast<const T*>(rows), position_of, weights, chosen, hidden, adds);
}

// ---- host ------------------------------------------------------------------------------------

// Twice the mean of an expert's pairs, so that most experts have one tile: of a second, the weights
// would go through the multiprocessors again. No expert has more pairs than there are tokens.
template <size_t kSizes>
int choose_tile(const int (&sizes)[kSizes], int tokens, int pairs, int experts) {
  const int wanted = std::min(tokens, 2 * ((pairs + experts - 1) / experts));
  for (const int size : sizes) {
    if (size >= wanted) return size;
  }
  return sizes[kSizes - 1];
}

}  // namespace
}  // namespace octavo::moe

// `order` has room for 4 + 4 * max_tiles + 2 * pairs ints, max_tiles for tiles of 8 positions;
// `between` for [pairs, intermediate] and [pairs, hidden] elements.
OCTAVO_EXPORT int octavo_moe_experts(void* out, const void* x, const void* gate_up,
                                     const void* down, const void* gate_up_bias,
                                     const void* down_bias, const void* ids, const void* weights,
                                     void* order_room, void* between, int dtype, int activation,
                                     int tokens, int chosen, int experts, int hidden,
                                     int intermediate, int adds, void* stream) {
  using namespace octavo;
  using namespace octavo::moe;
  const auto on = static_cast<cudaStream_t>(stream);
  const bool hopper = OCTAVO_ARCH == 90 && dtype != kFloat32;
  const int pairs = tokens * chosen;
  const int tile_tokens = hopper ? choose_tile(kHopperTiles, tokens, pairs, experts)
                                 : choose_tile(kPortableTiles, tokens, pairs, experts);
  const int max_tiles = pairs / tile_tokens + std::min(experts, pairs);

  Order order;
  order.num_tiles = static_cast<int*>(order_room);
  order.tiles = reinterpret_cast<TokenTile*>(order.num_tiles + 4);
  order.token_of = reinterpret_cast<int*>(order.tiles + max_tiles);
  order.position_of = order.token_of + pairs;
  cudaError_t error =
      launch(sort_kernel, dim3(experts), dim3(kSortThreads), experts * sizeof(int), on,
             static_cast<const int*>(ids), order, pairs, chosen, experts, tile_tokens);
  if (error != cudaSuccess) return error;

  const size_t element = dtype == kFloat32 ? 4 : 2;
  Product first = {};
  first.out = between;
  first.x = x;
  first.weight = gate_up;
  first.bias = gate_up_bias;
  first.row_of = order.token_of;
  first.tiles = order.tiles;
  first.num_tiles = order.num_tiles;
  first.experts = experts;
  first.rows = 2 * intermediate;
  first.features = hidden;
  first.activation = static_cast<Activation>(activation);
  Product second = first;
  second.out = static_cast<char*>(between) + element * pairs * intermediate;
  second.x = between;
  second.weight = down;
  second.bias = down_bias;
  second.row_of = nullptr;
  second.rows = hidden;
  second.features = intermediate;
  second.activation = kNone;
  const auto run = hopper ? run_hopper : run_portable;
  for (const Product& product : {first, second}) {
    error = run(product, static_cast<Dtype>(dtype), tile_tokens, max_tiles, on);
    if (error != cudaSuccess) return error;
  }

  const auto* factors = static_cast<const float*>(weights);
  switch (dtype) {
    case kFloat32:
      return run_sum<float>(out, second.out, order.position_of, factors, tokens, chosen, hidden,
                            adds, on);
    case kFloat16:
      return run_sum<__half>(out, second.out, order.position_of, factors, tokens, chosen, hidden,
                             adds, on);
    default:
      return run_sum<__nv_bfloat16>(out, second.out, order.position_of, factors, tokens, chosen,
                                    hidden, adds, on);
  }
}
