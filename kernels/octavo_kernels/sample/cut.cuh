// Where a team cuts a row: by sums of weights in bins, or in a list of few tokens that it sorts.
#pragma once

#include "team.cuh"

namespace octavo::sample {

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

}  // namespace octavo::sample
