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

// Brings tiles into shared memory in their order, each warp one or two rows of each. Where the next
// tile is has been read before it is asked for.
template <typename S> struct Copies {
  static constexpr int kRows = kTileRows / S::kWarps;  // of a warp: one behind the other
  static_assert(kRows >= 1);

  const Arguments& arguments;
  int row, position, length;  // of the warp's first row in the next tile
  int left, stage = 0;
  int column, lane_index, place;
  const uint8_t* source;

  __device__ __forceinline__ Copies(const Arguments& all, const Share& share)
      : arguments(all), row(share.row), left(share.count) {
    if (left > 0) start_row(share.tile * kTileRows);
  }

  __device__ __forceinline__ void start_row(int first) {
    length = arguments.context_lens[row];
    position = first + own_row();
    const int at = min(position, length - 1);
    const int block_rows = arguments.at.lanes * arguments.at.lane_rows;
    column = at / block_rows;
    lane_index = (at - column * block_rows) / arguments.at.lane_rows;
    place = at - column * block_rows - lane_index * arguments.at.lane_rows;
    find_source();
  }

  __device__ __forceinline__ static int own_row() { return threadIdx.x / 32 * kRows; }

  __device__ __forceinline__ void find_source() {
    source = arguments.address(row, column, lane_index, place) + 16 * (threadIdx.x % 32);
  }

  // The address of the next tile's rows. A row that is not there is not looked for.
  __device__ __forceinline__ void advance() {
    position += kTileRows;
    if (position - own_row() >= length) {
      do ++row;
      while (arguments.context_lens[row] == 0);
      start_row(0);
    } else if (position < length) {
      place += kTileRows;
      source += 2 * kTileRows * arguments.at.dim;
      while (place >= arguments.at.lane_rows) {
        place -= arguments.at.lane_rows;
        source += arguments.at.lane_stride - 2ll * arguments.at.lane_rows * arguments.at.dim;
        if (++lane_index == arguments.at.lanes) {
          lane_index = 0;
          ++column;
          find_source();
        }
      }
    }
  }

  __device__ __forceinline__ void copy_tile(typename S::Shared& shared) {
    if (left > 0) {
      const int lane = threadIdx.x % 32;
      const uint32_t target =
          shared_address(shared.tiles[stage]) + own_row() * S::kRowBytes + 16 * lane;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool is_seen = position + r < length;  // what lies behind may be NaN
#pragma unroll
        for (int i = 0; i < (S::kRowPieces + 31) / 32; ++i) {
          if (S::kRowPieces % 32 == 0 || 32 * i + lane < S::kRowPieces) {
            copy_async(target + r * S::kRowBytes + 512 * i,
                       source + r * 16 * S::kRowPieces + 512 * i, is_seen);
          }
        }
      }
      stage = stage + 1 == S::kStages ? 0 : stage + 1;
      if (--left > 0) advance();
    }
    commit_copies();
  }
};

}  // namespace octavo::latent
