// What the kernels of this op read: parameters by slot, and the batch of one call.
#pragma once

#include <math_constants.h>

#include "octavo.cuh"

namespace octavo::sample {

// As RowFeature in row_features.py.
enum Feature : int {
  kRandom = 1,
  kTopK = 2,
  kTopP = 4,
  kMinP = 8,
  kPenalty = 16,
  kBias = 32,
  kBadWords = 64,
  kMinTokens = 128,
};
constexpr int kThresholds = kTopK | kTopP | kMinP;

// As Work in row_features.py.
enum Work : int { kFeatures = 1, kThresholdRows = 2, kEditedThresholdRows = 4 };

// As KernelParameters in parameters.py. Tables by slot, contiguous; null where there is none yet.
struct Parameters {
  const int* tokens;
  const int* num_tokens;
  const int* prompt_len;
  const int* features;
  const float* temperature;
  const float* top_p;
  const float* min_p;
  const float* presence;
  const float* frequency;
  const float* repetition;
  const int* top_k;
  const unsigned* seed;  // low and high word
  const int* min_len;
  const int* stop_ids;
  const int* bias_ids;
  const float* biases;
  const unsigned* allowed;
  const int* bad_words;
  // Memory of the calls, which follow one another on one stream.
  uint64_t* partial_values;  // as Choice, by row and split
  unsigned* partial_ids;
  unsigned* arrivals;  // by row; zero between calls
  float* best;         // by row
  int max_tokens;
  int num_stop_ids;
  int bias_room;  // entries of a slot in bias_ids and biases
  int allowed_words;
  int bad_words_room;
  int bad_word_room;
  int num_sms;
};

struct Batch {
  const void* logits;
  long long stride;  // elements from row to row
  int num_rows;
  int vocab;
  const int* slots;
  const int* ahead;      // by row, drafts of its slot before it; null: none
  int* tokens;           // out
  const int* mask_rows;  // by row, the row of `mask` or -1; null: no row has a mask
  const unsigned* mask;
  int mask_words;
  float* scratch;  // edited scores of rows with thresholds: [num_rows, vocab]
};

// Tokens before the one that is sampled in a row: the slot's own, then the drafts before the row.
__device__ __forceinline__ int num_tokens_at(const Batch& batch, const Parameters& p, int row,
                                             int slot) {
  const int num_tokens = p.num_tokens[slot];
  return batch.ahead == nullptr ? num_tokens : min(num_tokens + batch.ahead[row], p.max_tokens);
}

// A row's token so far: the smaller value wins, among equals the lower id.
struct Choice {
  uint64_t value;
  unsigned id;

  __device__ bool beats(const Choice& other) const {
    return value < other.value || (value == other.value && id < other.id);
  }
};

// Floats and doubles as unsigned integers of the same order.
__device__ __forceinline__ unsigned ordered(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0.0 becomes 0.0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(unsigned bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
__device__ __forceinline__ uint64_t ordered(double x) {
  const uint64_t bits = __double_as_longlong(x + 0.0);
  return bits >> 63 ? ~bits : bits | 1ull << 63;
}

__device__ __forceinline__ Choice best_of_warp(Choice choice) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const Choice other = {__shfl_xor_sync(~0u, choice.value, step),
                          __shfl_xor_sync(~0u, choice.id, step)};
    if (other.beats(choice)) choice = other;
  }
  return choice;
}

// The block's choice, in the first warp.
template <int kThreads> __device__ __forceinline__ Choice best_of_block(Choice choice) {
  __shared__ Choice warps[kThreads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  choice = best_of_warp(choice);
  if (lane == 0) warps[warp] = choice;
  __syncthreads();
  if (warp == 0) choice = best_of_warp(warps[lane < kThreads / 32 ? lane : 0]);
  return choice;
}

// A row of logits read in aligned vectors. A row need not begin at a multiple of 16 bytes: its
// vectors do, and entries before and behind the row are not read, score -inf, and have ids outside
// the vocabulary.
template <typename T> struct Row {
  static constexpr int kWidth = Vec<T>::kSize;
  const Vec<T>* vectors;
  int shift;
  int vocab;
  int num_vectors;
  const unsigned* masks[2];  // a clear bit bans; null: none
  int last_words[2];

  __device__ Row(const T* row, int vocab_size) : vocab(vocab_size) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(row);
    vectors = reinterpret_cast<const Vec<T>*>(address & ~uintptr_t{15});
    shift = static_cast<int>(address & 15) / static_cast<int>(sizeof(T));
    num_vectors = (shift + vocab + kWidth - 1) / kWidth;
    masks[0] = masks[1] = nullptr;
  }

  __device__ void set_mask(int which, const unsigned* words, int num_words) {
    masks[which] = words;
    last_words[which] = num_words - 1;
  }

  __device__ int first_id(int vector) const { return vector * kWidth - shift; }
  __device__ bool is_within(int id) const { return id >= 0 && id + kWidth <= vocab; }

  // The vector, or some other of the row where it is not wholly within: see ``mend``, which is apart
  // so that all of a thread's loads are under way before the first is looked at.
  __device__ Vec<T> load(int vector) const {
    const int first = shift > 0, last = (shift + vocab) / kWidth - 1;
    Vec<T> raw = {};
    if (first <= last) raw = vectors[min(max(vector, first), last)];
    return raw;
  }

  __device__ void mend(Vec<T>& raw, int vector) const {
    const int id = first_id(vector);
    if (is_within(id)) return;
#pragma unroll
    for (int j = 0; j < kWidth; j++) {
      const bool is_token = static_cast<unsigned>(id + j) < static_cast<unsigned>(vocab);
      if (is_token) raw.data[j] = vectors[vector].data[j];
    }
  }

  __device__ void unpack(const Vec<T>& raw, int vector, float (&scores)[kWidth]) const {
    const int id = first_id(vector);
    unsigned allowed = ~0u;
#pragma unroll
    for (int m = 0; m < 2; m++) {
      if (masks[m] != nullptr) {
        // Words before the first are read as the first: their tokens are outside anyway.
        const unsigned low = masks[m][max(id >> 5, 0)];
        const unsigned high = masks[m][min((id + kWidth - 1) >> 5, last_words[m])];
        allowed &= __funnelshift_r(low, high, id & 31);
      }
    }
    if (!is_within(id)) {
#pragma unroll
      for (int j = 0; j < kWidth; j++) {
        if (static_cast<unsigned>(id + j) >= static_cast<unsigned>(vocab)) allowed &= ~(1u << j);
      }
    }
#pragma unroll
    for (int j = 0; j < kWidth; j++) {
      scores[j] = allowed >> j & 1 ? to_float(raw.data[j]) : -INFINITY;
    }
  }
};

}  // namespace octavo::sample
