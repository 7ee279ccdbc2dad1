// Rows with top_k, top_p or min_p: a team of blocks finds the least likely token kept, then races.
//
// Tokens have a rank, which falls as the score rises. Where few tokens may be kept, as is usual,
// these are listed and sorted, one a thread, and the rest is short. Otherwise the cut is found by
// sums of weights in bins, and all tokens are read again for the race.
#pragma once

#include "cut.cuh"

namespace octavo::sample {

// What a row's parameters keep, in the course of finding it out.
struct Kept {
  float best, inverse_temperature;
  unsigned last_rank, last_id;  // up to this rank and, among its equals, up to this id
  float last_gap;

  __device__ float gap_of(float score) const {
    return __fmul_rn(best - score, inverse_temperature);  // as in reference.py
  }

  // A token's gap as a key that rises with it.
  __device__ unsigned key_of(float score, unsigned id) const {
    if (last_rank != ~0u) {
      const unsigned rank = rank_of(score);
      if (rank > last_rank || (rank == last_rank && id > last_id)) return kExcluded;
    }
    const float gap = gap_of(score);
    return gap <= last_gap ? __float_as_uint(gap) : kExcluded;
  }

  // The best weighs 2^32, as in reference.py.
  __device__ static uint64_t weight_of(unsigned key) {
    const float weight = expf(-__uint_as_float(key)) * 0x1p32f;
    return weight < 0x1p32f ? __float2uint_rz(weight) : uint64_t{1} << 32;
  }
};

// The gap at which the weights of a sorted list reach the target; `target_of` takes their sum.
template <typename TargetOf>
__device__ float find_gap(ThresholdMemory& memory, unsigned key, TargetOf target_of) {
  const uint64_t weight = key == kExcluded ? 0 : Kept::weight_of(key);
  if (threadIdx.x == 0) memory.gap = INFINITY;
  uint64_t sum;
  const uint64_t upto = running_sum(memory, weight, sum);
  const uint64_t target = target_of(sum);
  if (upto - weight < target && target <= upto) memory.gap = __uint_as_float(key);
  __syncthreads();
  return memory.gap;
}

// The score of a thread's token in a sorted list, or -inf if the row's parameters don't keep it;
// `target_of` takes the sum of the weights in the list and returns top_p's share.
template <typename TargetOf>
__device__ float score_if_kept(ThresholdMemory& memory, const Sorted& sorted, const Kept& kept,
                               bool has_top_p, TargetOf target_of) {
  const unsigned id = static_cast<unsigned>(sorted.mine);
  const float score = from_ordered(~static_cast<unsigned>(sorted.mine >> 32));
  const unsigned key = threadIdx.x < sorted.size ? kept.key_of(score, id) : kExcluded;
  const float last_gap = has_top_p ? find_gap(memory, key, target_of) : INFINITY;
  return key != kExcluded && __uint_as_float(key) <= last_gap ? score : -INFINITY;
}

__device__ __forceinline__ uint64_t share_of(uint64_t sum, double top_p) {
  return static_cast<uint64_t>(ceil(static_cast<double>(sum) * top_p));
}

// Finds the last rank and id of top_k. If the tokens up to it fit a list, that is returned.
template <typename T>
__device__ Sorted find_top_k(const Part<T>& part, unsigned top_k, Kept& kept) {
  ThresholdMemory& memory = part.memory;
  // Threads' likeliest tokens: the bin that takes in k of them takes in k tokens, seldom many more.
  float most = -INFINITY;
  part.each([&](float score, unsigned) { most = fmaxf(most, score); });
  clear(memory);
  add(memory, bin_of(kept.best - most), 1u);
  find_bin(memory, part.team, [&](uint64_t) { return static_cast<uint64_t>(top_k); });
  const unsigned bin = memory.bin;
  find(part, [&](float score, unsigned) { return bin_of(kept.best - score) <= bin ? 1u : 2u; });
  Sorted sorted = sort_found(memory, part.team, 1);
  part.team.sync();
  if (sorted.size >= top_k) {
    sorted.size = top_k;
    return sorted;
  }
  const auto one = [](unsigned) { return 1u; };
  const Cut cut =
      find_cut(part, [](float score, unsigned) { return rank_of(score); }, one, top_k);
  const auto id_of = [&](float score, unsigned id) {
    return rank_of(score) == cut.key ? id : kExcluded;
  };
  kept.last_rank = cut.key;
  kept.last_id = find_cut(part, id_of, one, cut.remaining).key;
  return {0, ~0ull};
}

// Finds the last gap of top_p. If the tokens up to it fit a list, that is returned; `target` is
// what its weights must reach.
template <typename T>
__device__ Sorted find_top_p(const Part<T>& part, double top_p, Kept& kept, uint64_t& target) {
  ThresholdMemory& memory = part.memory;
  clear(memory);
  part.each([&](float score, unsigned id) {
    const unsigned key = kept.key_of(score, id);
    if (key != kExcluded) add(memory, bin_of(__uint_as_float(key)), Kept::weight_of(key));
  });
  target = find_bin(memory, part.team, [&](uint64_t sum) { return share_of(sum, top_p); });
  const unsigned bin = memory.bin;
  const uint64_t remaining = target - memory.before;
  find(part, [&](float score, unsigned id) {
    const unsigned key = kept.key_of(score, id);
    if (key == kExcluded) return 2u;
    const unsigned own = bin_of(__uint_as_float(key));
    return own < bin ? 0u : own == bin ? 1u : 2u;
  });
  Sorted sorted = sort_found(memory, part.team, 0);
  if (sorted.size > 0) {
    part.team.sync();
    return sorted;
  }
  sorted = sort_found(memory, part.team, 1);
  part.team.sync();
  if (sorted.size > 0) {
    const float score = from_ordered(~static_cast<unsigned>(sorted.mine >> 32));
    const bool is_listed = threadIdx.x < sorted.size;
    const unsigned key = is_listed ? __float_as_uint(kept.gap_of(score)) : kExcluded;
    const float last_gap = find_gap(memory, key, [&](uint64_t) { return remaining; });
    kept.last_gap = fminf(kept.last_gap, last_gap);
    return {0, ~0ull};
  }
  const auto key_in_bin = [&](float score, unsigned id) {
    const unsigned key = kept.key_of(score, id);
    return key != kExcluded && bin_of(__uint_as_float(key)) == bin ? key : kExcluded;
  };
  const Cut cut = find_cut(part, key_in_bin, Kept::weight_of, remaining);
  kept.last_gap = fminf(kept.last_gap, __uint_as_float(cut.key));
  return {0, ~0ull};
}

// The team's choice of a row's token, in the first thread of its first block.
template <typename T>
__device__ Choice draw_row(const Row<T>& row, float best, const Parameters& p, int slot,
                           int num_tokens, int features, ThresholdMemory& memory) {
  const Part<T> part = {row, memory, Team()};
  const Team& team = part.team;
  const bool has_top_p = features & kTopP;
  const double top_p = p.top_p[slot];
  Kept kept = {best, __fdiv_rn(1.0f, p.temperature[slot]), ~0u, ~0u,
               features & kMinP ? -logf(p.min_p[slot]) : INFINITY};
  Sorted sorted = {0, ~0ull};
  float listed_score[1];
  const int top_k = p.top_k[slot];
  if ((features & kTopK) && top_k < row.vocab) {
    sorted = find_top_k(part, top_k, kept);
    if (sorted.size > 0) {
      listed_score[0] = score_if_kept(memory, sorted, kept, has_top_p,
                                      [&](uint64_t sum) { return share_of(sum, top_p); });
    }
  }
  if (sorted.size == 0 && has_top_p) {
    uint64_t target;
    sorted = find_top_p(part, top_p, kept, target);
    if (sorted.size > 0) {
      listed_score[0] =
          score_if_kept(memory, sorted, kept, true, [&](uint64_t) { return target; });
    }
  }
  Race race(p, slot, num_tokens);
  if (sorted.size > 0) {
    race.add(listed_score, static_cast<unsigned>(sorted.mine));
  } else {
    part.each_vector([&](float(&scores)[Row<T>::kWidth], int first_id) {
#pragma unroll
      for (int j = 0; j < Row<T>::kWidth; j++) {
        if (kept.key_of(scores[j], first_id + j) == kExcluded) scores[j] = -INFINITY;
      }
      race.add(scores, first_id);
    });
  }

  Choice choice = best_of_block<kThreads>(race.choice());
  if (team.num_parts == 1 || sorted.size > 0) return choice;  // every block has the whole list
  if (threadIdx.x == 0) memory.choice = choice;
  team.sync();
  if (team.part == 0 && threadIdx.x == 0) {
    for (unsigned other = 1; other < team.num_parts; other++) {
      const Choice its = team.of(other, memory).choice;
      if (its.beats(choice)) choice = its;
    }
  }
  team.sync();  // no block ends while its memory is read
  return choice;
}

}  // namespace octavo::sample
