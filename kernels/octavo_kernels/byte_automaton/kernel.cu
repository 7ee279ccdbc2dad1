// Masks of the tokens that may come in each row, and the step over the sampled ones.
#include "runs.cuh"

namespace octavo::byte_automaton {

// As in tables.py. Ids come in windows; within one they are sorted, so that the 32 of a group, a
// warp's work, are alike plain or not, long, and begin alike.
constexpr unsigned kWindow = 1024, kGroup = 32;
constexpr int kPlainBit = 1024, kLengthShift = 11;
constexpr unsigned kWindowGroups = kWindow / kGroup;

constexpr unsigned kBlock = 256, kWarps = kBlock / 32;
constexpr int kBlocksPerSm = OCTAVO_ARCH < 80 ? 4 : 6;  // all the threads that one has, or nearly
constexpr int kTurns = kWindowGroups / kWarps;     // groups of a window that a warp takes
constexpr int kWarpWords = kWindow / 32 / kWarps;  // words of its mask that a warp writes
static_assert(kTurns % 2 == 0);
constexpr int kWalkBlock = 128;

struct Tokens {
  const int* order;             // by group and lane: length << kLengthShift | is plain | place
  const unsigned* word_starts;  // by group
  const unsigned* words;        // bytes of a group's tokens, word by word, the lanes side by side
  unsigned num_windows;
};

// A lane's token. A stop's length is -1: it is one byte long, and that is the end.
struct Token {
  int item;
  unsigned at;
  unsigned first_word;

  __device__ Token(const Tokens& tokens, unsigned group, unsigned lane)
      : item(__ldg(tokens.order + (group * kGroup + lane))),
        at(__ldg(tokens.word_starts + group) + lane), first_word(__ldg(tokens.words + at)) {}

  __device__ int length() const { return item >> kLengthShift; }
  __device__ bool is_plain() const { return item & kPlainBit; }
  __device__ unsigned place() const { return item % kWindow; }
};

__device__ __forceinline__ bool may_come(const Automaton& automaton, const Place& place,
                                         const Run& run, const unsigned char* classes,
                                         const Tokens& tokens, const Token& token) {
  if (token.is_plain() && token.length() <= run.known) return token.length() <= run.reach;
  int pushed[kMostDepth];
  Walker walker(automaton, place, pushed);
  unsigned at = token.at, word = token.first_word;
  for (int left = abs(token.length()); left > 0 && walker.lives();) {
    unsigned columns[4];
#pragma unroll
    for (int i = 0; i < 4; i++) columns[i] = classes[(word >> 8 * i) & 255];
    if (token.length() < 0) columns[0] = automaton.end_column();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i < left && walker.lives()) walker.enter(columns[i]);
    }
    left -= 4;
    at += kGroup;
    if (left > 0) word = __ldg(tokens.words + at);
  }
  return token.length() != 0 && walker.lives();
}

struct Masks {
  unsigned* words;
  unsigned row_words;
  int* rows;
};

// Lists the rows with an automaton, in their order, and counts them; every block finds the same.
__device__ __forceinline__ unsigned list_guided(const int* slots, const int* at, unsigned num_rows,
                                                const Masks& masks, int* guided) {
  __shared__ unsigned counts[kWarps];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  unsigned num_guided = 0;
  for (unsigned start = 0; start < num_rows; start += kBlock) {
    const unsigned row = start + threadIdx.x;
    const bool is_guided = row < num_rows && at[slots[row]] != 0;
    const unsigned bits = __ballot_sync(~0u, is_guided);
    if (lane == 0) counts[warp] = __popc(bits);
    __syncthreads();
    unsigned place = num_guided + __popc(bits & ((1u << lane) - 1));
    for (unsigned i = 0; i < kWarps; i++) {
      if (i < warp) place += counts[i];
      num_guided += counts[i];
    }
    if (is_guided) guided[place] = static_cast<int>(row);
    if (blockIdx.x == 0 && row < num_rows) masks.rows[row] = is_guided ? static_cast<int>(row) : -1;
    __syncthreads();
  }
  return num_guided;
}

