// What texts of plain bytes do at a row's place, found out once for all tokens that are such.
#pragma once

#include "automaton.cuh"

namespace octavo::byte_automaton {

constexpr int kMostRun = 16;  // few tokens are longer, and the whole block waits for each byte
constexpr int kFirstPlain = ' ';

// As in tables.py: what a string of JSON holds as it is.
__device__ __forceinline__ bool is_plain(int byte) {
  return byte >= kFirstPlain && byte <= '~' && byte != '"' && byte != '\\';
}

// Inside strings all plain bytes lead alike, which decides four tokens of five: those that are no
// longer than `known` may come if they are no longer than `reach`.
struct Run {
  int reach, known;
};

struct RunMemory {
  int entry, kept, num_pushed;
  int pushed[kMostDepth];
};

// By a block of 256 threads, each a byte: they go on while all that are plain come to one place.
__device__ __forceinline__ Run run_at(const Automaton& automaton, const Place& place,
                                      const unsigned char* classes, RunMemory& memory) {
  constexpr int kAlways = 0x7fffffff;
  const int byte = threadIdx.x;
  int pushed[kMostDepth];
  Walker walker(automaton, place, pushed);
  if (!walker.lives()) return {0, kAlways};
#pragma unroll 1
  for (int reach = 0; reach < kMostRun; reach++) {
    const int before = walker.entry, kept = walker.kept, num_before = walker.num_pushed;
    if (is_plain(byte)) walker.enter(classes[byte]);
    if (byte == kFirstPlain) {
      memory.entry = walker.entry;
      memory.kept = walker.kept;
      memory.num_pushed = walker.num_pushed;
#pragma unroll 1
      for (int i = 0; i < walker.num_pushed; i++) memory.pushed[i] = pushed[i];
    }
    __syncthreads();
    const int entry = memory.entry;
    bool is_alike = true, is_still = false;
    if (is_plain(byte) && (entry >= 0 || walker.entry >= 0)) {
      is_alike = walker.entry == entry && walker.kept == memory.kept &&
                 walker.num_pushed == memory.num_pushed;
#pragma unroll 1
      for (int i = 0; is_alike && i < walker.num_pushed; i++) {
        is_alike = pushed[i] == memory.pushed[i];
      }
      is_still = entry == before && walker.kept == kept && num_before + walker.num_pushed == 0;
    }
    if (!__syncthreads_and(is_alike)) return {reach, reach};
    if (entry < 0) return {reach, kAlways};
    if (__syncthreads_or(is_still)) return {kAlways, kAlways};
  }
  return {kMostRun, kMostRun};
}

}  // namespace octavo::byte_automaton
