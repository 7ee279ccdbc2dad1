// Reads and writes of the running sequences' state. A thread a token or a row.
#include "octavo.cuh"

namespace {

using namespace octavo;

constexpr int kThreads = 128;
constexpr int kMaxTables = 8;  // as MAX_TABLES in __init__.py

__global__ void scatter_words(int *arena, const int *indices, const int *values, int num_words) {
  const int at = blockIdx.x * kThreads + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (at >= num_words) return;
  const int index = indices[at];
  if (index >= 0) arena[index] = values[at];
}

struct Inputs {
  const int *slots, *query_starts, *computed, *tokens;
  int num_rows, num_tokens, slot_tokens, block_tokens;
  int num_tables, table_width;
  long long table_stride;
  const int *tables[kMaxTables];
  long long *ids, *positions;
  int *rows, *context_lens;
  long long *cache_slots[kMaxTables];
};

__global__ void __launch_bounds__(kThreads) step_inputs(const Inputs in) {
  extern __shared__ int starts[];  // num_rows + 1
  let_next_start();
  wait_for_previous();
  for (int i = threadIdx.x; i <= in.num_rows; i += kThreads) starts[i] = in.query_starts[i];
  __syncthreads();
  const int token = blockIdx.x * kThreads + threadIdx.x;
  if (token < in.num_rows) {
    const int length = in.computed[in.slots[token]] + starts[token + 1] - starts[token];
    in.context_lens[token] = min(length, in.slot_tokens);
  }
  if (token >= in.num_tokens) return;
  // The last row that starts at or before the token.
  int row = 0;
  for (int above = in.num_rows; above - row > 1;) {
    const int middle = (row + above) / 2;
    if (starts[middle] <= token)
      row = middle;
    else
      above = middle;
  }
  const int slot = in.slots[row];
  const int position = min(in.computed[slot] + token - starts[row], in.slot_tokens - 1);
  const int column = min(position / in.block_tokens, in.table_width - 1);
  in.rows[token] = row;
  in.positions[token] = position;
  in.ids[token] = in.tokens[static_cast<long long>(slot) * in.slot_tokens + position];
#pragma unroll
  for (int i = 0; i < kMaxTables; ++i) {
    if (i >= in.num_tables) break;
    const long long block = in.tables[i][slot * in.table_stride + column];
    in.cache_slots[i][token] = block * in.block_tokens + position % in.block_tokens;
  }
}

// Where a slot's last token may stand.
__device__ __forceinline__ int last_of(const int *max_len, int slot, int slot_tokens) {
  return (max_len == nullptr ? slot_tokens : min(max_len[slot], slot_tokens)) - 1;
}

struct Advance {
  const int *slots, *query_starts;
  int *computed;
  int num_rows;
  const int *sample_slots, *sampled;
  int num_sampled;
  int *num_tokens, *tokens;
  const int *max_len;
  int slot_tokens;
  int padding_slot;  // left as it is
};

__global__ void __launch_bounds__(kThreads) advance(const Advance step) {
  const int at = blockIdx.x * kThreads + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (at < step.num_rows) {
    const int slot = step.slots[at];
    const int length = step.query_starts[at + 1] - step.query_starts[at];
    if (slot != step.padding_slot) {
      const int last = last_of(step.max_len, slot, step.slot_tokens);
      step.computed[slot] = min(step.computed[slot] + length, last);
    }
  }
  if (at < step.num_sampled) {
    const int slot = step.sample_slots[at];
    if (slot != step.padding_slot) {
      const int last = last_of(step.max_len, slot, step.slot_tokens);
      const int position = min(step.num_tokens[slot], last);
      step.tokens[static_cast<long long>(slot) * step.slot_tokens + position] =
          step.sampled[at];
      step.num_tokens[slot] = position + 1;
    }
  }
}

struct Accept {
  const int *sample_slots, *sampled, *starts;  // of rows of logits: one more than rows that sample
  int num_sampled;
  int *computed, *num_tokens, *tokens;
  const int *max_len;
  int slot_tokens;
  int *yielded;  // by row, most_tokens each
  int most_tokens;
  int *counts;
  int padding_slot;  // left as it is
};

// A warp a row that samples: a draft counts if it is the sample before it, and the ones before do.
__global__ void __launch_bounds__(kThreads) accept(const Accept step) {
  const int row = (blockIdx.x * kThreads + threadIdx.x) / 32, lane = threadIdx.x % 32;
  let_next_start();
  wait_for_previous();
  if (row >= step.num_sampled) return;
  const int slot = step.sample_slots[row], first = step.starts[row];
  const int num_samples = step.starts[row + 1] - first;
  int *const yielded = step.yielded + static_cast<long long>(row) * step.most_tokens;
  int count = 0;
  if (slot != step.padding_slot && num_samples > 0) {
    const int last = last_of(step.max_len, slot, step.slot_tokens);
    const int begin = min(step.num_tokens[slot], last);
    int *const behind = step.tokens + static_cast<long long>(slot) * step.slot_tokens + begin;
    const int most = min(min(num_samples, last + 1 - begin), step.most_tokens);
    for (count = 1; count < most;) {
      const int draft = count - 1 + lane;
      const bool counts = draft + 1 < most && step.sampled[first + draft] == behind[draft];
      const int num_right = __ffs(~__ballot_sync(~0u, counts)) - 1;  // below 0: all of the warp's
      count += num_right < 0 ? 32 : num_right;
      if (num_right >= 0) break;
    }
    __syncwarp();  // the drafts have been read
    if (lane == 0) {
      behind[count - 1] = step.sampled[first + count - 1];
      step.num_tokens[slot] = begin + count;
      step.computed[slot] -= num_samples - count;
    }
  }
  for (int i = lane; i < step.most_tokens; i += 32) {
    yielded[i] = i < count ? step.sampled[first + i] : -1;
  }
  if (lane == 0) step.counts[row] = count;
}

dim3 blocks_for(int threads) { return dim3((threads + kThreads - 1) / kThreads); }

}  // namespace