// Windows [begin, end) of a row's mask.
__device__ __forceinline__ void fill_windows(const Automaton& automaton, const Place& place,
                                             const Tokens& tokens, unsigned begin, unsigned end,
                                             unsigned row, const Masks& masks) {
  __shared__ unsigned class_words[kClassWords];
  __shared__ bool may[2][kWindow];
  __shared__ RunMemory run_memory;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Work grows within a window, so the warps take its groups there and back.
  unsigned group = begin * kWindowGroups + warp, ahead = 2 * (kWarps - warp) - 1;
  const unsigned last = end * kWindowGroups - 1;
  Token next(tokens, group, lane);
  if (threadIdx.x < kClassWords) {
    class_words[threadIdx.x] = automaton.word(automaton.classes + threadIdx.x);
  }
  __syncthreads();
  const auto* classes = reinterpret_cast<const unsigned char*>(class_words);
  const Run run = run_at(automaton, place, classes, run_memory);
  for (unsigned window = begin; window < end; window++) {
    bool(&found)[kWindow] = may[window % 2];
#pragma unroll 1
    for (int turn = 0; turn < kTurns; turn++) {
      const Token token = next;
      group += ahead;
      ahead = 2 * kWarps - ahead;
      next = Token(tokens, min(group, last), lane);
      found[token.place()] = may_come(automaton, place, run, classes, tokens, token);
    }
    __syncthreads();
    // The next window fills the other half, so that one barrier a window is enough.
    unsigned mine = 0;
#pragma unroll
    for (unsigned i = 0; i < kWarpWords; i++) {
      const unsigned bits = __ballot_sync(~0u, found[(warp * kWarpWords + i) * 32 + lane]);
      if (lane == i) mine = bits;
    }
    const unsigned word = (window * kWarps + warp) * kWarpWords + lane;
    if (lane < kWarpWords && word < masks.row_words) {
      masks.words[static_cast<size_t>(row) * masks.row_words + word] = mine;
    }
  }
}

// The blocks share the windows of all rows with an automaton evenly, be they many or few.
__global__ __launch_bounds__(kBlock, kBlocksPerSm) void fill_masks(const int* slots, int num_rows,
                                                                   States states, const int* pool,
                                                                   Tokens tokens, Masks masks) {
  extern __shared__ int guided[];  // num_rows
  let_next_start();
  wait_for_previous();
  const unsigned num_guided = list_guided(slots, states.at, num_rows, masks, guided);
  const uint64_t num_windows = num_guided * tokens.num_windows;
  const unsigned end = num_windows * (blockIdx.x + 1) / gridDim.x;
  for (unsigned at = num_windows * blockIdx.x / gridDim.x; at < end;) {
    const int row = guided[at / tokens.num_windows], slot = slots[row];
    const unsigned first = at % tokens.num_windows;
    const unsigned stop = min(first + end - at, tokens.num_windows);
    fill_windows(Automaton(pool, states.at[slot]), Place(states, slot), tokens, first, stop, row,
                 masks);
    at += stop - first;
  }
}

// What tokens are, in the order of their ids.
struct Texts {
  const unsigned char* bytes;
  const int* starts;
  int vocab;
  const int* stops;
  int num_stops;
};

// Where a token leads from a place goes to a line of `to`, be it the place's own; by a warp, whose
// lanes go the same way.
__device__ __forceinline__ void take(const Automaton& automaton, const Place& place, int token,
                                     const Texts& texts, const States& to, int line) {
  const int lane = threadIdx.x % 32;
  int* const stack = to.stack + static_cast<size_t>(line) * kMostDepth;
  const bool moves = stack != place.stack;
  int pushed[kMostDepth];
  Walker walker(automaton, place, pushed);
  bool stays = !walker.lives();
  if (!stays) {
    bool stops_here = false;
    for (int i = lane; i < texts.num_stops; i += 32) {
      stops_here |= __ldg(texts.stops + i) == token;
    }
    if (__any_sync(~0u, stops_here)) {
      walker.enter(automaton.end_column());
      stays = walker.lives();
    } else {
      int begin = 0, end = 0;
      if (token >= 0 && token < texts.vocab) {
        begin = __ldg(texts.starts + token);
        end = __ldg(texts.starts + token + 1);
      }
      if (begin == end) walker.entry = kNowhere;
      const auto* classes =
          reinterpret_cast<const unsigned char*>(automaton.pool + automaton.classes);
      for (int start = begin; start < end && walker.lives(); start += 32) {
        const int column =
            start + lane < end ? __ldg(classes + __ldg(texts.bytes + start + lane)) : 0;
        for (int i = 0; i < min(32, end - start) && walker.lives(); i++) {
          walker.enter(__shfl_sync(~0u, column, i));
        }
      }
    }
  }
  if (stays && !moves) return;
  const bool leads = !stays && walker.lives();
  const int kept = leads ? walker.kept : place.depth;
  if (moves) {
    for (int i = lane; i < kept; i += 32) stack[i] = place.stack[i];
  }
  __syncwarp();  // all have read the place, which may be what is written
  if (lane == 0) {
    to.state[line] = leads ? walker.state() : stays ? place.state : kNowhere;
    if (leads || moves) to.depth[line] = kept + (leads ? walker.num_pushed : 0);
    for (int i = 0; leads && i < walker.num_pushed; i++) stack[kept + i] = pushed[i];
  }
}

