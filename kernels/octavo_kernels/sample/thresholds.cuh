// Rows with top_k, top_p or min_p: a team of blocks finds the least likely token kept, then draws.
//
// Tokens have a rank, which falls as the score rises. Where few tokens may be kept, as is usual,
// these are listed and sorted, one a thread, and the rest is short. Otherwise the cut is found by
// sums of weights in bins, and all tokens are read again for the race.
#pragma once

#include "race.cuh"

namespace octavo::sample {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;  // two a thread
constexpr float kBinsPerUnit = 64.0f;  // to a distance of 32: what lies beyond weighs nothing
constexpr unsigned kExcluded = ~0u;

// Each block's own; a team's sums are taken over all of its blocks' bins.
struct ThresholdMemory {
  union {
    // Sums of weights by bin: 64 bits in two words, as 32-bit atomics are the fast ones.
    struct {
      alignas(8) unsigned low[kBins];
      alignas(8) unsigned high[kBins];
    };
    // Tokens that this block has found in bins below the cut's, and in its bin: rank and id.
    uint64_t found[2][kThreads];
  };
  int num_found[2];
  uint64_t listed[kThreads];  // what the team has found
  uint64_t warp_sums[kThreads / 32];
  Choice choice;
  float gap;
  // The bin that was looked for, and what lies below it.
  unsigned bin;
  uint64_t before;
};

// The blocks that share a row: a cluster on sm_90, whose blocks run at once; elsewhere one block.
struct Team {
  unsigned part = 0, num_parts = 1;

  __device__ Team() {
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(part));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(num_parts));
#endif
  }

  __device__ void sync() const {
#if __CUDA_ARCH__ >= 900
    if (num_parts > 1) {
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
      return;
    }
#endif
    __syncthreads();
  }

  // The same memory of another block.
  __device__ const ThresholdMemory& of(unsigned other, const ThresholdMemory& memory) const {
#if __CUDA_ARCH__ >= 900
    uint64_t address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(&memory), "r"(other));
    return *reinterpret_cast<const ThresholdMemory*>(address);
#else
    return memory;
#endif
  }
};

// A block's part of a row.
template <typename T> struct Part {
  const Row<T>& row;
  ThresholdMemory& memory;
  Team team;

  // visit(scores, first_id) for vectors of scores, by all threads of a warp together;
  // what is not of the row scores -inf.
  template <typename Visit> __device__ void each_vector(Visit visit) const {
    constexpr int kInFlight = 2;
    const int stride = team.num_parts * kThreads;
    for (int start = team.part * kThreads; start < row.num_vectors; start += kInFlight * stride) {
      Vec<T> raw[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; u++) {
        const int vector = start + u * stride + threadIdx.x;
        if (vector < row.num_vectors) raw[u] = row.vectors[vector];
      }
#pragma unroll
      for (int u = 0; u < kInFlight; u++) {
        const int vector = start + u * stride + threadIdx.x;
        float scores[Row<T>::kWidth];
#pragma unroll
        for (int j = 0; j < Row<T>::kWidth; j++) scores[j] = -INFINITY;
        if (vector < row.num_vectors) row.unpack(raw[u], vector, scores);
        visit(scores, row.first_id(vector));
      }
    }
  }

  template <typename Visit> __device__ void each(Visit visit) const {
    each_vector([&](const float(&scores)[Row<T>::kWidth], int first_id) {
#pragma unroll
      for (int j = 0; j < Row<T>::kWidth; j++) {
        const unsigned id = first_id + j;
        if (id < static_cast<unsigned>(row.vocab)) visit(scores[j], id);
      }
    });
  }
};

__device__ __forceinline__ unsigned rank_of(float score) { return ~ordered(score); }

__device__ __forceinline__ void clear(ThresholdMemory& memory) {
  for (int i = threadIdx.x; i < kBins; i += kThreads) memory.low[i] = memory.high[i] = 0;
  __syncthreads();
}

__device__ __forceinline__ void add(ThresholdMemory& memory, unsigned bin, unsigned weight) {
  atomicAdd(&memory.low[bin], weight);
}

__device__ __forceinline__ void add(ThresholdMemory& memory, unsigned bin, uint64_t weight) {
  const unsigned low = static_cast<unsigned>(weight);
  unsigned high = static_cast<unsigned>(weight >> 32);
  if (low != 0 && atomicAdd(&memory.low[bin], low) + low < low) high++;
  if (high != 0) atomicAdd(&memory.high[bin], high);
}

// The block's inclusive sums by thread, and the sum of all.
__device__ __forceinline__ uint64_t running_sum(ThresholdMemory& memory, uint64_t mine,
                                                uint64_t& sum) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto scan = [lane](uint64_t x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, x, step);
      if (lane >= step) x += other;
    }
    return x;
  };
  const uint64_t upto = scan(mine);
  if (lane == 31) memory.warp_sums[warp] = upto;
  __syncthreads();
  const uint64_t warps_upto = scan(memory.warp_sums[lane]);
  sum = __shfl_sync(~0u, warps_upto, 31);
  const uint64_t below = __shfl_sync(~0u, warps_upto, max(warp - 1, 0));
  return warp > 0 ? upto + below : upto;
}

