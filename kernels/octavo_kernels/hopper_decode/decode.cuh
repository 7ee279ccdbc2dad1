// Attention of one query per row over a paged cache, see reference.py.
#pragma once

#include "products.cuh"
#include "token.cuh"

namespace octavo::decode {

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

template <typename S> cudaError_t launch_shape(const Arguments& arguments, cudaStream_t stream) {
  const auto kernel = decode_kernel<S>;
  const int team = arguments.at.team;
  const int shared_bytes =
      S::kSharedBytes + (team > 1 ? Exchange<S>::bytes(arguments.at.group) : 0);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  return launch_clusters(kernel, max(team, 1), arguments.at.blocks, S::kThreads, shared_bytes,
                         stream, arguments);
}

template <typename T, bool kFloat8, int kDim>
cudaError_t launch_dim(const Arguments& arguments, cudaStream_t stream) {
  if (arguments.at.group > 8) {
    return launch_shape<Shape<T, kFloat8, kDim, 2, false>>(arguments, stream);
  }
  // Then nearly every processor has one block. 8 rows of 1024 tokens (Llama-8B's shape) take 12.4 us
  // so and 13.2 us with tiles of 4 KB, between products even 2.5 us less; teams of 8 start later.
  if constexpr (!kFloat8 && kDim == 128) {
    if (arguments.at.team == 2) {
      return launch_shape<Shape<T, kFloat8, kDim, 1, true>>(arguments, stream);
    }
  }
  return launch_shape<Shape<T, kFloat8, kDim, 1, false>>(arguments, stream);
}

// The caller has checked that there is such a shape.
template <typename T, bool kFloat8>
cudaError_t launch_decode(const Arguments& arguments, cudaStream_t stream) {
  return arguments.at.head_dim == 64 ? launch_dim<T, kFloat8, 64>(arguments, stream)
                                     : launch_dim<T, kFloat8, 128>(arguments, stream);
}

}  // namespace octavo::decode
