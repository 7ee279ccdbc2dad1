// Attention of one query per row over a paged cache, see reference.py.
//
// A product of two fragments is 16 x 8. Scores are keys (16 tokens) times queries (8 heads
// of one key/value head), outputs are values (16 entries) times weights (8 heads): the few heads of
// a group fill the side of 8, and a lane has the same two heads in both products, so that maxima,
// sums and rescaling stay in its registers.
#pragma once

#include "merge.cuh"
#include "token.cuh"

namespace octavo::decode {

template <typename Element, bool kFloat8Cache, int kHeadDim, int kHeadTiles8> struct Shape {
  using T = Element;                                             // of queries and outputs
  using Product = std::conditional_t<kFloat8Cache, __half, T>;   // of matrix products
  static constexpr bool kFloat8 = kFloat8Cache;
  static constexpr int kDim = kHeadDim;
  static constexpr int kHeadTiles = kHeadTiles8;                 // of 8 heads
  static constexpr int kTokenBytes = kDim * (kFloat8 ? 1 : 2);   // of one head's key
  // Tiles of 4 KB, so that a tile's latencies (1000 cycles from the arrival of the keys to the last
  // product) weigh alike for all types: at full bandwidth, with two blocks on a processor, a tile
  // of keys and values arrives every 3500 cycles per warp.
  static constexpr int kTileTokens = kTokenBytes >= 256 ? 16 : 4096 / kTokenBytes;
  static constexpr int kTileBytes = kTileTokens * kTokenBytes;
  static constexpr int kTokenTiles = kTileTokens / 16;
  static constexpr int kSteps = kDim / 16;                       // of a product over the head dim
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  // On a processor. While one waits, the other computes: 32 rows of 1024 tokens take 35 us so, and
  // 40 us with one; registers have no room for three.
  static constexpr int kBlocksEach = 2;
  // Keys and values each. Three and four were no faster, and with one block on a processor, 64 KB
  // leave room for the next matrix product's.
  static constexpr int kStages = 2;
  static constexpr int kWarpBytes = 2 * kStages * kTileBytes;
  static constexpr int kSharedBytes = kWarps * kWarpBytes;
};

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

// A warp's work: units from ``begin`` to ``end``, each ``step``-th. They are of ``segment`` and, in
// the line, of those after it.
template <typename S> struct Stretch {
  Segment<S::kTileTokens> segment;
  int begin, end, step;

  // The first and last tile in the segment; none if they are in the wrong order.
  __device__ __forceinline__ int first_tile() const {
    return segment.tiles.first + max(begin, segment.begin) - segment.begin;
  }
  __device__ __forceinline__ int last_tile() const {
    const int first = max(begin, segment.begin), last = min(end, segment.end()) - 1;
    return first_tile() + (last < first ? -1 : (last - first) / step * step);
  }
};

// The copies of one warp run two tiles ahead of its products, through this.
//
// A tile lies in one run of memory or, where blocks are smaller, in several. Each lane copies from
// one run, so that it needs one block and one pointer.
template <typename S> class Loader {
 public:
  __device__ __forceinline__ Loader(const Arguments& arguments, const Stretch<S>& stretch)
      : arguments_(arguments), segment_(stretch.segment), unit_(stretch.begin),
        end_(stretch.end), step_(stretch.step) {
    const int lane = threadIdx.x % 32;
    const int run_tokens = min(1 << arguments.at.block_shift, S::kTileTokens);
    const int lanes = run_tokens * 32 / S::kTileTokens;  // of a run
    lane_token_ = lane / lanes * run_tokens;
    step_bytes_ = lanes * 16;
    lane_bytes_ = lane % lanes * 16;
    look_up();
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      targets_[i] =
          swizzle<S::kTokenBytes>(lane_token_ * S::kTokenBytes + lane_bytes_ + i * step_bytes_);
    }
  }

  // To the next tile; false if there is none.
  __device__ __forceinline__ bool advance() {
    if (unit_ >= end_) return false;
    const int shift = arguments_.at.block_shift, first = tile() * S::kTileTokens;
    const int in_block = (first + lane_token_) & ((1 << shift) - 1);
    source_ = arguments_.pages + next_block_ * arguments_.at.block_stride +
              ((segment_.head << shift) + in_block) * S::kTokenBytes + lane_bytes_;
    // From the tile's start. A new token is not in the cache yet.
    context_ = segment_.tiles.context - (arguments_.k != nullptr) - first;
    seen_ = max(segment_.tiles.context - arguments_.at.window, 0) - first;
    unit_ += step_;
    look_up();
    return true;
  }

  __device__ __forceinline__ void copy_keys(uint32_t target) const { copy(target, source_); }
  __device__ __forceinline__ void copy_values(uint32_t target) const {
    copy(target, source_ + (arguments_.at.kv_heads << arguments_.at.block_shift) * S::kTokenBytes);
  }

 private:
  static constexpr int kCopies = S::kTileBytes / 512;