// Finds the first bin at which the team's weights up to it reach the target; `target_of` takes
// their sum. Leaves it in each block's memory, and returns the target.
template <typename TargetOf>
__device__ __forceinline__ uint64_t find_bin(ThresholdMemory& memory, const Team& team,
                                             TargetOf target_of) {
  const int bin = 2 * threadIdx.x;
  team.sync();
  uint64_t first = 0, second = 0;
#pragma unroll 4
  for (unsigned part = 0; part < team.num_parts; part++) {
    const ThresholdMemory& other = team.of(part, memory);
    const uint2 low = *reinterpret_cast<const uint2*>(&other.low[bin]);
    const uint2 high = *reinterpret_cast<const uint2*>(&other.high[bin]);
    first += static_cast<uint64_t>(high.x) << 32 | low.x;
    second += static_cast<uint64_t>(high.y) << 32 | low.y;
  }
  if (threadIdx.x == 0) {  // what a row of broken logits leaves
    memory.bin = kBins - 1;
    memory.before = 0;
  }
  uint64_t sum;
  const uint64_t upto = running_sum(memory, first + second, sum);
  const uint64_t target = target_of(sum);
  const uint64_t before = upto - first - second;
  if (before < target && target <= upto) {
    const bool in_first = target <= before + first;
    memory.bin = in_first ? bin : bin + 1;
    memory.before = in_first ? before : before + first;
  }
  team.sync();
  return target;
}

// The least key at which the weights of keys up to it reach the target, and how much of the target
// remains once the keys below it are counted.
struct Cut {
  unsigned key;
  uint64_t remaining;
};

// Finds it by the key's digits, of 11 + 11 + 10 bits.
template <typename T, typename KeyOf, typename WeightOf>
__device__ Cut find_cut(const Part<T>& part, KeyOf key_of, WeightOf weight_of, uint64_t target) {
  ThresholdMemory& memory = part.memory;
  Cut cut = {0, target};
#pragma unroll 1
  for (int digit = 0; digit < 3; digit++) {
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    const unsigned mask = digit == 2 ? 1023 : 2047;
    const unsigned known = digit == 0 ? 0 : ~0u << (digit == 1 ? 21 : 10);
    clear(memory);
    part.each([&](float score, unsigned id) {
      const unsigned key = key_of(score, id);
      if (key == kExcluded || (key & known) != cut.key) return;
      add(memory, key >> shift & mask, weight_of(key));
    });
    find_bin(memory, part.team, [&](uint64_t) { return cut.remaining; });
    cut.key |= memory.bin << shift;
    cut.remaining -= memory.before;
    __syncthreads();
  }
  return cut;
}

// Distances from the best to bins; NaN goes to the first.
__device__ __forceinline__ unsigned bin_of(float distance) {
  return min(__float2uint_rz(distance * kBinsPerUnit), kBins - 1u);
}

// Each block of the team finds its own tokens by list(score, id): 0 for those below the cut's bin,
// 1 for those in it, 2 for neither.
template <typename T, typename List> __device__ void find(const Part<T>& part, List list) {
  ThresholdMemory& memory = part.memory;
  if (threadIdx.x < 2) memory.num_found[threadIdx.x] = 0;
  __syncthreads();
  part.each([&](float score, unsigned id) {
    const unsigned which = list(score, id);
    if (which > 1) return;
    const int place = atomicAdd(&memory.num_found[which], 1);
    if (place < kThreads) {
      memory.found[which][place] = static_cast<uint64_t>(rank_of(score)) << 32 | id;
    }
  });
  part.team.sync();
}

// What the team has found, sorted, with as many of all ones behind: one for each thread, the same
// in every block. Empty if there are too many. `first`: 0 to take both lists, 1 for the second.
struct Sorted {
  int size;
  uint64_t mine;
};

__device__ __forceinline__ Sorted sort_found(ThresholdMemory& memory, const Team& team, int first) {
  Sorted sorted = {0, ~0ull};
  bool fits = true;
  for (unsigned part = 0; part < team.num_parts; part++) {
    for (int list = first; list < 2; list++) {
      const int size = team.of(part, memory).num_found[list];
      fits = fits && sorted.size + size <= kThreads;
      if (!fits) break;
      if (threadIdx.x < size) {
        memory.listed[sorted.size + threadIdx.x] = team.of(part, memory).found[list][threadIdx.x];
      }
      sorted.size += size;
    }
  }
  __syncthreads();
  if (!fits || sorted.size == 0) return {0, ~0ull};
  if (threadIdx.x < sorted.size) sorted.mine = memory.listed[threadIdx.x];
  // Bitonic: runs of `run` rise and fall in turn, until one is all.
  for (int run = 2; run / 2 < sorted.size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      uint64_t other;
      if (step < 32) {
        other = __shfl_xor_sync(~0u, sorted.mine, step);
      } else {
        __syncthreads();
        memory.listed[threadIdx.x] = sorted.mine;
        __syncthreads();
        other = memory.listed[threadIdx.x ^ step];
      }
      const bool takes_less = ((threadIdx.x & run) == 0) == ((threadIdx.x & step) == 0);
      sorted.mine = takes_less == (other < sorted.mine) ? other : sorted.mine;
    }
  }
  return sorted;
}

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
                           int features, ThresholdMemory& memory) {
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
  Race race(p, slot);
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
