// The kernel. Blocks stay, one per multiprocessor, in pairs; a pair takes every n-th unit: 256
// tokens times a tile of the weight's rows. In each block one thread copies slices into a ring of
// stages in shared memory: of its own 128 tokens, and of half of the rows, which both blocks get.
// Two warpgroups multiply 64 tokens each by all rows and store the result.
//
// Products of thousands of tokens run at the GPU's power limit: the tensor cores are busy for 97 %
// of the time, but an H200 slows down to 1330 of its 1980 MHz. Less data to move would help, less
// waiting does not. Not faster were: warpgroups that take turns at storing, tiles of 192 x 256 or
// 256 x 192 (a fifth less to read), clusters of four (30 of them fit), hints to the L2 (now and
// then 10 % slower).
#pragma once

#include "hopper_products.cuh"

namespace octavo::linear_tall {

using namespace octavo::hopper;

constexpr int kConsumers = 2;             // warpgroups
constexpr int kTokens = 64 * kConsumers;  // of a block
constexpr int kThreads = 128 * (kConsumers + 1);
// Of pairs, whose units come one after the other: 66 units at a time, of as many tokens as rows,
// read the least. 16 were 3 % slower.
constexpr int kGroup = 8;

// What becomes of a unit's sums.
enum class Result { kAdded, kGated, kActivated };

template <int kRows_, int kStages_, Result kResult_> struct Tile {
  static constexpr int kRows = kRows_, kStages = kStages_;
  static constexpr Result kResult = kResult_;
  static constexpr bool kGated = kResult == Result::kGated;
  static constexpr int kHalf = kRows / 2;  // rows that a block copies; gates, of gates and ups
  static constexpr int kOutputs = kGated ? kHalf : kRows;
  static constexpr int kBox = kOutputs % 64 == 0 ? 64 : 32;  // outputs that are stored at a time
};

template <typename Tile> struct Shared {
  uint16_t tokens[Tile::kStages][kTokens * kSlice];
  uint16_t rows[Tile::kStages][Tile::kRows * kSlice];
  uint16_t out[kConsumers][2][64 * 64];  // rows of a swizzled box have 128 bytes, or room for them
  Barrier full[Tile::kStages], empty[Tile::kStages];

  static constexpr int kStageBytes = (kTokens + Tile::kRows) * kSlice * 2;
};

struct Params {
  const void* bias;  // of the weight's rows, or null
  int epilogue;      // kAdd, or how gates or sums are activated
  int outputs;       // the weight's rows, or the gates among them
  int half_to_half;  // in the weight, from the first row of a tile's first half to its second's
  int slices;        // of features
  int pairs;         // of blocks, for all tokens
  int units;
};

struct Unit {
  int pair, tile;  // of tokens, of outputs
};

template <typename Tile> __device__ __forceinline__ Unit unit_at(const Params& p, int index) {
  const int tiles = (p.outputs + Tile::kOutputs - 1) / Tile::kOutputs;
  const int first = index / (kGroup * tiles) * kGroup, within = index - first * tiles;
  const int pairs = min(kGroup, p.pairs - first);
  return {first + within % pairs, within / pairs};
}

// Where in the ring a role is.
template <int kStages> struct Cursor {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// By one thread.
template <typename Tile>
__device__ __forceinline__ void produce(Shared<Tile>& shared, const CUtensorMap& x_map,
                                        const CUtensorMap& weight_map, const Params& p) {
  const int rank = rank_in_cluster();
  auto copy_rows = [&](int stage, const Unit& unit, int slice) {
    shared.full[stage].arrive_and_expect(Shared<Tile>::kStageBytes);
    const int first_row = unit.tile * Tile::kOutputs + rank * p.half_to_half;
    copy_tile_to(3, shared_address(shared.rows[stage] + rank * Tile::kHalf * kSlice), weight_map,
                 shared.full[stage], slice * kSlice, first_row);
  };
  auto copy_tokens = [&](int stage, const Unit& unit, int slice) {
    copy_tile<2>(shared_address(shared.tokens[stage]), x_map, shared.full[stage], slice * kSlice,
                 (2 * unit.pair + rank) * kTokens);
  };

  int index = blockIdx.x / 2;
  Unit unit = unit_at<Tile>(p, index);
  const int ahead = min(Tile::kStages, p.slices);
  for (int slice = 0; slice < ahead; ++slice) copy_rows(slice, unit, slice);
  wait_for_previous();
  Cursor<Tile::kStages> at;
  for (int slice = 0; slice < ahead; ++slice, at.advance()) copy_tokens(slice, unit, slice);
  for (int slice = ahead;; slice = 0) {
    for (; slice < p.slices; ++slice, at.advance()) {
      shared.empty[at.stage].wait(at.parity ^ 1);
      copy_rows(at.stage, unit, slice);
      copy_tokens(at.stage, unit, slice);
    }
    index += gridDim.x / 2;
    if (index >= p.units) return;
    unit = unit_at<Tile>(p, index);
  }
}

// Turns two gates into gate * sigmoid(z) * up with one division. So that it can divide by both,
// e^-z stays below 2^60: that counts where the result is below 1e-18 of the gate.
__device__ __forceinline__ void gate_by_sigmoid(float (&gate)[2], const float (&z)[2],
                                                const float (&up)[2]) {
  constexpr float kLog2e = 1.4426950408889634f;
  const float first = 1.f + exp2_fast(fminf(-kLog2e * z[0], 60.f));
  const float second = 1.f + exp2_fast(fminf(-kLog2e * z[1], 60.f));
  const float inverse = __fdividef(1.f, first * second);
  gate[0] *= up[0] * (second * inverse);
  gate[1] *= up[1] * (first * inverse);
}

template <Epilogue kActivation>
__device__ __forceinline__ void activate(float (&gate)[2], const float (&up)[2]) {
  if constexpr (kActivation == kSilu) {
    gate_by_sigmoid(gate, gate, up);
  } else if constexpr (kActivation == kGeluTanh) {  // (1 + tanh(y)) / 2 = sigmoid(2 y)
    float z[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      z[i] = 1.5957691216057308f * (gate[i] + .044715f * gate[i] * gate[i] * gate[i]);
    }
    gate_by_sigmoid(gate, z, up);
  } else if constexpr (kActivation == kPlainQuickGelu) {
    const float z[2] = {1.702f * gate[0], 1.702f * gate[1]};
    gate_by_sigmoid(gate, z, up);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      gate[i] *= .5f * (1.f + erff(gate[i] * .7071067811865476f)) * up[i];
    }
  }
}

// A warpgroup's tokens of the products.
template <typename T, typename Tile> class Consumer {
 public:
  __device__ Consumer(Shared<Tile>& shared, const CUtensorMap& out_map, const Params& p)
      : shared_(shared), out_map_(out_map), p_(p), warpgroup_(threadIdx.x / 128),
        thread_(threadIdx.x % 128), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    const int first_token = rank_in_cluster() * kTokens + warpgroup_ * 64;
    for (int index = blockIdx.x / 2; index < p_.units; index += gridDim.x / 2) {
      const Unit unit = unit_at<Tile>(p_, index);
      multiply_all();
      const int token = unit.pair * 2 * kTokens + first_token;
      const int output = unit.tile * Tile::kOutputs;
      if (p_.bias != nullptr) {
        add_bias(0, output);
        add_bias(Tile::kHalf, output + p_.half_to_half);
      }
      if constexpr (Tile::kResult == Result::kAdded) {
        add(token, output);
      } else if constexpr (Tile::kResult == Result::kActivated) {
        if (p_.epilogue == kPlainQuickGelu) {
          store_activated<kPlainQuickGelu>(token, output);
        } else if (p_.epilogue == kPlainGelu) {
          store_activated<kGelu>(token, output);
        } else {
          store_activated<kGeluTanh>(token, output);
        }
      } else if (p_.epilogue == kSilu) {
        store_gated<kSilu>(token, output);
      } else if (p_.epilogue == kGelu) {
        store_gated<kGelu>(token, output);
      } else {
        store_gated<kGeluTanh>(token, output);
      }
    }
    if (thread_ == 0) wait_for_stores<0>();
  }