  __device__ __forceinline__ int tile() const {
    return segment_.tiles.first + unit_ - segment_.begin;
  }

  // Goes on to a unit with a tile, and finds the tile's block; one tile before that is needed,
  // because a table entry takes as long as a key.
  __device__ __forceinline__ void look_up() {
    while (unit_ < end_ && unit_ >= segment_.end()) {
      segment_.advance(arguments_);
      unit_ = max(unit_, segment_.begin);
    }
    if (unit_ >= end_) return;
    const int shift = arguments_.at.block_shift, last = (segment_.tiles.context - 1) >> shift;
    const int entry = min((tile() * S::kTileTokens + lane_token_) >> shift, last);
    const long long line = arguments_.table_rows[segment_.row];
    next_block_ = arguments_.table[line * arguments_.at.table_stride + entry];
  }

  __device__ __forceinline__ void copy(uint32_t target, const uint8_t* source) const {
    if (seen_ <= 0 && context_ >= S::kTileTokens) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async(target + targets_[i], source);
        source += step_bytes_;
      }
      return;
    }
    // Rolled up: only a segment's first and last tiles come here.
#pragma unroll 1
    for (int i = 0; i < kCopies; ++i) {
      const int byte = lane_bytes_ + i * step_bytes_;
      const int token = lane_token_ + byte / S::kTokenBytes;
      copy_async(target + swizzle<S::kTokenBytes>(lane_token_ * S::kTokenBytes + byte), source,
                 token >= seen_ && token < context_);
      source += step_bytes_;
    }
  }

  const Arguments& arguments_;
  Segment<S::kTileTokens> segment_;
  int unit_, end_, step_;  // unit_: the next one
  int next_block_;
  int lane_token_;  // of the tile: where the lane's run begins
  int lane_bytes_;  // in the run: where the lane's copies begin
  int step_bytes_;  // from copy to copy
  int targets_[kCopies];
  const uint8_t* source_;
  int context_, seen_;
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

