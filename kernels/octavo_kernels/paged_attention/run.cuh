// What one block of threads does: all queries of a tile at once, chunk after chunk.
#pragma once

#include "numbers.cuh"
#include "params.cuh"

namespace octavo::paged {

// One query: what it sees of its row.
struct Query {
  int first, last;  // Positions first..last - 1.
  int position;
  int sparse_offset;
  float slope;  // alibi

  __device__ bool sees(int token, const Params& p) const {
    if (token < first || token >= last) return false;
    if (p.sparse_block == 0) return true;
    const int block = token / p.sparse_block;
    return position / p.sparse_block - block < p.sparse_local ||
           (block + sparse_offset) % p.sparse_stride == 0;
  }
};

// What a block of threads has in shared memory, besides q, weights and sums of values.
template <int Q> struct Shared {
  Query queries[Q];
  float maximum[2][Q];  // Before and after a chunk, by turns.
  float rescale[Q];
  float maxima[Q][kWarps];  // Each warp's of a chunk's scores.
  float totals[Q][kWarps];  // Each warp's weights so far.
  // A warp may still read those of a chunk's values when another one writes the next chunk's.
  int block_ids[2][kChunk / 8];
  uint8_t seen[2][kChunk / kUnit];  // A bit for each token: whether any query sees it.
  long long positions[kMaxTile];
  int rows[kMaxTile];
};

// Attention from tokens side by side of one row, by `num_heads` heads of a key/value head's group.
template <typename T, typename C, int Q> class Run {
 public:
  __device__ Run(const Params& params, Shared<Q>& shared, float* dynamic, int kv_head,
                 int first_head, int num_heads)
      : p(params), s(shared), first_head(first_head), num_heads(num_heads), thread(threadIdx.x),
        block_tokens(1 << params.block_shift) {
    q = dynamic;
    weights = q + Q * p.head_dim;
    sums = weights + Q * kChunk;
    const long long head = static_cast<long long>(kv_head) * p.head_dim * block_tokens;
    keys = static_cast<const C*>(p.keys) + head;
    values = static_cast<const C*>(p.values) + head;
  }

  // Tokens `token` on; `tile_index` is the first one's place among those in shared memory.
  __device__ void attend(int token, int tile_index, int num_tokens) {
    first_token = token;
    num_queries = num_tokens * num_heads;
    const int row = s.rows[tile_index];
    table = p.table + static_cast<long long>(p.table_rows[row]) * p.table_stride;
    load_queries(tile_index, row);
    __syncthreads();
    first = s.queries[0].first;
    last = s.queries[0].last;
    for (int i = 1; i < num_queries; ++i) {
      first = min(first, s.queries[i].first);
      last = max(last, s.queries[i].last);
    }
    // In v1 chunks lie at multiples of 512 whatever the window, so that a query's sums do not
    // depend on the queries beside it.
    const int grain = p.partitions > 1 ? kGrain : kChunk;
    const int start = first / grain * grain;
    const int share = ceil_div(ceil_div(max(last - start, 0), p.partitions), grain) * grain;
    const int begin = start + blockIdx.z * share;
    first = max(first, begin);
    last = min(last, begin + share);
    int turn = 0;
    for (int chunk = begin; chunk < last; chunk += kChunk, turn ^= 1) {
      score(chunk, turn);
      add_values(chunk, turn, chunk == begin);
    }
    __syncthreads();
    write(begin < last, s.maximum[turn]);
    __syncthreads();
  }

 private:
  static constexpr int kX = 16 / sizeof(C);
  // Steps of the loops over keys and values whose loads are under way together. With 4 queries few
  // registers for many warps pay more: R = 32 at 4096 reads 3.5 TB/s so, and 2.6 with twice the
  // loads and 3 blocks of threads a multiprocessor instead of 4.
  static constexpr int kKeySteps = Q == 16 ? 2 : 4;
  static constexpr int kValueBytes = kUnit * sizeof(C);
  static constexpr int kValueSteps =
      kValueBytes == 32 ? 1 : Q == 16 ? 2 : (Q == 4 ? 16 : 32) / kValueBytes;

  const Params& p;
  Shared<Q>& s;
  const int first_head, num_heads, thread, block_tokens;
  float *q, *weights, *sums;  // q [D / x, Q, x], weights [Q, kChunk], sums [groups, Q, D].
  const C *keys, *values;
  const int* table;
  int first_token, num_queries, first, last;

  __device__ int token_of(int query) const { return first_token + query / num_heads; }
  __device__ int head_of(int query) const { return first_head + query % num_heads; }

  __device__ void load_queries(int tile_index, int row) {
    if (thread < Q) {
      Query query = {};
      if (thread < num_queries) {
        const int head = head_of(thread);
        query.position = static_cast<int>(s.positions[tile_index + thread / num_heads]);
        query.last = p.causal ? query.position + 1 : p.context_lens[row];
        query.first = p.window > 0 ? max(query.position - p.window + 1, 0) : 0;
        query.slope = p.alibi != nullptr ? p.alibi[head] : 0.f;
        query.sparse_offset = 1 + head * p.sparse_head_step;
      }
      s.queries[thread] = query;
      s.maximum[0][thread] = -INFINITY;
    }
    for (int i = thread; i < Q * kWarps; i += kThreads) s.totals[i / kWarps][i % kWarps] = 0.f;
    for (int i = thread / 32; i < Q; i += kWarps) {
      const T* from = static_cast<const T*>(p.q) +
                      static_cast<long long>(token_of(i)) * p.q_token_stride +
                      head_of(i) * p.q_head_stride;
      for (int d = thread % 32; d < p.head_dim; d += 32) {
        q[(d / kX * Q + i) * kX + d % kX] = i < num_queries ? to_float(from[d]) : 0.f;
      }
    }
  }

  // The weights of a chunk's tokens, against the maximum so far, and what earlier sums shrink by.
  __device__ void score(int chunk_token, int turn) {
    float scores[kKeys][Q];
    const C* key[kKeys];
    uint32_t seen_by[kKeys] = {};  // A bit for each query.
    bool any_seen = false;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      const int index = k * kThreads + thread;
      const int token = chunk_token + index;
#pragma unroll 1
      for (int i = 0; i < (token < last ? num_queries : 0); ++i) {
        seen_by[k] |= static_cast<uint32_t>(s.queries[i].sees(token, p)) << i;
      }
      const uint32_t lanes = __ballot_sync(~0u, seen_by[k] != 0);
      any_seen |= lanes != 0;
      if (thread % kUnit == 0) s.seen[turn][index / kUnit] = lanes >> (thread % 32);
      // Entries past the context may be any; a lane without a token reads another's key.
      const int valid = min(max(token, first), last - 1);
      const int block = table[valid >> p.block_shift];
      if ((index & (block_tokens - 1)) == 0) s.block_ids[turn][index >> p.block_shift] = block;
      key[k] = keys + static_cast<long long>(block) * p.key_block_stride +
               (valid & (block_tokens - 1)) * kX;
    }
#pragma unroll
    for (int i = 0; i < Q; ++i) {
#pragma unroll
      for (int k = 0; k < kKeys; ++k) scores[k][i] = 0.f;
    }
    if (any_seen) multiply(key, scores);
    const float inverse_softcap = 1.f / p.softcap;
#pragma unroll
    for (int i = 0; i < Q; ++i) {
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const int token = chunk_token + k * kThreads + thread;
        float x = scores[k][i] * p.scale;
        if (p.softcap > 0.f) x = p.softcap * tanhf(x * inverse_softcap);
        if (p.alibi != nullptr) x += s.queries[i].slope * (token - s.queries[i].position);
        scores[k][i] = seen_by[k] >> i & 1 ? x : -INFINITY;
      }
      const float maximum = warp_max(fmaxf(scores[0][i], scores[1][i]));
      if (thread % 32 == 0) s.maxima[i][thread / 32] = maximum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Q; ++i) {
      const float before = s.maximum[turn][i];
      float maximum = before;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) maximum = fmaxf(maximum, s.maxima[i][warp]);
      const float rescale = exp_below(before, maximum);
      if (thread == 0) {
        s.maximum[turn ^ 1][i] = maximum;
        s.rescale[i] = rescale;
      }
      float total = 0.f;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        const float weight = exp_below(scores[k][i], maximum);
        weights[i * kChunk + k * kThreads + thread] = weight;
        total += weight;
      }
      total = warp_sum(total);
      float& so_far = s.totals[i][thread / 32];
      if (thread % 32 == 0) so_far = fmaf(so_far, rescale, total);
    }
    __syncthreads();
  }

  __device__ __forceinline__ void multiply(const C* const (&key)[kKeys],
                                           float (&scores)[kKeys][Q]) const {
    const int step = block_tokens * kX;
#pragma unroll kKeySteps
    for (int j = 0; j < p.head_dim / kX; ++j) {
      float x[kKeys][kX];
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        uint32_t words[4];
        load(key[k] + j * step, words);
        unpack<C>(words, x[k]);
      }
#pragma unroll
      for (int i = 0; i < Q; ++i) {
#pragma unroll
        for (int e = 0; e < kX; e += 4) {
          const float4 y = *reinterpret_cast<const float4*>(&q[(j * Q + i) * kX + e]);
#pragma unroll
          for (int k = 0; k < kKeys; ++k) {
            scores[k][i] = fmaf(x[k][e], y.x, scores[k][i]);
            scores[k][i] = fmaf(x[k][e + 1], y.y, scores[k][i]);
            scores[k][i] = fmaf(x[k][e + 2], y.z, scores[k][i]);
            scores[k][i] = fmaf(x[k][e + 3], y.w, scores[k][i]);
          }
        }
      }
    }
  }

  // Adds the chunk's weighted values: thread `unit` of a group has entries d and d + D / 2 of
  // tokens 8 n to 8 n + 7 of each of the group's blocks.
  __device__ void add_values(int chunk_token, int turn, bool is_first) {
    const int pairs = p.value_pairs(), groups = p.value_groups();
    const int group = groups > 1 ? thread / pairs : 0;
    const int units_shift = p.block_shift - 3;
    const int num_blocks = (min(last - chunk_token, kChunk) + block_tokens - 1) >> p.block_shift;
    const int half = p.head_dim / 2 * block_tokens;
    for (int pass = 0; pass < pairs; pass += kThreads) {
      const int unit = pass + thread - group * pairs;
      const bool is_active = group < groups && unit < pairs;
      const int d = unit >> units_shift, n = unit & ((1 << units_shift) - 1);
      const C* from = values + d * block_tokens + n * kUnit;
      float sum[2][Q] = {};
      for (int begin = group; is_active && begin < num_blocks; begin += groups * kValueSteps) {
        uint32_t words[kValueSteps][2][kValueBytes / 4];
        uint32_t seen[kValueSteps];
#pragma unroll
        for (int b = 0; b < kValueSteps; ++b) {
          const int block = begin + b * groups;
          seen[b] = block < num_blocks ? s.seen[turn][(block << units_shift) + n] : 0;
          if (seen[b] != 0) {
            const long long id = s.block_ids[turn][block];
            const C* value = from + id * p.value_block_stride;
            load(value, words[b][0]);
            load(value + half, words[b][1]);
          }
        }
#pragma unroll
        for (int b = 0; b < kValueSteps; ++b) {
          if (seen[b] == 0) continue;
          float x[2][kUnit];
          unpack<C>(words[b][0], x[0]);
          unpack<C>(words[b][1], x[1]);
          if (seen[b] != 0xff) {  // What no query sees may be NaN: its weight of 0 is not enough.
#pragma unroll
            for (int e = 0; e < kUnit; ++e) {
              if ((seen[b] >> e & 1) == 0) x[0][e] = x[1][e] = 0.f;
            }
          }
          const float* weight = weights + (begin + b * groups) * block_tokens + n * kUnit;
#pragma unroll
          for (int i = 0; i < Q; ++i) {
#pragma unroll
            for (int e = 0; e < kUnit; e += 4) {
              const float4 w = *reinterpret_cast<const float4*>(weight + i * kChunk + e);
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                sum[h][i] = fmaf(w.x, x[h][e], sum[h][i]);
                sum[h][i] = fmaf(w.y, x[h][e + 1], sum[h][i]);
                sum[h][i] = fmaf(w.z, x[h][e + 2], sum[h][i]);
                sum[h][i] = fmaf(w.w, x[h][e + 3], sum[h][i]);
              }
            }
          }
        }
      }
      // The lanes of an entry lie side by side, 1, 2 or 4 of them.
#pragma unroll
      for (int i = 0; i < Q; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          for (int lanes = 1; lanes < block_tokens / kUnit; lanes *= 2) {
            sum[h][i] += __shfl_xor_sync(~0u, sum[h][i], lanes);
          }
          if (!is_active || n != 0) continue;
          float& total = sums[(group * Q + i) * p.head_dim + d + h * (p.head_dim / 2)];
          total = is_first ? sum[h][i] : fmaf(total, s.rescale[i], sum[h][i]);
        }
      }
    }
  }

  // The result (v1), or this partition's part of it (v2).
  __device__ void write(bool has_sums, const float (&maxima)[Q]) {
    const int lane = thread % 32, groups = p.value_groups();
    for (int i = thread / 32; i < num_queries; i += kWarps) {
      const long long index = static_cast<long long>(token_of(i)) * p.heads + head_of(i);
      float total = warp_sum(lane < kWarps ? s.totals[i][lane] : 0.f);
      float maximum = has_sums ? maxima[i] : -INFINITY;
      float factor = p.v_scale;
      if (p.partitions > 1) {
        const long long part = index * p.partitions + blockIdx.z;
        if (lane == 0) p.stats()[part] = make_float2(maximum, total);
        if (total == 0.f) continue;
        float* to = p.workspace + part * p.head_dim;
        for (int d = lane; d < p.head_dim; d += 32) to[d] = sum_at(i, d, groups);
        continue;
      }
      if (p.sinks != nullptr) {
        const float sink = p.sinks[head_of(i)];
        const float both = fmaxf(maximum, sink);
        factor *= exp_below(maximum, both);
        total = total * exp_below(maximum, both) + exp_below(sink, both);
      }
      factor = total > 0.f ? factor / total : 0.f;
      T* to = static_cast<T*>(p.out) + index * p.head_dim;
      for (int d = lane; d < p.head_dim; d += 32) {
        to[d] = from_float<T>(has_sums ? sum_at(i, d, groups) * factor : 0.f);
      }
    }
  }

  __device__ float sum_at(int query, int d, int groups) const {
    float sum = 0.f;
    for (int group = 0; group < groups; ++group) {
      sum += sums[(group * Q + query) * p.head_dim + d];
    }
    return sum;
  }
};

}  // namespace octavo::paged
