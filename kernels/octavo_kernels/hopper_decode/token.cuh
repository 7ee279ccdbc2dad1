// What the step adds to each row, done here so that no kernel has to run before: a norm of each
// head of queries and keys, their rotation, and the write of the new key and value to the cache.
// It computes as octavo_kernels.store_kv does, with the same roundings.
#pragma once

#include "fragments.cuh"

namespace octavo::decode {

template <typename T> __device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

template <typename T>
__device__ __forceinline__ float normalised(float x, float inverse, float weight) {
  return rounded<T>(rounded<T>(x * inverse) * weight);
}

// Brings the weights of a norm into the L2. Called by a warp.
template <typename S> __device__ __forceinline__ void touch_norm(const void* weights) {
  constexpr int kBytes = S::kDim * sizeof(typename S::T);
  asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const uint8_t*>(weights) +
                                                 threadIdx.x % 32 * (kBytes / 32)));
}

// The queries of a key/value head as the right side of products; columns past the group's repeat
// its last head, and nobody reads what becomes of them.
template <typename S> class Queries {
 public:
  uint32_t of[S::kSteps][S::kHeadTiles][2];

  // Asks for them and for their angles.
  __device__ __forceinline__ void fetch(const Arguments& arguments, int row, int head) {
    const int group = arguments.at.group;
#pragma unroll
    for (int n = 0; n < S::kHeadTiles; ++n) {
      const int member = min(n * 8 + static_cast<int>(threadIdx.x) % 32 / 4, group - 1);
      const long long first = row * arguments.at.q_stride + (head * group + member) * S::kDim;
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          of[step][n][half] = pair_at(arguments.q, first + entry_of(step, half));
        }
      }
    }
    if (arguments.cos == nullptr) return;
#pragma unroll
    for (int step = 0; step < S::kSteps / 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = entry_of(step, half);
        cosines_[step][half] = pair_at(arguments.cos, row * arguments.at.cos_stride + i);
        sines_[step][half] = pair_at(arguments.sin, row * arguments.at.sin_stride + i);
      }
    }
  }

  // Norms and turns them.
  __device__ __forceinline__ void transform(const Arguments& arguments) {
    if (arguments.q_norm != nullptr) {
      uint32_t weights[S::kSteps][2];
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          weights[step][half] = pair_at(arguments.q_norm, entry_of(step, half));
        }
      }
#pragma unroll
      for (int n = 0; n < S::kHeadTiles; ++n) {
        float sum = 0.0f;
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 x = unpack<T>(of[step][n][half]);
            sum += x.x * x.x + x.y * x.y;
          }
        }
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        const float inverse = rsqrtf(sum / S::kDim + arguments.eps);
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 x = unpack<T>(of[step][n][half]);
            const float2 weight = unpack<T>(weights[step][half]);
            of[step][n][half] = pack<T>(normalised<T>(x.x, inverse, weight.x),
                                             normalised<T>(x.y, inverse, weight.y));
          }
        }
      }
    }
    if (arguments.cos != nullptr) {
#pragma unroll
      for (int step = 0; step < S::kSteps / 2; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 cos = unpack<T>(cosines_[step][half]), sin = unpack<T>(sines_[step][half]);
#pragma unroll
          for (int n = 0; n < S::kHeadTiles; ++n) {
            auto& first = of[step][n][half];
            auto& second = of[step + S::kSteps / 2][n][half];
            const float2 x = unpack<T>(first), y = unpack<T>(second);
            first = pack<T>(x.x * cos.x - y.x * sin.x, x.y * cos.y - y.y * sin.y);
            second = pack<T>(y.x * cos.x + x.x * sin.x, y.y * cos.y + x.y * sin.y);
          }
        }
      }
    }
    if constexpr (!std::is_same_v<T, typename S::Product>) {
#pragma unroll
      for (int n = 0; n < S::kHeadTiles; ++n) {
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 x = unpack<T>(of[step][n][half]);
            of[step][n][half] = pack<typename S::Product>(x.x, x.y);
          }
        }
      }
    }
  }

 private:
  using T = typename S::T;

  // Products are over entries in any order; keys of one byte come in fours.
  __device__ __forceinline__ static int entry_of(int step, int half) {
    const int lane = threadIdx.x % 32;
    return step * 16 + (S::kFloat8 ? lane % 4 * 4 + half * 2 : lane % 4 * 2 + half * 8);
  }
  __device__ __forceinline__ static uint32_t pair_at(const void* entries, long long i) {
    return *reinterpret_cast<const uint32_t*>(static_cast<const T*>(entries) + i);
  }

  uint32_t cosines_[S::kSteps / 2][2], sines_[S::kSteps / 2][2];
};