 private:
  // Leaves sum 4 j + 2 h + c of token 16 warp + 8 h + lane / 4, row 8 j + 2 (lane % 4) + c.
  __device__ __forceinline__ void multiply_all() {
    int last_stage = 0;
    for (int slice = 0; slice < p_.slices; ++slice, at_.advance()) {
      shared_.full[at_.stage].wait(at_.parity);
      const uint64_t a =
          describe(shared_address(shared_.tokens[at_.stage] + warpgroup_ * 64 * kSlice));
      const uint64_t b = describe(shared_address(shared_.rows[at_.stage]));
      fence_products();
#pragma unroll
      for (int step = 0; step < kSlice / 16; ++step) {
        multiply<T>(sums_, a + 2 * step, b + 2 * step, slice + step > 0);
      }
      commit_products();
      wait_products<1>();
      if (slice > 0) release(last_stage);
      last_stage = at_.stage;
    }
    wait_products<0>();
    pin(sums_);
    release(last_stage);
  }

  // Both blocks copy into both blocks' stages.
  __device__ __forceinline__ void release(int stage) {
    if (lane_ < 2) arrive_at(shared_.empty[stage], lane_);
  }

  // For half of the tile's rows, the weight's from `row`. Past the weight's end nothing is stored.
  __device__ __forceinline__ void add_bias(int tile_row, int row) {
    const T* bias = static_cast<const T*>(p_.bias);
    const int end = Tile::kGated ? 2 * p_.outputs : p_.outputs;
#pragma unroll
    for (int i = 0; i < Tile::kHalf / 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int at = row + 8 * i + lane_ % 4 * 2 + c;
        const float value = at < end ? to_float(bias[at]) : 0.f;
        sums_[tile_row / 2 + 4 * i + c] += value;
        sums_[tile_row / 2 + 4 * i + 2 + c] += value;
      }
    }
  }

  __device__ __forceinline__ void add(int token, int output) {
#pragma unroll
    for (int box = 0; box < Tile::kRows / Tile::kBox; ++box) {
      store_columns(token, output + box * Tile::kBox, [&](int pair) {
        const float* sums = sums_ + Tile::kBox / 2 * box + 2 * pair;
        return pack<T>(sums[0], sums[1]);
      });
    }
  }

  template <Epilogue kActivation>
  __device__ __forceinline__ void store_activated(int token, int output) {
#pragma unroll
    for (int box = 0; box < Tile::kRows / Tile::kBox; ++box) {
      store_columns(token, output + box * Tile::kBox, [&](int pair) {
        const float* sums = sums_ + Tile::kBox / 2 * box + 2 * pair;
        float active[2] = {sums[0], sums[1]};
        const float up[2] = {1.f, 1.f};
        activate<kActivation>(active, up);
        return pack<T>(active[0], active[1]);
      });
    }
  }

  template <Epilogue kActivation>
  __device__ __forceinline__ void store_gated(int token, int output) {
#pragma unroll
    for (int box = 0; box < Tile::kHalf / Tile::kBox; ++box) {
      store_columns(token, output + box * Tile::kBox, [&](int pair) {
        const float* gates = sums_ + Tile::kBox / 2 * box + 2 * pair;
        const float* ups = gates + Tile::kHalf / 2;
        float gate[2] = {gates[0], gates[1]};
        const float up[2] = {ups[0], ups[1]};
        activate<kActivation>(gate, up);
        return pack<T>(gate[0], gate[1]);
      });
    }
  }

  // Stores or adds kBox outputs of 64 tokens. `word(2 j + h)` is for outputs 8 j + 2 (lane % 4) and
  // the next, placed as sums are. There is room for two boxes, so that one may still be on its way.
  template <typename Word>
  __device__ __forceinline__ void store_columns(int token, int output, Word word) {
    const uint32_t room = shared_address(shared_.out[warpgroup_][box_ % 2]);
    const uint32_t row = room + (thread_ / 32 * 16 + lane_ % 16) * 128;
    ++box_;
    if (thread_ == 0) wait_for_stores<1>();
    wait_for_threads(1 + warpgroup_, 128);
#pragma unroll
    for (int j = 0; j < Tile::kBox / 8; j += 2) {
      const uint32_t words[4] = {word(2 * j), word(2 * j + 1), word(2 * j + 2), word(2 * j + 3)};
      store_matrices(row + ((j + lane_ / 16) ^ lane_ % 8) * 16, words);
    }
    publish_shared_writes();
    wait_for_threads(1 + warpgroup_, 128);
    if (thread_ == 0) {
      if constexpr (Tile::kResult == Result::kAdded) {
        add_tile(out_map_, room, output, token);
      } else {
        store_tile(out_map_, room, output, token);
      }
      commit_stores();
    }
  }

  Shared<Tile>& shared_;
  const CUtensorMap& out_map_;
  const Params& p_;
  const int warpgroup_, thread_, lane_;
  Cursor<Tile::kStages> at_;
  int box_ = 0;  // of all that are stored
  float sums_[Tile::kRows / 2];
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(2)
    product_kernel(const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ CUtensorMap weight_map,
                   const __grid_constant__ CUtensorMap out_map, const __grid_constant__ Params p) {
  extern __shared__ uint8_t room[];
  uint8_t* aligned = room + (1024 - shared_address(room) % 1024) % 1024;
  Shared<Tile>& shared = *reinterpret_cast<Shared<Tile>*>(aligned);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(2 * 4 * kConsumers);  // the warps of both blocks
    }
    publish_barriers();
    prefetch(x_map);
    prefetch(weight_map);
    prefetch(out_map);
  }
  meet_cluster();
  let_next_start();
  if (threadIdx.x / 128 == kConsumers) {
    shrink_registers<40>();
    if (threadIdx.x % 128 == 0) produce(shared, x_map, weight_map, p);
  } else {
    grow_registers<232>();
    Consumer<T, Tile>(shared, out_map, p).run();
  }
  // The other block copies to this one's memory and arrives at its barriers.
  meet_cluster();
}

}  // namespace octavo::linear_tall
