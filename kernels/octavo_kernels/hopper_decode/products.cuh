// What is computed of a tile.
//
// A product of two fragments is 16 x 8. Scores are keys (16 tokens) times queries (8 heads
// of one key/value head), outputs are values (16 entries) times weights (8 heads): the few heads of
// a group fill the side of 8, and a lane has the same two heads in both products, so that maxima,
// sums and rescaling stay in its registers.
#pragma once

#include "merge.cuh"
#include "tiles.cuh"

namespace octavo::decode {

// Where a lane points load_matrices in a tile, for 16 tokens and 32 bytes of each. What repeats
// after 16 tokens or 128 bytes is left to the instruction's offset.
template <typename S> class Columns {
 public:
  __device__ __forceinline__ Columns(int token, int byte) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      columns_[i] = swizzle<S::kTokenBytes>(token * S::kTokenBytes + i * 32 + byte);
    }
  }
  // ``load`` counts 32 bytes, ``tokens`` 16 tokens.
  __device__ __forceinline__ int at(int tokens, int load) const {
    return columns_[load % kCount] + load / kCount * kCount * 32 + tokens * 16 * S::kTokenBytes;
  }

 private:
  static constexpr int kCount = S::kTokenBytes < 128 ? S::kTokenBytes / 32 : 4;
  int columns_[kCount];
};

// scores[i][n]: tokens 16 i to 16 i + 15 of the tile with heads 8 n to 8 n + 7.
template <typename S>
__device__ __forceinline__ void multiply_keys(
    uint32_t keys, const Columns<S>& columns,
    const uint32_t (&queries)[S::kSteps][S::kHeadTiles][2],
    float (&scores)[S::kTokenTiles][S::kHeadTiles][4]) {
  float odd[S::kTokenTiles][S::kHeadTiles][4] = {};  // two chains of products instead of one
#pragma unroll
  for (int i = 0; i < S::kTokenTiles; ++i) {
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][n][j] = 0.0f;
    }
  }
  constexpr int kStepsPerLoad = S::kFloat8 ? 2 : 1;
#pragma unroll
  for (int load = 0; load < S::kSteps / kStepsPerLoad; ++load) {
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
      uint32_t raw[4];
      load_matrices<false>(raw, keys + columns.at(i, load));
#pragma unroll
      for (int n = 0; n < S::kHeadTiles; ++n) {
        if constexpr (S::kFloat8) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t low = raw[2 * half], high = raw[2 * half + 1];
            const uint32_t a[4] = {widen_float8(low), widen_float8(high), widen_float8(low >> 16),
                                   widen_float8(high >> 16)};
            multiply_add<typename S::Product>(half ? odd[i][n] : scores[i][n], a,
                                              queries[load * 2 + half][n]);
          }
        } else {
          multiply_add<typename S::Product>(load % 2 ? odd[i][n] : scores[i][n], raw,
                                            queries[load][n]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < S::kTokenTiles; ++i) {
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) scores[i][n][j] += odd[i][n][j];
    }
  }
}

// Turns scores into weights, and brings the totals and what was summed before up to the new
// maxima. ``sum`` stays each lane's own until a segment ends.
template <typename S>
__device__ __forceinline__ void weigh(const Arguments& arguments, const RowTiles& tiles, int tile,
                                      float (&scores)[S::kTokenTiles][S::kHeadTiles][4],
                                      State<S>& state) {
  const int lane = threadIdx.x % 32, first = tile * S::kTileTokens;
  const int seen = max(tiles.context - arguments.at.window, 0);
  const bool is_whole = first >= seen && first + S::kTileTokens <= tiles.context;
  const bool is_capped = arguments.softcap > 0.0f;
  const float to_cap = is_capped ? arguments.scale / arguments.softcap : 0.0f;
  const float scale = (is_capped ? arguments.softcap : arguments.scale) * kLog2E;
#pragma unroll
  for (int n = 0; n < S::kHeadTiles; ++n) {
    float max_of[2] = {state.max[n][0], state.max[n][1]};
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float score = scores[i][n][j];
        if (is_capped) score = tanh_fast(score * to_cap);
        score *= scale;
        const int token = first + i * 16 + j / 2 * 8 + lane / 4;
        if (!is_whole && (token < seen || token >= tiles.context)) score = -INFINITY;
        scores[i][n][j] = score;
        max_of[j % 2] = fmaxf(max_of[j % 2], score);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      max_of[h] = over_rows(max_of[h], [](float x, float y) { return fmaxf(x, y); });
    }
    // Seldom, after a segment's first tiles.
    if (__any_sync(kAllLanes, max_of[0] > state.max[n][0] || max_of[1] > state.max[n][1])) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float factor = exp2_fast(state.max[n][h] - max_of[h]);
        state.max[n][h] = max_of[h];
        state.sum[n][h] *= factor;
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
          state.outputs[step][n][h] *= factor;
          state.outputs[step][n][h + 2] *= factor;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < S::kTokenTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        scores[i][n][j] = exp2_fast(scores[i][n][j] - max_of[j % 2]);
        state.sum[n][j % 2] += scores[i][n][j];
      }
    }
  }
}

// outputs[step][n]: entries 16 step to 16 step + 15 of heads 8 n to 8 n + 7. A lane's four are,
// with r = lane / 4, entries r and r + 8 of its heads; of one-byte values, 2 r and 2 r + 1.
template <typename S>
__device__ __forceinline__ void multiply_values(
    uint32_t values, const Columns<S>& columns,
    const float (&weights)[S::kTokenTiles][S::kHeadTiles][4],
    float (&outputs)[S::kSteps][S::kHeadTiles][4]) {
#pragma unroll
  for (int i = 0; i < S::kTokenTiles; ++i) {
    uint32_t right[S::kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
      const auto& w = weights[i][n];
      right[n][0] = transpose(pack<typename S::Product>(w[0], w[1]));
      right[n][1] = transpose(pack<typename S::Product>(w[2], w[3]));
    }
    if constexpr (S::kFloat8) {
#pragma unroll
      for (int load = 0; load < S::kSteps / 2; ++load) {
        uint32_t raw[4];
        load_matrices<true>(raw, values + columns.at(i, load));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Bytes are (entry 2 r, 2 r + 1) of one token, then of the next: entries apart first.
          const uint32_t low = __byte_perm(raw[2 * half], 0, 0x3120);
          const uint32_t high = __byte_perm(raw[2 * half + 1], 0, 0x3120);
          const uint32_t a[4] = {widen_float8(low), widen_float8(low >> 16), widen_float8(high),
                                 widen_float8(high >> 16)};
#pragma unroll
          for (int n = 0; n < S::kHeadTiles; ++n) {
            multiply_add<typename S::Product>(outputs[load * 2 + half][n], a, right[n]);
          }
        }
      }
    } else {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        uint32_t a[4];
        load_matrices<true>(a, values + columns.at(i, step));
#pragma unroll
        for (int n = 0; n < S::kHeadTiles; ++n) {
          multiply_add<typename S::Product>(outputs[step][n], a, right[n]);
        }
      }
    }
  }
}

}  // namespace octavo::decode