OCTAVO_EXPORT int octavo_scatter_words(int *arena, const int *indices, const int *values,
                                       int num_words, cudaStream_t stream) {
  return launch(scatter_words, blocks_for(num_words), kThreads, 0, stream, arena, indices, values,
                num_words);
}

OCTAVO_EXPORT int octavo_step_inputs(const int *slots, const int *query_starts, const int *computed,
                                     const int *tokens, int num_rows, int num_tokens,
                                     int slot_tokens, int block_tokens, const int *const *tables,
                                     int num_tables, int table_width, int table_stride,
                                     long long *ids, long long *positions, int *rows,
                                     int *context_lens, long long *const *cache_slots,
                                     cudaStream_t stream) {
  Inputs in{slots,       query_starts, computed,     tokens,     num_rows,    num_tokens,
            slot_tokens, block_tokens, num_tables,   table_width, table_stride};
  for (int i = 0; i < num_tables; ++i) {
    in.tables[i] = tables[i];
    in.cache_slots[i] = cache_slots[i];
  }
  in.ids = ids;
  in.positions = positions;
  in.rows = rows;
  in.context_lens = context_lens;
  return launch(step_inputs, blocks_for(num_tokens > num_rows ? num_tokens : num_rows), kThreads,
                (num_rows + 1) * sizeof(int), stream, in);
}

OCTAVO_EXPORT int octavo_accept(const int *sample_slots, const int *sampled, const int *starts,
                                int num_sampled, int *computed, int *num_tokens, int *tokens,
                                const int *max_len, int slot_tokens, int *yielded, int most_tokens,
                                int *counts, int padding_slot, cudaStream_t stream) {
  const Accept step{sample_slots, sampled, starts,      num_sampled, computed, num_tokens,  tokens,
                    max_len,      slot_tokens, yielded, most_tokens, counts,   padding_slot};
  return launch(accept, blocks_for(32 * num_sampled), kThreads, 0, stream, step);
}

OCTAVO_EXPORT int octavo_advance(const int *slots, const int *query_starts, int *computed,
                                 int num_rows, const int *sample_slots, const int *sampled,
                                 int num_sampled, int *num_tokens, int *tokens, const int *max_len,
                                 int slot_tokens, int padding_slot, cudaStream_t stream) {
  const Advance step{slots,   query_starts, computed,   num_rows, sample_slots,
                     sampled, num_sampled,  num_tokens, tokens,   max_len,
                     slot_tokens, padding_slot};
  return launch(advance, blocks_for(num_rows > num_sampled ? num_rows : num_sampled), kThreads, 0,
                stream, step);
}
