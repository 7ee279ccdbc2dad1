// Which tiles of which rows a block of threads takes: even shares of all, found from lengths that
// lie on the device.
#pragma once

#include "tiles.cuh"

namespace octavo::latent {

// By all threads; the result is in `shared.scores.share` for all.
template <typename S>
__device__ __forceinline__ Share find_share(const Arguments& arguments,
                                            typename S::Shared& shared) {
  const int rows = arguments.at.rows;
  const int each = (rows + S::kThreads - 1) / S::kThreads;
  const int first = min(static_cast<int>(threadIdx.x) * each, rows), last = min(first + each, rows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long own = 0;
  for (int row = first; row < last; ++row) own += arguments.tiles_of(row);
  long long upto = own;  // the sum of this thread and those before it
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const long long other = __shfl_up_sync(0xFFFFFFFF, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) shared.scores.scan[warp] = upto;
  if (threadIdx.x == 0) shared.scores.share = {0, 0, 0, 0};
  __syncthreads();
  long long total = 0;
#pragma unroll
  for (int w = 0; w < S::kWarps; ++w) {
    if (w < warp) upto += shared.scores.scan[w];
    total += shared.scores.scan[w];
  }
  __syncthreads();
  long long begin = blockIdx.x * total / gridDim.x, end = (blockIdx.x + 1) * total / gridDim.x;
  long long at = upto - own;
  if (arguments.at.by_row) {
    // The rows whose first tile is in the share of so many rows.
    const int mine = blockIdx.x * static_cast<long long>(rows) / gridDim.x;
    const int next = (blockIdx.x + 1) * static_cast<long long>(rows) / gridDim.x;
    for (int row = first; row < last; ++row) {
      if (row == mine) shared.scores.scan[0] = at;
      at += arguments.tiles_of(row);
      if (row == next - 1) shared.scores.scan[1] = at;
    }
    __syncthreads();
    begin = shared.scores.scan[0], end = shared.scores.scan[1];
    at = upto - own;
  }
  if (begin < end && at <= begin && begin < upto) {
    int row = first;
    for (int tiles; at + (tiles = arguments.tiles_of(row)) <= begin; ++row) at += tiles;
    shared.scores.share = {row, static_cast<int>(begin - at), static_cast<int>(end - begin), 0};
  }
  __syncthreads();
  return shared.scores.share;
}

// Brings tiles into shared memory in their order: by one warp, each of whose first lanes has a row
// of every tile. Where the next tile is has been read before it is asked for. In shared memory, as
// the other warps need their registers.
template <typename S> struct Copies {
  int row, position, length;  // of the lane's row in the next tile
  int left, stage;
  int column, lane_index, place;
  const uint8_t* source;

  __device__ __forceinline__ void start(const Arguments& arguments, const Share& share) {
    row = share.row, left = share.count, stage = 0;
    if (left > 0) start_row(arguments, share.tile * kTileRows);
  }

  // A row that is not there is not looked for.
  __device__ __forceinline__ void copy_tile(const Arguments& arguments,
                                            typename S::Shared& shared) {
    if (left == 0) return;
    const int lane = threadIdx.x % 32, row_bytes = 16 * S::kRowPieces;
    Barrier& full = shared.full[stage];
    if (lane == 0) full.arrive_and_expect(min(kTileRows, length - position) * row_bytes);
    __syncwarp(kLanes);
    if (position < length) {
      copy_bytes(shared_address(shared.tiles[stage]) + lane * S::kRowBytes, source, row_bytes,
                 full);
    }
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    if (--left > 0) advance(arguments);
  }

 private:
  static constexpr uint32_t kLanes = (1u << kTileRows) - 1;

  __device__ __forceinline__ void start_row(const Arguments& arguments, int first) {
    length = arguments.context_lens[row];
    position = first + threadIdx.x % 32;
    const int at = min(position, length - 1);
    const int block_rows = arguments.at.lanes * arguments.at.lane_rows;
    column = at / block_rows;
    lane_index = (at - column * block_rows) / arguments.at.lane_rows;
    place = at - column * block_rows - lane_index * arguments.at.lane_rows;
    source = arguments.address(row, column, lane_index, place);
  }

  __device__ __forceinline__ void advance(const Arguments& arguments) {
    position += kTileRows;
    if (position - static_cast<int>(threadIdx.x % 32) >= length) {
      do ++row;
      while (arguments.context_lens[row] == 0);
      start_row(arguments, 0);
    } else if (position < length) {
      place += kTileRows;
      source += 2 * kTileRows * arguments.at.dim;
      while (place >= arguments.at.lane_rows) {
        place -= arguments.at.lane_rows;
        source += arguments.at.lane_stride - 2ll * arguments.at.lane_rows * arguments.at.dim;
        if (++lane_index == arguments.at.lanes) {
          lane_index = 0;
          ++column;
          source = arguments.address(row, column, lane_index, place);
        }
      }
    }
  }
};

}  // namespace octavo::latent
