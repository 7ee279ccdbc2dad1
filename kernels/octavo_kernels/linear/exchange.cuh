// How blocks that meet in a tile pass their sums on: through memory, without flags.
#pragma once

#include "ring.cuh"

namespace octavo::linear {

constexpr int kMaxBlocks = 160;
constexpr int kMaxTile = 128 * 64;

// Sums of runs that begin inside a tile, by block, as the complements of their bits. Zero is what
// no sum gives (the complement of a NaN that the hardware never makes), so a word that is not zero
// is there, and no flag need follow it: through flags, an exchange took about 1 us more. One set a
// device and source, zero when the library is loaded; who takes sums leaves zeros. Kernels of one
// stream use it in turn: they write after `wait_for_previous`.
__device__ uint4 partials[kMaxBlocks * kMaxTile / 4];

__device__ __forceinline__ void put(uint4* target, uint4 value) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 get(const uint4* source) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

// Of the sums that a block leaves, this thread's of a part: fours, kConsumers apart.
template <int kParts, int kSums>
__device__ __forceinline__ uint4* partial_of(int block, int part) {
  return partials + (block * kParts + part) * (kConsumers * kSums / 4) + threadIdx.x;
}

// Leaves the sums for the block that finishes the tile.
template <int kParts, int kSums>
__device__ __forceinline__ void leave(const float (&all_sums)[kParts][kSums]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    uint4* target = partial_of<kParts, kSums>(blockIdx.x, part);
    const float* sums = all_sums[part];
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      put(target + i * kConsumers,
          make_uint4(~__float_as_uint(sums[4 * i]), ~__float_as_uint(sums[4 * i + 1]),
                     ~__float_as_uint(sums[4 * i + 2]), ~__float_as_uint(sums[4 * i + 3])));
    }
  }
}

// Adds what the blocks after this one, up to `last`, left of a part; that of some blocks at once,
// for the latency. They run: a grid has no more blocks than the device has multiprocessors, and
// later kernels start only after all of them have.
template <int kParts, int kSums>
__device__ __forceinline__ void collect(int last, int part, float (&part_sums)[kSums]) {
  constexpr int kQuads = kSums / 4, kBatch = 8 / kQuads;
  for (int first = blockIdx.x + 1; first <= last; first += kBatch) {
    uint4 quads[kBatch][kQuads];
    bool there;
    do {
      there = true;
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          quads[n][i] = make_uint4(~0u, ~0u, ~0u, ~0u);  // zeros, should there be no such block
          if (first + n <= last) {
            quads[n][i] = get(partial_of<kParts, kSums>(first + n, part) + i * kConsumers);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          const uint4& quad = quads[n][i];
          there = there && quad.x != 0 && quad.y != 0 && quad.z != 0 && quad.w != 0;
        }
      }
    } while (!__all_sync(~0u, there));
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        if (first + n <= last) {
          put(partial_of<kParts, kSums>(first + n, part) + i * kConsumers, make_uint4(0, 0, 0, 0));
        }
        float* sums = part_sums + 4 * i;
        sums[0] += __uint_as_float(~quads[n][i].x), sums[1] += __uint_as_float(~quads[n][i].y);
        sums[2] += __uint_as_float(~quads[n][i].z), sums[3] += __uint_as_float(~quads[n][i].w);
      }
    }
  }
}

}  // namespace octavo::linear
