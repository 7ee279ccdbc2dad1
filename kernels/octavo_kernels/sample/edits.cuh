// Changes to single tokens' scores, on a tile of the vocabulary that lies in shared memory.
#pragma once

#include "parameters.cuh"

namespace octavo::sample {

constexpr int kTileTokens = 4096;
constexpr unsigned kSeen = 1u << 31;

// What a row asks of its single tokens.
struct Edits {
  int slot;
  int features;  // only of the kinds below, and only those in force
  const int* tokens;
  int num_tokens;

  __device__ Edits(const Parameters& p, int slot_, int row_features, int num_tokens_)
      : slot(slot_), num_tokens(num_tokens_) {
    features = row_features & (kBias | kBadWords | kPenalty | kMinTokens);
    if (p.bias_ids == nullptr) features &= ~kBias;
    if (p.bad_words == nullptr) features &= ~kBadWords;
    if (features == 0) return;
    tokens = p.tokens + static_cast<size_t>(slot) * p.max_tokens;
    if (num_tokens >= p.min_len[slot]) features &= ~kMinTokens;
  }
};

struct TileMemory {
  float scores[kTileTokens];
  unsigned counts[kTileTokens];  // how often each is in the output, and kSeen if in the prompt
};

// Tokens [first_id, first_id + size) of a row.
struct Tile {
  TileMemory& memory;
  int first_id;
  int size;

  __device__ bool has(int id) const {
    return static_cast<unsigned>(id - first_id) < static_cast<unsigned>(size);
  }
};

__device__ __forceinline__ void ban_bad_words(const Tile& tile, const Edits& edits,
                                              const Parameters& p) {
  const size_t table = static_cast<size_t>(edits.slot) * p.bad_words_room;
  for (int w = threadIdx.x; w < p.bad_words_room; w += blockDim.x) {
    const int* last = p.bad_words + (table + w + 1) * p.bad_word_room - 1;
    if (!tile.has(*last)) continue;
    bool matches = true;
    for (int back = 1; back < p.bad_word_room && last[-back] >= 0; back++) {
      const int place = edits.num_tokens - back;
      matches = matches && place >= 0 && edits.tokens[place] == last[-back];
    }
    if (matches) tile.memory.scores[*last - tile.first_id] = -INFINITY;
  }
}

__device__ __forceinline__ void penalize(const Tile& tile, const Edits& edits,
                                         const Parameters& p) {
  const float repetition = p.repetition[edits.slot];
  const float frequency = p.frequency[edits.slot], presence = p.presence[edits.slot];
  for (int i = threadIdx.x; i < tile.size; i += blockDim.x) {
    const unsigned seen = tile.memory.counts[i];
    if (seen == 0) continue;
    const unsigned count = seen & ~kSeen;
    float score = tile.memory.scores[i];
    score = score > 0.0f ? __fdiv_rn(score, repetition) : __fmul_rn(score, repetition);
    score = __fsub_rn(score, __fmul_rn(frequency, static_cast<float>(count)));
    tile.memory.scores[i] = __fsub_rn(score, count > 0 ? presence : 0.0f);
  }
}

// In the order that __init__.py gives. The block has written the scores but not synchronised since,
// and finds them changed; it synchronises before it writes the next ones.
__device__ __forceinline__ void edit(const Tile& tile, const Edits& edits, const Parameters& p) {
  const bool penalized = edits.features & kPenalty;
  if (penalized) {
    for (int i = threadIdx.x; i < tile.size; i += blockDim.x) tile.memory.counts[i] = 0;
  }
  __syncthreads();
  if (edits.features & kBias) {
    const size_t table = static_cast<size_t>(edits.slot) * p.bias_room;
    for (int i = threadIdx.x; i < p.bias_room; i += blockDim.x) {
      const int id = p.bias_ids[table + i];
      const float bias = p.biases[table + i];  // 0 in padding, whose id is a real one
      if (bias != 0.0f && tile.has(id)) tile.memory.scores[id - tile.first_id] += bias;
    }
  }
  if (penalized) {
    const int prompt_len = p.prompt_len[edits.slot];
#pragma unroll 4
    for (int i = threadIdx.x; i < edits.num_tokens; i += blockDim.x) {
      const int id = edits.tokens[i];
      if (!tile.has(id)) continue;
      unsigned* const count = &tile.memory.counts[id - tile.first_id];
      if (i < prompt_len) {
        atomicOr(count, kSeen);
      } else {
        atomicAdd(count, 1u);
      }
    }
  }
  __syncthreads();
  if (edits.features & kMinTokens) {
    const int* const stop_ids = p.stop_ids + static_cast<size_t>(edits.slot) * p.num_stop_ids;
    for (int i = threadIdx.x; i < p.num_stop_ids; i += blockDim.x) {
      if (tile.has(stop_ids[i])) tile.memory.scores[stop_ids[i] - tile.first_id] = -INFINITY;
    }
  }
  if (edits.features & kBadWords) ban_bad_words(tile, edits, p);
  __syncthreads();
  if (penalized) {
    penalize(tile, edits, p);
    __syncthreads();
  }
}

}  // namespace octavo::sample