// A row's new key and value of one head, held by a warp until the tile they belong to has arrived:
// lane i has entries i, i + 32, ...
template <typename S> class NewToken {
 public:
  // Asks for them and what they are transformed with.
  __device__ __forceinline__ void fetch(const Arguments& arguments, int row, int head) {
    const int lane = threadIdx.x % 32;
    const auto entry = [lane](const void* entries, long long first, int j) {
      return static_cast<const T*>(entries)[first + lane + 32 * j];
    };
    slot_ = arguments.slots[row];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      k_[j] = entry(arguments.k, row * arguments.at.k_stride + head * S::kDim, j);
      v_[j] = entry(arguments.v, row * arguments.at.v_stride + head * S::kDim, j);
    }
    if (arguments.cos == nullptr) return;
#pragma unroll
    for (int j = 0; j < kEach / 2; ++j) {
      cos_[j] = entry(arguments.cos, row * arguments.at.cos_stride, j);
      sin_[j] = entry(arguments.sin, row * arguments.at.sin_stride, j);
    }
  }

  // Transforms them and writes them to the cache.
  __device__ __forceinline__ void store(const Arguments& arguments, int head) {
    const int lane = threadIdx.x % 32;
    float k[kEach], v[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      k[j] = to_float(k_[j]);
      v[j] = to_float(v_[j]);
    }
    if (arguments.k_norm != nullptr) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum += k[j] * k[j];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      const float inverse = rsqrtf(sum / S::kDim + arguments.eps);
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const T weight = static_cast<const T*>(arguments.k_norm)[lane + 32 * j];
        k[j] = normalised<T>(k[j], inverse, to_float(weight));
      }
    }
    if (arguments.cos != nullptr) {
#pragma unroll
      for (int j = 0; j < kEach / 2; ++j) {
        const float cos = to_float(cos_[j]), sin = to_float(sin_[j]);
        const float x = k[j], y = k[j + kEach / 2];
        k[j] = rounded<T>(x * cos - y * sin);
        k[j + kEach / 2] = rounded<T>(y * cos + x * sin);
      }
    }
    const int shift = arguments.at.block_shift, in_block = slot_ & ((1 << shift) - 1);
    const int values_from = arguments.at.kv_heads << shift;
    auto* const target = reinterpret_cast<Entry*>(
        const_cast<uint8_t*>(arguments.pages) + (slot_ >> shift) * arguments.at.block_stride +
        ((head << shift) + in_block) * S::kTokenBytes);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      key_[j] = stored(k[j], arguments.k_scale);
      value_[j] = stored(v[j], arguments.v_scale);
      target[lane + 32 * j] = key_[j];
      target[values_from * S::kDim + lane + 32 * j] = value_[j];
    }
  }

  // Writes them where they belong in a tile.
  __device__ __forceinline__ void put_key(uint8_t* tile, int token) const {
    put(tile, token, key_);
  }
  __device__ __forceinline__ void put_value(uint8_t* tile, int token) const {
    put(tile, token, value_);
  }

 private:
  using T = typename S::T;
  using Entry = std::conditional_t<S::kFloat8, __nv_fp8_storage_t, T>;
  static constexpr int kEach = S::kDim / 32;

  __device__ __forceinline__ static Entry stored(float x, float scale) {
    if constexpr (S::kFloat8) return __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3);
    else return from_float<T>(x);
  }

  __device__ __forceinline__ static void put(uint8_t* tile, int token,
                                             const Entry (&entries)[kEach]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int byte = token * S::kTokenBytes + (lane + 32 * j) * static_cast<int>(sizeof(Entry));
      *reinterpret_cast<Entry*>(tile + swizzle<S::kTokenBytes>(byte)) = entries[j];
    }
  }

  long long slot_;
  T k_[kEach], v_[kEach], cos_[kEach / 2], sin_[kEach / 2];
  Entry key_[kEach], value_[kEach];
};

}  // namespace octavo::decode
