// Copies whole blocks, bytes as they are, between pages or between pages and pinned host memory.
#include "octavo.cuh"

namespace {

using namespace octavo;

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // 64 bytes a thread in flight

struct Moves {
  const char *source;
  char *target;
  const long long *sources, *targets;
  long long block_bytes;
  long long source_lane_bytes, target_lane_bytes;
};

// A block copies kThreads * kUnroll accesses of one block of one lane.
template <typename Access>
__global__ void __launch_bounds__(kThreads) move_blocks(const Moves moves) {
  let_next_start();
  wait_for_previous();
  const long long lane = blockIdx.z;
  const long long from = moves.sources[blockIdx.x], to = moves.targets[blockIdx.x];
  const Access *source = reinterpret_cast<const Access *>(
      moves.source + lane * moves.source_lane_bytes + from * moves.block_bytes);
  Access *target = reinterpret_cast<Access *>(
      moves.target + lane * moves.target_lane_bytes + to * moves.block_bytes);
  const long long total = moves.block_bytes / sizeof(Access);
  const long long first = static_cast<long long>(blockIdx.y) * (kThreads * kUnroll) + threadIdx.x;
  Access held[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i)
    if (first + i * kThreads < total) held[i] = source[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i)
    if (first + i * kThreads < total) target[first + i * kThreads] = held[i];
}

}  // namespace

OCTAVO_EXPORT int octavo_move_blocks(const void *source, void *target, const long long *sources,
                                     const long long *targets, int num_moves, int num_lanes,
                                     long long block_bytes, long long source_lane_bytes,
                                     long long target_lane_bytes, cudaStream_t stream) {
  const Moves moves{static_cast<const char *>(source), static_cast<char *>(target), sources,
                    targets, block_bytes, source_lane_bytes, target_lane_bytes};
  const bool whole = ((reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target) |
                       block_bytes | source_lane_bytes | target_lane_bytes) & 15) == 0;
  const long long per_block = kThreads * kUnroll * (whole ? 16 : 1);
  const dim3 grid(num_moves, static_cast<unsigned>((block_bytes + per_block - 1) / per_block),
                  num_lanes);
  return whole ? launch(move_blocks<int4>, grid, kThreads, 0, stream, moves)
               : launch(move_blocks<char>, grid, kThreads, 0, stream, moves);
}
