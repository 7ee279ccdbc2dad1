// What the step adds to each row, done here so that no kernel has to run before: a norm of each
// head of queries and keys, their rotation, and the write of the new key and value to the cache.
// It computes as octavo_kernels.store_kv does, with the same roundings.
#pragma once

#include "fragments.cuh"

namespace octavo::decode {

template <typename T> __device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

template <typename T> __device__ __forceinline__ float2 unpack(uint32_t pair) {
  const T* const entries = reinterpret_cast<const T*>(&pair);
  return {to_float(entries[0]), to_float(entries[1])};
}

template <typename T>
__device__ __forceinline__ float normalised(float x, float inverse, const void* weights, int i) {
  return rounded<T>(rounded<T>(x * inverse) * to_float(static_cast<const T*>(weights)[i]));
}

// The queries of a key/value head as the right side of products; heads past the group's are zero.
template <typename S>
__device__ __forceinline__ void load_queries(const Arguments& arguments, int row, int head,
                                             uint32_t (&queries)[S::kSteps][S::kHeadTiles][2]) {
  using T = typename S::T;
  const int lane = threadIdx.x % 32;
  // Products are over entries in any order; keys of one byte come in fours.
  const auto entry_of = [&](int step, int half) {
    return step * 16 + (S::kFloat8 ? lane % 4 * 4 + half * 2 : lane % 4 * 2 + half * 8);
  };
#pragma unroll
  for (int n = 0; n < S::kHeadTiles; ++n) {
    const int member = n * 8 + lane / 4;
    const auto* const q = static_cast<const T*>(arguments.q) + row * arguments.at.q_stride +
                          (head * arguments.at.group + member) * S::kDim;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        queries[step][n][half] = 0;
        if (member < arguments.at.group) {
          queries[step][n][half] = *reinterpret_cast<const uint32_t*>(q + entry_of(step, half));
        }
      }
    }
    if (arguments.q_norm != nullptr) {
      float sum = 0.0f;
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 x = unpack<T>(queries[step][n][half]);
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
          const float2 x = unpack<T>(queries[step][n][half]);
          const int i = entry_of(step, half);
          queries[step][n][half] =
              pack<T>(normalised<T>(x.x, inverse, arguments.q_norm, i),
                      normalised<T>(x.y, inverse, arguments.q_norm, i + 1));
        }
      }
    }
  }
  if (arguments.cos != nullptr) {
    const T* const cosines = static_cast<const T*>(arguments.cos) + row * arguments.at.cos_stride;
    const T* const sines = static_cast<const T*>(arguments.sin) + row * arguments.at.sin_stride;
#pragma unroll
    for (int step = 0; step < S::kSteps / 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = entry_of(step, half);
        const float2 cos = unpack<T>(*reinterpret_cast<const uint32_t*>(cosines + i));
        const float2 sin = unpack<T>(*reinterpret_cast<const uint32_t*>(sines + i));
#pragma unroll
        for (int n = 0; n < S::kHeadTiles; ++n) {
          auto& first = queries[step][n][half];
          auto& second = queries[step + S::kSteps / 2][n][half];
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
          const float2 x = unpack<T>(queries[step][n][half]);
          queries[step][n][half] = pack<typename S::Product>(x.x, x.y);
        }
      }
    }
  }
}

// A row's new key and value of one head, held by a warp until the tile they belong to has arrived:
// lane i has entries i, i + 32, ...
template <typename S> class NewToken {
 public:
  // Reads and transforms them, and writes them to the cache.
  __device__ __forceinline__ void take(const Arguments& arguments, int row, int head) {
    const int lane = threadIdx.x % 32;
    float k[kEach], v[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = head * S::kDim + lane + 32 * j;
      k[j] = to_float(static_cast<const T*>(arguments.k)[row * arguments.at.k_stride + i]);
      v[j] = to_float(static_cast<const T*>(arguments.v)[row * arguments.at.v_stride + i]);
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
        k[j] = normalised<T>(k[j], inverse, arguments.k_norm, lane + 32 * j);
      }
    }
    if (arguments.cos != nullptr) {
#pragma unroll
      for (int j = 0; j < kEach / 2; ++j) {
        const int i = lane + 32 * j;
        const float cos = to_float(
            static_cast<const T*>(arguments.cos)[row * arguments.at.cos_stride + i]);
        const float sin = to_float(
            static_cast<const T*>(arguments.sin)[row * arguments.at.sin_stride + i]);
        const float x = k[j], y = k[j + kEach / 2];
        k[j] = rounded<T>(x * cos - y * sin);
        k[j + kEach / 2] = rounded<T>(y * cos + x * sin);
      }
    }
    const long long slot = arguments.slots[row];
    const int shift = arguments.at.block_shift, in_block = slot & ((1 << shift) - 1);
    const int values_from = arguments.at.kv_heads << shift;
    auto* const target = reinterpret_cast<Entry*>(
        const_cast<uint8_t*>(arguments.pages) + (slot >> shift) * arguments.at.block_stride +
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

  Entry key_[kEach], value_[kEach];
};

}  // namespace octavo::decode
