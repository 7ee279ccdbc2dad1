// The kernel: products, and what is done with their sums.
#pragma once

#include "exchange.cuh"

namespace octavo::linear {

__device__ __forceinline__ float activate(float x, int epilogue) {
  if (epilogue == kSilu) return __fdividef(x, 1.0f + __expf(-x));
  if (epilogue == kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

// Multiplies the chunks of a run, and finishes the tiles that are the run's to finish. One
// warpgroup; of each 64 rows a warp has 16.
//
// `add(sums)` adds to those of a tile that is finished, as late as can be; null: nothing.
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
      multiply_chunks(stop - chunk);
      if (finishes) {
        finish(tile, block_of(problem_, tile_end - 1));
      } else {
        leave(fours());
      }
      chunk = stop;
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kParts = Tile::kRows / 64;
  static constexpr int kSums = kTokens / 2;  // of a part, a thread's
  static constexpr int kEights = kTokens / 8, kFours = kParts * kEights;
  static constexpr bool kAdds = !std::is_null_pointer_v<Add>;
  // The products of one stage run while the next is waited for. With many sums the compiler does not
  // see that this is safe; the products take long enough, or weights do.
  static constexpr bool kOverlap = kParts * kSums < 32;

  // With adapters the loop stays small: unrolled it was a tenth slower there. Without, it is the
  // small one that is slower, by 2 % of a small model's layer.
  __device__ void multiply_chunks(int count) {
    Barrier* before = nullptr;
    if constexpr (kAdds) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) multiply_chunk(i, before);
    } else {
      for (int i = 0; i < count; ++i) multiply_chunk(i, before);
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

  // What is loaded is under way while sums are collected. The stores are a loop, for which sums
  // move up: a layer's kernels have more code than caches of instructions hold, so that what runs
  // once is fetched from afar, and unrolled it was.
  __device__ void finish(int tile, int last) {
    const bool gated = is_gated(problem_.epilogue), adds = problem_.epilogue == kAdd;
    const int first_row = tile * Tile::kRows + threadIdx.x / 32 * 16;
    const auto row_of = [&](int four) { return first_row + four / kEights * 64; };
    float biases[kParts][2];
    if (problem_.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 2 * kParts; ++i) {
        const int row = row_of(i / 2 * kEights), h = i % 2;
        biases[i / 2][h] = gated ? bias(row / 2, h * problem_.out_features) : bias(row + 8 * h, 0);
      }
    }
    uint32_t before[kFours][2];
    if (adds) {
#pragma unroll
      for (int i = 0; i < 2 * kFours; ++i) {
        const uint32_t* source = output(i / 2 % kEights * 8, row_of(i / 2) + i % 2 * 8);
        before[i / 2][i % 2] = source != nullptr ? *source : 0;
      }
    }
    collect(last, fours());
    if constexpr (kAdds) add_(fours());
    if (problem_.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 4 * kFours; ++i) {
        fours()[i / 4][i % 4] += biases[i / 4 / kEights][i / 2 % 2];
      }
    }
    if (adds) {
#pragma unroll
      for (int i = 0; i < 2 * kFours; ++i) {
        const float2 pair = unpack<T>(transpose(before[i / 2][i % 2]));
        float* sums = fours()[i / 2] + i % 2 * 2;
        sums[0] += pair.x, sums[1] += pair.y;
      }
    }
#pragma unroll 1
    for (int i = 0; i < kFours; ++i) {
      const float(&four)[4] = fours()[0];
      const int token = i % kEights * 8, row = row_of(i);
      if (gated) {  // the warp has the rows of 8 gates, then the 8 rows that they gate
        store(token, row / 2, activate(four[0], problem_.epilogue) * four[2],
              activate(four[1], problem_.epilogue) * four[3]);
      } else {
        store(token, row, four[0], four[1]);
        store(token, row + 8, four[2], four[3]);
      }
#pragma unroll
      for (int k = 0; k < 4 * kFours - 4; ++k) fours()[k / 4][k % 4] = fours()[k / 4 + 1][k % 4];
    }
  }

  __device__ void store(int token, int column, float low, float high) const {
    const uint32_t pair = transpose(pack<T>(low, high));
    if (uint32_t* target = output(token, column)) *target = pair;
  }

  // This thread's of the 8 from `column` on; those of ups lie so much further.
  __device__ float bias(int column, int further) const {
    if (column >= problem_.out_features) return 0.0f;
    return to_float(static_cast<const T*>(problem_.bias)[further + column + lane_ / 4]);
  }

  // Where this thread's pair of a transposed 8 x 8 block goes, or null outside of the output.
  __device__ uint32_t* output(int token, int column) const {
    token += lane_ / 4;
    if (token >= problem_.tokens || column >= problem_.out_features) return nullptr;
    T* out = static_cast<T*>(problem_.out) + token * problem_.out_stride + column;
    return reinterpret_cast<uint32_t*>(out + lane_ % 4 * 2);
  }

  // The sums by fours: of 8 tokens, two of rows g and then two of rows g + 8.
  __device__ auto fours() -> float (&)[kFours][4] {
    return reinterpret_cast<float(&)[kFours][4]>(sums_);
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
