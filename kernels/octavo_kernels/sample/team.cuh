// The blocks that share a row, what each keeps in shared memory, and its part of the row.
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
        if (vector < row.num_vectors) raw[u] = row.load(vector);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; u++) {
        const int vector = start + u * stride + threadIdx.x;
        float scores[Row<T>::kWidth];
#pragma unroll
        for (int j = 0; j < Row<T>::kWidth; j++) scores[j] = -INFINITY;
        if (vector < row.num_vectors) {
          row.mend(raw[u], vector);
          row.unpack(raw[u], vector, scores);
        }
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

}  // namespace octavo::sample
