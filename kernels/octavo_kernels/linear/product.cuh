// The kernel: products, and what is done with their sums.
#pragma once

#include "exchange.cuh"

namespace octavo::linear {

__device__ __forceinline__ float activate(float x, int epilogue) {
  if (epilogue == kSilu) return x / (1.0f + __expf(-x));
  if (epilogue == kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// Multiplies the chunks of a run, and finishes the tiles that are the run's to finish. One
// warpgroup; of each 64 rows a warp has 16.
template <typename T, typename Tile> class Consumer {
 public:
  __device__ Consumer(const Problem& problem, Ring<Tile>& ring)
      : problem_(problem), ring_(ring), lane_(threadIdx.x % 32) {}

  // `add(tile, sums, stage, parity)` adds to the sums of a tile before it is finished, and may take
  // further stages of the ring for that; null: nothing.
  template <typename Add> __device__ void run(int chunk, int end, Add add) {
    constexpr bool kAdds = !std::is_null_pointer_v<Add>;
    wait_for_previous();
    while (chunk < end) {
      const int tile = chunk / problem_.chunks, tile_end = (tile + 1) * problem_.chunks;
      const int stop = min(tile_end, end);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if constexpr (kAdds) pin(sums_[part]);  // or products would be taken one by one
      }
      multiply_chunks(stop - chunk);
      if (chunk == tile * problem_.chunks) {
        if constexpr (kAdds) add(tile, sums_, stage_, parity_);
        finish(tile, block_of(problem_, tile_end - 1));
      } else {
        leave(sums_);
      }
      chunk = stop;
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kParts = Tile::kRows / 64;
  static constexpr int kSums = kTokens / 2;  // of a part, a thread's
  // The products of one stage run while the next is waited for. With many sums the compiler does
  // not see that this is safe, and the products take long enough.
  static constexpr bool kOverlap = kParts * kSums < 32;

  __device__ void multiply_chunks(int count) {
    Barrier* before = nullptr;
    for (int i = 0; i < count; ++i) {
      const char* weight = ring_.stages[stage_];
      const char* x = weight + Ring<Tile>::kWeightBytes;
      ring_.full[stage_].wait_unseen(parity_);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if constexpr (!kOverlap) pin(sums_[part]);
      }
      fence_products();
#pragma unroll
      for (int k = 0; k < Tile::kChunk; k += kSlice) {
        const uint64_t b = describe(shared_address(x + k * kTokens * 2));
#pragma unroll
        for (int step = 0; step < 4; ++step) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            const char* rows = weight + k * Tile::kRows * 2 + part * 64 * 128;
            const uint64_t a = describe(shared_address(rows));
            multiply<T>(sums_[part], a + 2 * step, b + 2 * step, i + k + step != 0);
          }
        }
      }
      commit_products();
      if constexpr (kOverlap) {
        wait_products<1>();
        if (before != nullptr && lane_ == 0) before->arrive();
        before = &ring_.empty[stage_];
      } else {
        finish_products();
        if (lane_ == 0) ring_.empty[stage_].arrive();
      }
      if (++stage_ == kStages) stage_ = 0, parity_ ^= 1;
    }
    if constexpr (kOverlap) {
      finish_products();
      if (lane_ == 0) before->arrive();
    }
  }

  __device__ void finish_products() {
    wait_products<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) pin(sums_[part]);
  }

  __device__ void finish(int tile, int last) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = tile * Tile::kRows + part * 64 + threadIdx.x / 32 * 16;
      uint32_t before[kSums / 2];
      if (problem_.epilogue == kAdd) {
#pragma unroll
        for (int i = 0; i < kSums / 2; ++i) {
          const uint32_t* source = output(i / 2 * 8, row + i % 2 * 8);
          before[i] = source != nullptr ? *source : 0;
        }
      }
      collect<kParts>(last, part, sums_[part]);
      if (is_gated(problem_.epilogue)) {
        store_gated(row / 2, sums_[part]);
      } else {
        store_plain(row, sums_[part], before);
      }
    }
  }

  // The warp has the rows of 8 gates, then the 8 rows that they gate.
  __device__ void store_gated(int column, const float (&sums)[kSums]) const {
    if (column >= problem_.out_features) return;
    const float gate_bias = bias(column), up_bias = bias(column + problem_.out_features);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      float value[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        value[c] = activate(sums[4 * j + c] + gate_bias, problem_.epilogue) *
                   (sums[4 * j + 2 + c] + up_bias);
      }
      const uint32_t pair = transpose(pack<T>(value[0], value[1]));
      if (uint32_t* target = output(8 * j, column)) *target = pair;
    }
  }

  __device__ void store_plain(int row, const float (&sums)[kSums],
                              const uint32_t (&before)[kSums / 2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= problem_.out_features) return;
      const float row_bias = bias(row + 8 * h);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        float low = sums[4 * j + 2 * h] + row_bias, high = sums[4 * j + 2 * h + 1] + row_bias;
        if (problem_.epilogue == kAdd) {
          const float2 pair = unpack<T>(transpose(before[2 * j + h]));
          low += pair.x, high += pair.y;
        }
        const uint32_t pair = transpose(pack<T>(low, high));
        if (uint32_t* target = output(8 * j, row + 8 * h)) *target = pair;
      }
    }
  }

  // The bias of this thread's row of the 8 from `row` on.
  __device__ float bias(int row) const {
    if (problem_.bias == nullptr) return 0.0f;
    return to_float(static_cast<const T*>(problem_.bias)[row + lane_ / 4]);
  }

  // Where this thread's pair of a transposed 8 x 8 block goes, or null outside of the output.
  __device__ uint32_t* output(int token, int column) const {
    token += lane_ / 4;
    if (token >= problem_.tokens || column >= problem_.out_features) return nullptr;
    T* out = static_cast<T*>(problem_.out) + token * problem_.out_stride + column;
    return reinterpret_cast<uint32_t*>(out + lane_ % 4 * 2);
  }

  const Problem& problem_;
  Ring<Tile>& ring_;
  const int lane_;
  int stage_ = 0, parity_ = 0;
  float sums_[kParts][kSums];
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(kThreads, 1)
    linear_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) char shared[];
  Ring<Tile>& ring = *reinterpret_cast<Ring<Tile>*>(shared);
  const int first = start_of(problem, blockIdx.x), end = start_of(problem, blockIdx.x + 1);
  Producer<Tile> producer(weight, x, problem, ring, first, end);
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < Ring<Tile>::kStages; ++i) {
      ring.full[i].init(1);
      ring.empty[i].init(kConsumers / 32);
    }
    publish_barriers();
    producer.start();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    Consumer<T, Tile>(problem, ring).run(first, end, nullptr);
  } else if (threadIdx.x == kConsumers) {
    producer.run();
  }
}

}  // namespace octavo::linear
