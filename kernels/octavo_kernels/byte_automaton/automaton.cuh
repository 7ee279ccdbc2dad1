// A packed automaton, and the walk of a text's bytes through it; what entries mean is said at
// octavo_registry.guided.ByteAutomaton.
#pragma once

#include "octavo.cuh"

namespace octavo::byte_automaton {

constexpr int kMostDepth = 64;   // as MOST_DEPTH in tables.py
constexpr int kMostHops = 128;   // as MOST_HOPS
constexpr int kHeaderWords = 4;  // states, columns, calls, 0
constexpr int kClassWords = 64;
constexpr int kGo = 0, kCall = 1;
constexpr int kNotGo = 0x80000003;  // bits that an entry has if it is no GO
constexpr int kNowhere = -1;

// Where the slots' texts stand. Rows of `stack` hold kMostDepth states.
struct States {
  const int* at;
  int* state;
  int* depth;
  int* stack;
};

// Places in the pool are 32-bit numbers of words: a lookup takes half the instructions so.
struct Automaton {
  const int* pool;
  unsigned num_states, num_columns;
  unsigned classes, table, calls;

  __device__ Automaton(const int* pool, unsigned at)
      : pool(pool), num_states(word(at)), num_columns(word(at + 1)), classes(at + kHeaderWords),
        table(classes + kClassWords), calls(table + num_states * num_columns) {}

  __device__ __forceinline__ int word(unsigned at) const { return __ldg(pool + at); }
  __device__ unsigned end_column() const { return num_columns - 1; }
  __device__ bool has(int state) const { return static_cast<unsigned>(state) < num_states; }
};

// Where a row's text stands.
struct Place {
  int state, depth;
  const int* stack;

  __device__ Place(const States& states, int slot)
      : state(states.state[slot]), depth(min(max(states.depth[slot], 0), kMostDepth)),
        stack(states.stack + static_cast<size_t>(slot) * kMostDepth) {}
};

// Where bytes have led from a place: the stack is the lowest `kept` states of the place's, which
// stays as it is, and those that were pushed on them.
struct Walker {
  const Automaton& automaton;
  const int* stack;
  int entry;  // the last that was found, which leads to a state; below 0, nothing may come
  int kept;
  int num_pushed = 0;
  // Of the caller, in slow memory, and touched by calls and returns alone; all else is registers,
  // which it would not be with this array in it.
  int (&pushed)[kMostDepth];

  __device__ Walker(const Automaton& automaton, const Place& place, int (&pushed)[kMostDepth])
      : automaton(automaton), stack(place.stack),
        entry(automaton.has(place.state) ? 4 * place.state : kNowhere), kept(place.depth),
        pushed(pushed) {}

  __device__ bool lives() const { return entry >= 0; }
  __device__ int state() const { return entry >> 2; }

  // Takes a byte of that column; lives before.
  __device__ __forceinline__ void enter(unsigned column) {
    look(state(), column);
    if (entry & kNotGo) hop(column);
  }

 private:
  __device__ __forceinline__ void hop(unsigned column) {
    for (int hops = 0; entry >= 0 && (entry & 3) != kGo; hops++) {
      if (hops == kMostHops) {
        entry = kNowhere;
      } else if ((entry & 3) == kCall) {
        call(entry >> 2, column);
      } else {
        go_back(column);
      }
    }
  }

  __device__ __forceinline__ void look(unsigned state, unsigned column) {
    entry = automaton.word(automaton.table + state * automaton.num_columns + column);
  }

  __device__ __forceinline__ void call(int number, unsigned column) {
    if (kept + num_pushed == kMostDepth) {
      entry = kNowhere;
      return;
    }
    pushed[num_pushed++] = automaton.word(automaton.calls + 2 * number + 1);
    look(automaton.word(automaton.calls + 2 * number), column);
  }

  __device__ __forceinline__ void go_back(unsigned column) {
    int state = kNowhere;
    if (num_pushed > 0) {
      state = pushed[--num_pushed];
    } else if (kept > 0) {
      state = stack[--kept];
    }
    if (automaton.has(state)) {
      look(state, column);
    } else {
      entry = kNowhere;
    }
  }
};

}  // namespace octavo::byte_automaton
