// The kernel: products, and what is done with their sums.
#pragma once

#include "exchange.cuh"

namespace octavo::linear {

__device__ __forceinline__ float activate(float x, int epilogue) {
  if (epilogue == kSilu) return x / (1.0f + __expf(-x));
  if (epilogue == kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// Of a tile's chunks in a run, those before what adapters add to it.
template <typename Tile> __device__ __forceinline__ int chunks_before_adding(int chunks) {
  return max(1, chunks - Ring<Tile>::kStages);
}

// Multiplies the chunks of a run, and finishes the tiles that are the run's to finish. One
// warpgroup; of each 64 rows a warp has 16.
//
// `add(tile, sums, stage, parity)` adds to the sums of a tile that will be finished, and may take
// further stages of the ring for that; null: nothing. It comes so many chunks before the end that
// they are in the ring when it is done, and nobody waits for it.
template <typename T, typename Tile, typename Add> class Consumer {
 public:
  __device__ Consumer(const Problem& problem, Ring<Tile>& ring, Add add)
      : problem_(problem), ring_(ring), add_(add), lane_(threadIdx.x % 32) {}

  __device__ void run(int chunk, int end) {
    wait_for_previous();
    while (chunk < end) {
      const int tile = chunk / problem_.chunks, tile_end = (tile + 1) * problem_.chunks;
      const int stop = min(tile_end, end);
      const bool finishes = chunk == tile * problem_.chunks;
      if constexpr (kAdds) {
        const int before = finishes ? chunks_before_adding<Tile>(stop - chunk) : 0;
        if (finishes) {
          multiply_chunks(0, before);
          add_(tile, sums_, stage_, parity_);
        }
        multiply_chunks(before, stop - chunk);
      } else {
        multiply_chunks(0, stop - chunk);
      }
      if (finishes) {
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
  static constexpr bool kAdds = !std::is_null_pointer_v<Add>;
  // The products of one stage run while the next is waited for. With many sums, or more to add, the
  // compiler does not see that this is safe; the products take long enough, or weights do.
  static constexpr bool kOverlap = kParts * kSums < 32 && !kAdds;

  // With adapters the loop stays small: unrolled it was a tenth slower there. Without, it is the
  // small one that is slower, by 2 % of a small model's layer.
  __device__ void multiply_chunks(int begin, int end) {
    Barrier* before = nullptr;
    if constexpr (kAdds) {
#pragma unroll 1
      for (int i = begin; i < end; ++i) multiply_chunk(i, before);
    } else {
      for (int i = begin; i < end; ++i) multiply_chunk(i, before);
    }
    if constexpr (kOverlap) {
      finish_products();
      if (lane_ == 0) before->arrive();
    }
  }

  // The i-th of a tile; `before` is the stage of the one before, which is still multiplied.
  __device__ void multiply_chunk(int i, Barrier*& before) {
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
  Add add_;
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
    Consumer<T, Tile, std::nullptr_t>(problem, ring, nullptr).run(first, end);
  } else if (threadIdx.x == kConsumers) {
    producer.run();
  }
}

}  // namespace octavo::linear
