// y = x W^T for some hundred tokens: both operands through shared memory into the tensor cores.
//
// The tensor cores' M axis is tokens, 64 to each of two warpgroups; their N axis is rows of the
// weight, as many (a multiple of 16) as make tiles for all multiprocessors. Where there are fewer
// tiles, the blocks of a cluster have a part of the inner axis each. At the end they send sums
// through distributed shared memory: each finishes a part of the tile, adding in blocks' order.
// So a result depends on shapes only, never on timing.
//
// One warp of a block starts copies, into a ring of stages. It starts on the weights before the
// previous kernel has ended, so that memory is busy while small kernels between two products run.
#pragma once

#include "ring.cuh"

namespace octavo::linear_mid {

template <int kCount> __device__ __forceinline__ void activate(float (&x)[kCount], int epilogue) {
  if (epilogue == kSilu) {
#pragma unroll
    for (float& value : x) value = __fdividef(value, 1.0f + __expf(-value));
  } else if (epilogue == kGelu) {
#pragma unroll
    for (float& value : x) value *= 0.5f + 0.5f * erff(value * 0.70710678f);
  } else {
#pragma unroll
    for (float& value : x) {
      value *= 0.5f + 0.5f * tanhf(0.79788456f * (value + 0.044715f * value * value * value));
    }
  }
}

// Multiplies, and finishes tiles. A warpgroup has 64 tokens, a warp 16 of them; a thread has, of
// each unit of 16 rows, the sums of tokens lane / 4 and 8 more, of rows 2 (lane % 4) and one more
// of both octets: entry 4 octet + 2 (token / 8) + row % 2.
template <typename T, typename Tile> class Consumer {
 public:
  __device__ Consumer(const Problem& problem, Shared& shared)
      : problem_(problem), shared_(shared), lane_(threadIdx.x % 32),
        gated_(is_gated(problem.epilogue)), at_{problem.stages} {}

  __device__ void run() {
    wait_for_previous();  // for what it adds to
    for (Work<Tile> work(problem_); work.more(); work.advance()) {
      multiply_chunks(work.chunks);
      row_ = gated_ ? work.first_row() / 2 : work.first_row();
      token_ = work.first_token() + threadIdx.x / 32 * 16 + lane_ / 4;
      if (problem_.splits == 1) {
        finish_own();
      } else {
        finish_split(work.split);
      }
    }
  }

 private:
  static constexpr int kUnits = Tile::kUnits, kBatch = 4;
  struct Before {
    uint2 words[kBatch][2];  // what was there before, by unit and token
  };

  __device__ void multiply_chunks(int count) {
    int before = -1;
#pragma unroll
    for (float& sum : sums_) sum = 0.f;
    for (int i = 0; i < count; ++i, at_.advance()) {
      const uint32_t weight = shared_address(shared_.room) + at_.stage * Tile::kStageBytes;
      const uint32_t x = weight + Tile::kWeightBytes + threadIdx.x / 128 * (64 * kChunk * 2);
      shared_.full[at_.stage].wait(at_.parity);
      pin(sums_);
      fence_products();
      const uint64_t a = describe(x), b = describe(weight);
#pragma unroll
      for (int step = 0; step < kChunk / 16; ++step) {
        multiply<T>(sums_, a + 2 * step, b + 2 * step, true);
      }
      commit_products();
      wait_products<1>();
      pin(sums_);
      release(before);
      before = at_.stage;
    }
    wait_products<0>();
    pin(sums_);
    release(before);
  }

  __device__ void release(int stage) {
    if (stage >= 0 && lane_ == 0) shared_.empty[stage].arrive();
  }

  // The sums move on past what is finished, which keeps this a loop: unrolled it is 100 KB of code.
  __device__ void finish_own() {
#pragma unroll 1
    for (int first = 0; first < kUnits; first += kBatch) {
      const int units = min(kBatch, kUnits - first);
      const Before before = load_before(first, units);
      finish(first, units, sums_, before);
#pragma unroll
      for (int i = 0; i < Tile::kSums - 8 * kBatch; ++i) sums_[i] = sums_[i + 8 * kBatch];
    }
  }

  // The first unit, of the tile's, that the block of that split finishes; and which a unit's is.
  __device__ int first_of(int split) const { return kUnits * split / problem_.splits; }
  __device__ int finisher_of(int unit) const {
    return ((unit + 1) * problem_.splits - 1) / kUnits;
  }

  // Where this thread's sums of a unit, the how many-th of its finisher, are in that block.
  __device__ uint32_t room_of(int split, int unit) const {
    const int most = (kUnits + problem_.splits - 1) / problem_.splits;
    return shared_address(shared_.room) + at_.stages * Tile::kStageBytes +
           (split * most + unit) * kUnitBytes + threadIdx.x * 16;
  }

  __device__ void finish_split(int own) {
    const int begin = first_of(own), end = first_of(own + 1);
    if (threadIdx.x == 0) {
      shared_.sums_there.arrive_and_expect((end - begin) * problem_.splits * kUnitBytes);
    }
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      const int split = finisher_of(unit);
      const uint32_t target = address_in(room_of(own, unit - first_of(split)), split);
      const uint32_t barrier = address_in(shared_address(&shared_.sums_there), split);
      store_in_cluster(target, barrier, sums_ + 8 * unit);
      store_in_cluster(target + kUnitBytes / 2, barrier, sums_ + 8 * unit + 4);
    }
    Before before = load_before(begin, end - begin);
    shared_.sums_there.wait(0);
#pragma unroll 1
    for (int first = begin; first < end; first += kBatch) {
      const int units = min(kBatch, end - first);
      if (first > begin) before = load_before(first, units);
      float batch[8 * kBatch] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (i < units) collect(first - begin + i, batch + 8 * i);
      }
      finish(first, units, batch, before);
    }
  }

  // Adds up a unit, the how many-th that this block finishes, in the order of splits.
  __device__ __forceinline__ void collect(int unit, float* sums) const {
#pragma unroll 2
    for (int split = 0; split < problem_.splits; ++split) {
      const uint32_t source = room_of(split, unit);
      const float4 low = load_shared(source);
      const float4 high = load_shared(source + kUnitBytes / 2);
      sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
      sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
    }
  }

  // Turns two words of a thread, one of each of two octets of rows, into two of one octet that
  // stand together, 8 bytes of the output; and back.
  __device__ void exchange(uint32_t& low, uint32_t& high) const {
    const bool odd = lane_ % 2;
    const uint32_t other = __shfl_xor_sync(~0u, odd ? low : high, 1);
    (odd ? low : high) = other;
  }

  // Where this thread's exchanged words of two octets, the first at `column`, go; null if nowhere.
  __device__ uint2* output(int column, int token_half) const {
    const int token = token_ + 8 * token_half;
    column += lane_ % 2 * 8 + lane_ / 2 % 2 * 4;
    if (token >= problem_.tokens || column >= problem_.out_features) return nullptr;
    return reinterpret_cast<uint2*>(static_cast<T*>(problem_.out) + token * problem_.out_stride +
                                    column);
  }

  __device__ Before load_before(int first, int units) const {
    Before before = {};
    if (problem_.epilogue != kAdd) return before;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2* source = output(row_ + (first + i) * 16, half);
        if (i < units && source != nullptr) before.words[i][half] = *source;
      }
    }
    return before;
  }

  // Finishes units from sums[0] on. All of a batch at once, for the latency of each step.
  template <int kSize>
  __device__ __forceinline__ void finish(int first, int units, float (&sums)[kSize],
                                         const Before& before) const {
    constexpr int kOctets = 2 * std::min(kBatch, kUnits);
    if (problem_.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < kOctets; ++i) {
        const float2 add = bias(first + i / 2, i % 2);
        sums[4 * i] += add.x, sums[4 * i + 1] += add.y;
        sums[4 * i + 2] += add.x, sums[4 * i + 3] += add.y;
      }
    }
    if (gated_) {
      float gates[(kOctets / 2 + 1) / 2 * 8] = {};  // octets are stored by twos
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i) gates[i] = sums[i / 4 * 8 + i % 4];
      activate(gates, problem_.epilogue);
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i) gates[i] *= sums[i / 4 * 8 + 4 + i % 4];
      const int valid = row_ + (first + units) * 8;
