// Sorts a step's tokens by run, and cuts each run's into tiles.
#include "lora.cuh"

namespace octavo::lora {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

// Sums `value` over the threads before this one; `total` gets the sum over all.
__device__ int sum_before(int value, int* total) {
  __shared__ int sums[kWarps];
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
  for (int i = 0; i < kWarps; ++i) {
    before += i < warp ? sums[i] : 0;
    all += sums[i];
  }
  *total = all;
  return before + inclusive - value;
}

// One block. In shared memory, by a run's first row: how many tokens it has, later the place of its
// next; and its rank.
__global__ void __launch_bounds__(kThreads)
    group_kernel(const Groups groups, const int* first_of, const int* rank_of, int tokens,
                 int pool_rows, int max_rank, int tile_tokens) {
  extern __shared__ int cursors[];
  __shared__ int largest;
  auto* ranks = reinterpret_cast<unsigned short*>(cursors + pool_rows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int i = threadIdx.x; i < pool_rows; i += kThreads) cursors[i] = 0;
  if (threadIdx.x == 0) largest = 0;
  wait_for_previous();
  let_next_start();
  __syncthreads();

  for (int token = threadIdx.x; token < tokens; token += kThreads) {
    const int first = first_of[token], rank = rank_of[token];
    if (is_run(first, rank, pool_rows, max_rank)) {
      if (atomicAdd(&cursors[first], 1) == 0) {  // all tokens of a run have one rank
        ranks[first] = static_cast<unsigned short>(rank);
        atomicMax(&largest, rank);
      }
    }
  }
  __syncthreads();

  // A thread's rows stand together, so that one sum tells where its runs begin.
  const int share = (pool_rows + kThreads - 1) / kThreads;
  const int begin_row = min(pool_rows, static_cast<int>(threadIdx.x) * share);
  const int end_row = min(pool_rows, begin_row + share);
  int my_tokens = 0, my_tiles = 0, all_tokens, all_tiles;
  for (int row = begin_row; row < end_row; ++row) {
    my_tokens += cursors[row];
    my_tiles += (cursors[row] + tile_tokens - 1) / tile_tokens;
  }
  int place = sum_before(my_tokens, &all_tokens), tile = sum_before(my_tiles, &all_tiles);
  if (threadIdx.x == 0) *groups.num_tiles = all_tiles, *groups.largest_rank = largest;
  for (int row = begin_row; row < end_row; ++row) {
    const int count = cursors[row];
    for (int i = 0; i < count; i += tile_tokens) {
      groups.tiles[tile++] = {row, ranks[row], place + i, min(tile_tokens, count - i)};
    }
    cursors[row] = place;
    place += count;
  }
  __syncthreads();

  // Tokens take their places in order: warp after warp, in a warp by lane.
  for (int base = 0; base < tokens; base += kThreads) {
    const int token = base + threadIdx.x;
    int first = -1;
    if (token < tokens && is_run(first_of[token], rank_of[token], pool_rows, max_rank)) {
      first = first_of[token];
    }
    const int turns = min(kWarps, (tokens - base + 31) / 32);
    for (int turn = 0; turn < turns; ++turn) {
      if (warp == turn) {
        const unsigned mates = __match_any_sync(0xffffffff, first);
        const int leader = __ffs(mates) - 1;
        int mine = 0;
        if (lane == leader && first >= 0) {
          mine = cursors[first];
          cursors[first] = mine + __popc(mates);
        }
        mine = __shfl_sync(0xffffffff, mine, leader) + __popc(mates & ((1u << lane) - 1));
        if (first >= 0) groups.token_of[mine] = token;
      }
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace octavo::lora

OCTAVO_EXPORT int octavo_lora_group(void* room, const void* first_of, const void* rank_of,
                                    int tokens, int pool_rows, int max_rank, int tile_tokens,
                                    int max_tiles, void* stream) {
  using namespace octavo;
  using namespace octavo::lora;
  const Groups groups = groups_in(room, max_tiles);
  const size_t shared = pool_rows * (sizeof(int) + sizeof(unsigned short));
  constexpr size_t kUnasked = 40 * 1024;  // of 48 KB, for some is static
  if (shared > kUnasked) {
    const cudaError_t error = cudaFuncSetAttribute(
        group_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  return launch(group_kernel, dim3(1), dim3(kThreads), shared, static_cast<cudaStream_t>(stream),
                groups, static_cast<const int*>(first_of), static_cast<const int*>(rank_of), tokens,
                pool_rows, max_rank, tile_tokens);
}