template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocksEach)
    decode_kernel(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ typename Line<S::kTileTokens, S::kWarps>::Shared shared_line;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = arguments.at.group;
  // Where new tokens are given, what is cached was written before the previous kernel: all up to
  // the first tiles' copies overlaps with its end.
  const bool is_early = arguments.k != nullptr;
  if (!is_early) wait_for_previous();

  const Line<S::kTileTokens, S::kWarps> line(arguments, shared_line);
  const bool is_team = line.has_teams();
  const int index = static_cast<int>(blockIdx.x), rank = index & (arguments.at.team - 1);
  // Warps are numbered along the line, which is against the index of blocks: a block waits only for
  // such as have a lower index and therefore were started no later.
  const int worker = (arguments.at.blocks - 1 - index) * S::kWarps + warp;
  Stretch<S> own;
  bool has_work;
  if (is_team) {
    own.segment = line.at(index / arguments.at.team);
    own.begin = rank * line.share() + warp;
    own.end = min((rank + 1) * line.share(), own.segment.end());
    own.step = S::kWarps;
    has_work = own.segment.end() > 0;  // of the team; all its blocks merge
  } else {
    own.begin = worker * line.share();
    own.end = min(own.begin + line.share(), line.total());
    own.step = 1;
    has_work = own.begin < own.end;
    if (has_work) {
      own.segment = line.find(own.begin);
      if (own.begin >= own.segment.end()) own.segment.advance(arguments);
      own.begin = max(own.begin, own.segment.begin);
      has_work = own.begin < own.end;
    }
  }
  if (!has_work) {
    if (is_early) wait_for_previous();
    return;
  }
  if (is_team && arguments.at.team > 1) arrive_cluster();

  const uint32_t keys = shared_address(shared) + warp * S::kWarpBytes;
  const uint32_t values = keys + S::kStages * S::kTileBytes;
  Loader<S> loader(arguments, own);
#pragma unroll 1  // as all that runs once: a cold instruction costs more than a loop
  for (int stage = 0; stage < S::kStages; ++stage) {
    const bool has_tile = loader.advance();
    if (has_tile) loader.copy_keys(keys + stage * S::kTileBytes);
    commit_copies();
    if (has_tile) loader.copy_values(values + stage * S::kTileBytes);
    commit_copies();
  }
  // Four matrices of 8 tokens by 16 bytes: the left side of products takes lower and upper tokens,
  // of one half and the other; transposed, tokens and halves change places. Fragments of one-byte
  // entries are put together later.
  const Columns<S> key_columns(lane % 16, lane / 16 * 16);
  const Columns<S> value_columns(S::kFloat8 ? lane % 16 : lane % 8 + lane / 16 * 8,
                                 S::kFloat8 ? lane / 16 * 16 : lane / 8 % 2 * 16);
  float* const own_partial = reinterpret_cast<float*>(shared + warp * S::kWarpBytes);
  State<S> state;
  state.reset();
  Queries<S> queries;
  NewToken<S> token;
  int tile = own.first_tile(), last_tile = own.last_tile(), stage = 0;
  // The segment's last tile has the row's new token.
  bool has_new = is_early && tile <= last_tile && last_tile == own.segment.tiles.end - 1;
  if (arguments.q_norm != nullptr) touch_norm<S>(arguments.q_norm);
  if (arguments.k_norm != nullptr) touch_norm<S>(arguments.k_norm);
  if (is_early) wait_for_previous();
  queries.fetch(arguments, own.segment.row, own.segment.head);
  if (has_new) token.fetch(arguments, own.segment.row, own.segment.head);
  // Not before the wait: of the kernels of a step this is one behind whose start all earlier ones
  // have ended, on which the early reads of the next layer's rely.
  let_next_start();

  while (true) {
    if (tile <= last_tile) {
      queries.transform(arguments);
      if (has_new) token.store(arguments, own.segment.head);
      for (; tile <= last_tile; tile += own.step) {
        float scores[S::kTokenTiles][S::kHeadTiles][4];
        const bool is_new = has_new && tile == last_tile;
        const int new_token = (own.segment.tiles.context - 1) % S::kTileTokens;
        uint8_t* const tiles = shared + warp * S::kWarpBytes + stage * S::kTileBytes;
        wait_copies<2 * S::kStages - 1>();
        __syncwarp();
        if (is_new) {
          token.put_key(tiles, new_token);
          __syncwarp();
        }
        multiply_keys<S>(keys + stage * S::kTileBytes, key_columns, queries.of, scores);
        __syncwarp();
        const bool has_tile = loader.advance();
        if (has_tile) loader.copy_keys(keys + stage * S::kTileBytes);
        commit_copies();
        weigh<S>(arguments, own.segment.tiles, tile, scores, state);
        wait_copies<2 * S::kStages - 1>();
        __syncwarp();
        if (is_new) {
          token.put_value(tiles + S::kStages * S::kTileBytes, new_token);
          __syncwarp();
        }
        multiply_values<S>(values + stage * S::kTileBytes, value_columns, scores, state.outputs);
        __syncwarp();
        if (has_tile) loader.copy_values(values + stage * S::kTileBytes);
        commit_copies();
        stage = stage + 1 == S::kStages ? 0 : stage + 1;
      }
      state.join_sums();
    }
    const Segment<S::kTileTokens> segment = own.segment;
    if (is_team) {
      write_partial<S, true>(own_partial, group, state);
      __syncthreads();
      merge_team<S>(arguments, segment.row, segment.head, rank,
                    reinterpret_cast<const float*>(shared), S::kWarpBytes / sizeof(float),
                    shared + S::kSharedBytes);
      return;
    }

    // The next queries come while this segment's outputs are written.
    own.segment.advance(arguments);
    const bool has_more = own.segment.begin < own.end;
    if (has_more) {
      tile = own.first_tile();
      last_tile = own.last_tile();
      has_new = is_early && last_tile == own.segment.tiles.end - 1;
      queries.fetch(arguments, own.segment.row, own.segment.head);
      if (has_new) token.fetch(arguments, own.segment.row, own.segment.head);
    }
    if (own.begin > segment.begin) {
      float* const partials = arguments.partials;
      write_partial<S, false>(partials + worker * static_cast<long long>(Partial<S>::kFloats),
                              group, state);
    } else if (segment.end() <= own.end) {
      store_outputs<S>(arguments, segment.row, segment.head, state);
    } else {
      // It goes on in the next warp, so this is the warp's last; no copies are under way.
      write_partial<S, true>(own_partial, group, state);
      __syncwarp();
      merge_line<S>(arguments, segment.row, segment.head, own_partial, worker,
                    (segment.end() - 1) / line.share());
    }
    if (!has_more) return;
    state.reset();
  }
}

// As launch, in clusters of so many blocks.
template <typename Parameter>
cudaError_t launch_clusters(void (*kernel)(Parameter), int cluster, int blocks, int threads,
                            int shared_bytes, cudaStream_t stream, const Parameter& argument) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, argument);
}

// The caller has checked that there is such a shape.
template <typename T, bool kFloat8>
cudaError_t launch_decode(const Arguments& arguments, cudaStream_t stream) {
  const auto start = [&](auto shape) {
    using S = decltype(shape);
    const auto kernel = decode_kernel<S>;
    const int team = arguments.at.team;
    const int shared_bytes =
        S::kSharedBytes + (team > 1 ? Exchange<S>::bytes(arguments.at.group) : 0);
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    return launch_clusters(kernel, max(team, 1), arguments.at.blocks, S::kThreads, shared_bytes,
                           stream, arguments);
  };
  const bool is_small = arguments.at.group <= 8;
  if (arguments.at.head_dim == 64) {
    return is_small ? start(Shape<T, kFloat8, 64, 1>{}) : start(Shape<T, kFloat8, 64, 2>{});
  }
  return is_small ? start(Shape<T, kFloat8, 128, 1>{}) : start(Shape<T, kFloat8, 128, 2>{});
}

}  // namespace octavo::decode
