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

// Of the sums that a block leaves, so many fours a thread: this thread's first, the others
// kConsumers apart.
template <int kFours> __device__ __forceinline__ uint4* partials_of(int block) {
  return partials + block * (kFours * kConsumers) + threadIdx.x;
}

// Leaves the sums for the block that finishes the tile.
template <int kFours> __device__ __forceinline__ void leave(const float (&sums)[kFours][4]) {
  uint4* target = partials_of<kFours>(blockIdx.x);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    put(target + i * kConsumers,
        make_uint4(~__float_as_uint(sums[i][0]), ~__float_as_uint(sums[i][1]),
                   ~__float_as_uint(sums[i][2]), ~__float_as_uint(sums[i][3])));
  }
}

// Adds what the blocks after this one, up to `last`, left; up to eight fours at once, be they of
// some blocks, for the latency. They run: a grid has no more blocks than the device has
// multiprocessors, and later kernels start only after all of them have.
template <int kFours> __device__ __forceinline__ void collect(int last, float (&sums)[kFours][4]) {
  constexpr int kAtOnce = kFours < 8 ? kFours : 8, kBlocks = 8 / kAtOnce;
#pragma unroll 1
  for (int first = blockIdx.x + 1; first <= last; first += kBlocks) {
#pragma unroll
    for (int begin = 0; begin < kFours; begin += kAtOnce) {
      uint4 quads[kBlocks][kAtOnce];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
          const uint4* source = partials_of<kFours>(first + n) + begin * kConsumers;
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            quads[n][i] = make_uint4(~0u, ~0u, ~0u, ~0u);  // zeros, should there be no such block
            if (first + n <= last) quads[n][i] = get(source + i * kConsumers);
          }
        }
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const uint4& quad = quads[n][i];
            there = there && quad.x != 0 && quad.y != 0 && quad.z != 0 && quad.w != 0;
          }
        }
      } while (!__all_sync(~0u, there));
#pragma unroll
      for (int n = 0; n < kBlocks; ++n) {
        uint4* source = partials_of<kFours>(first + n) + begin * kConsumers;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + n <= last) put(source + i * kConsumers, make_uint4(0, 0, 0, 0));
          float(&four)[4] = sums[begin + i];
          four[0] += __uint_as_float(~quads[n][i].x), four[1] += __uint_as_float(~quads[n][i].y);
          four[2] += __uint_as_float(~quads[n][i].z), four[3] += __uint_as_float(~quads[n][i].w);
        }
      }
    }
  }
}

}  // namespace octavo::linear