// A warp a row. Row r's token is taken at line `lines[r]` of `from`; null: at the slot itself.
__global__ __launch_bounds__(kWalkBlock) void walk(const int* slots, const int* sampled,
                                                   const int* lines, int num_rows, States from,
                                                   States to, const int* pool, Texts texts) {
  const int row = (blockIdx.x * kWalkBlock + threadIdx.x) / 32;
  let_next_start();
  wait_for_previous();
  if (row >= num_rows) return;
  const int slot = slots[row], at = to.at[slot];
  if (at == 0) return;
  const Place place(from, lines == nullptr ? slot : lines[row]);
  take(Automaton(pool, at), place, sampled[row], texts, to, slot);
}

// Drafts of all slots, which stand behind their tokens.
struct Drafts {
  const int *tokens, *num_tokens;
  int slot_tokens;
};

// A warp a row: line r of `to` gets where row r's slot stands behind the drafts before the row.
__global__ __launch_bounds__(kWalkBlock) void walk_drafts(const int* slots, const int* ahead,
                                                          int num_rows, Drafts drafts, States from,
                                                          States to, int* to_at, const int* pool,
                                                          Texts texts) {
  const int row = (blockIdx.x * kWalkBlock + threadIdx.x) / 32, lane = threadIdx.x % 32;
  let_next_start();
  wait_for_previous();
  if (row >= num_rows) return;
  const int slot = slots[row], at = from.at[slot], first = drafts.num_tokens[slot];
  if (lane == 0) to_at[row] = at;
  if (at == 0) return;
  const Place origin(from, slot);
  int* const stack = to.stack + static_cast<size_t>(row) * kMostDepth;
  for (int i = lane; i < origin.depth; i += 32) stack[i] = origin.stack[i];
  if (lane == 0) {
    to.state[row] = origin.state;
    to.depth[row] = origin.depth;
  }
  const Automaton automaton(pool, at);
  const int* const tokens = drafts.tokens + static_cast<size_t>(slot) * drafts.slot_tokens;
  for (int i = first; i < first + ahead[row]; i++) {
    __syncwarp();  // what the last token has led to is read by all lanes
    take(automaton, Place(to, row), i < drafts.slot_tokens ? tokens[i] : -1, texts, to, row);
  }
}

int walk_blocks(int num_rows) { return (num_rows + kWalkBlock / 32 - 1) / (kWalkBlock / 32); }

}  // namespace octavo::byte_automaton

OCTAVO_EXPORT int octavo_fill_masks(const int* slots, int num_rows, const int* at, int* state,
                                    int* depth, int* stack, const int* pool, const int* order,
                                    const unsigned* word_starts, const unsigned* words,
                                    int num_windows, unsigned* mask_words, int row_words,
                                    int* mask_rows, int num_sms, cudaStream_t stream) {
  using namespace octavo;
  using namespace octavo::byte_automaton;
  const States states = {at, state, depth, stack};
  const Tokens tokens = {order, word_starts, words, static_cast<unsigned>(num_windows)};
  const Masks masks = {mask_words, static_cast<unsigned>(row_words), mask_rows};
  const int grid = min(num_rows * num_windows, kBlocksPerSm * num_sms);
  return launch(fill_masks, grid, kBlock, num_rows * sizeof(int), stream, slots, num_rows, states,
                pool, tokens, masks);
}

OCTAVO_EXPORT int octavo_walk_automata(const int* slots, const int* sampled, const int* lines,
                                       int num_rows, const int* from_at, int* from_state,
                                       int* from_depth, int* from_stack, const int* at, int* state,
                                       int* depth, int* stack, const int* pool,
                                       const unsigned char* bytes, const int* starts, int vocab,
                                       const int* stops, int num_stops, cudaStream_t stream) {
  using namespace octavo;
  using namespace octavo::byte_automaton;
  return launch(byte_automaton::walk, walk_blocks(num_rows), kWalkBlock, 0, stream, slots, sampled,
                lines, num_rows, States{from_at, from_state, from_depth, from_stack},
                States{at, state, depth, stack}, pool,
                Texts{bytes, starts, vocab, stops, num_stops});
}

OCTAVO_EXPORT int octavo_walk_drafts(const int* slots, const int* ahead, int num_rows,
                                     const int* drafts, const int* num_tokens, int slot_tokens,
                                     const int* at, int* state, int* depth, int* stack, int* to_at,
                                     int* to_state, int* to_depth, int* to_stack, const int* pool,
                                     const unsigned char* bytes, const int* starts, int vocab,
                                     const int* stops, int num_stops, cudaStream_t stream) {
  using namespace octavo;
  using namespace octavo::byte_automaton;
  return launch(byte_automaton::walk_drafts, walk_blocks(num_rows), kWalkBlock, 0, stream, slots,
                ahead, num_rows, Drafts{drafts, num_tokens, slot_tokens},
                States{at, state, depth, stack}, States{to_at, to_state, to_depth, to_stack}, to_at,
                pool, Texts{bytes, starts, vocab, stops, num_stops});
}