#pragma unroll
      for (int i = 0; i < kOctets / 2; i += 2) {
        store(row_ + (first + i) * 8, valid, gates + 4 * i, gates + 4 * i + 4);
      }
    } else {
      if (problem_.epilogue == kAdd) {
#pragma unroll
        for (int i = 0; i < kOctets; ++i) {
          uint2 words = before.words[i / 2][i % 2];
          exchange(words.x, words.y);
          const float2 low = unpack<T>(words.x), high = unpack<T>(words.y);
          float* target = sums + i / 2 * 8 + i % 2 * 2;
          target[0] += low.x, target[1] += low.y, target[4] += high.x, target[5] += high.y;
        }
      }
      const int valid = row_ + (first + units) * 16;
#pragma unroll
      for (int i = 0; i < kOctets; i += 2) {
        store(row_ + (first + i / 2) * 16, valid, sums + 4 * i, sums + 4 * i + 4);
      }
    }
  }

  // Stores two octets of columns, from `column` on, but none from `end` on.
  __device__ __forceinline__ void store(int column, int end, const float* first,
                                        const float* second) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t low = pack<T>(first[2 * half], first[2 * half + 1]);
      uint32_t high = pack<T>(second[2 * half], second[2 * half + 1]);
      exchange(low, high);
      uint2* target = output(column, half);
      if (target != nullptr && column + lane_ % 2 * 8 < end) *target = make_uint2(low, high);
    }
  }

  // Of this thread's two rows of a unit's octet.
  __device__ float2 bias(int unit, int octet) const {
    const int row = gated_ ? row_ + unit * 8 + octet * problem_.out_features
                           : row_ + unit * 16 + octet * 8;
    if (row >= (gated_ ? 1 + octet : 1) * problem_.out_features) return make_float2(0.f, 0.f);
    const T* pair = static_cast<const T*>(problem_.bias) + row + lane_ % 4 * 2;
    return make_float2(to_float(pair[0]), to_float(pair[1]));
  }

  const Problem& problem_;
  Shared& shared_;
  const int lane_;
  const bool gated_;
  Cursor at_;
  int row_, token_;  // of the output: the tile's first, and this thread's first
  float sums_[Tile::kSums];
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kBoundThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const bool produces = threadIdx.x == kConsumers;
  if (produces) {
    prefetch(weight);
    prefetch(x);
    for (int i = 0; i < problem.stages; ++i) {
      shared.full[i].init(1);
      shared.empty[i].init(kConsumers / 32);
    }
    shared.sums_there.init(1);
    publish_barriers();
  }
  if (problem.splits > 1) {
    meet_cluster_relaxed();  // others' sums may come as soon as theirs are done
  } else {
    __syncthreads();
  }
  if (threadIdx.x < kConsumers) {
    if constexpr (Tile::kGrows) grow_registers<Tile::kConsumerRegisters>();
    Consumer<T, Tile>(problem, shared).run();
  } else {
    if constexpr (Tile::kGrows) shrink_registers<Tile::kProducerRegisters>();
    if (produces) Producer<Tile>(weight, x, problem, shared).run();
  }
}

}  // namespace octavo::linear_mid
