// Norm and rotation of queries and keys, and the write of keys and values to the cache.
#include <type_traits>

#include "octavo.cuh"

namespace {

using namespace octavo;

// As _geometry in __init__.py makes it: sizes, then strides in elements.
struct Geometry {
  int dtype, cache_dtype;
  int num_tokens, q_heads, kv_heads, key_dim, value_dim, num_pairs, block_tokens;
  int q_token, q_head, k_token, k_head, v_token, v_head;
  int cos_token, sin_token;
  // Where a key lies in pieces, those are 1 << log2_piece entries long.
  int key_block, key_head, key_token, key_piece, log2_piece;
  int value_block, value_head, value_token, value_entry;
};

struct Arguments {
  Geometry at;
  void *q;
  const void *k, *v;
  void *key_cache, *value_cache;
  const long long *slots;
  const void *cos, *sin, *q_norm, *k_norm;  // null: left out
  float eps, k_scale, v_scale;
};

enum HeadKind { kQuery, kKey, kValue };

// Two entries side by side: half as many conversions as one by one.
template <typename T> struct PairOf;
template <> struct PairOf<float> { using Type = float2; };
template <> struct PairOf<__half> { using Type = __half2; };
template <> struct PairOf<__nv_bfloat16> { using Type = __nv_bfloat162; };
template <> struct PairOf<__nv_fp8_e4m3> { using Type = __nv_fp8x2_storage_t; };
template <typename T> using Pair = typename PairOf<T>::Type;

__device__ __forceinline__ float2 floats(float2 x) { return x; }
__device__ __forceinline__ float2 floats(__half2 x) { return __half22float2(x); }
__device__ __forceinline__ float2 floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }

template <typename T> __device__ __forceinline__ Pair<T> rounded(float2 x);
template <> __device__ __forceinline__ float2 rounded<float>(float2 x) { return x; }
template <> __device__ __forceinline__ __half2 rounded<__half>(float2 x) {
  return __float22half2_rn(x);
}
template <> __device__ __forceinline__ __nv_bfloat162 rounded<__nv_bfloat16>(float2 x) {
  return __float22bfloat162_rn(x);
}
template <> __device__ __forceinline__ __nv_fp8x2_storage_t rounded<__nv_fp8_e4m3>(float2 x) {
  return __nv_cvt_float2_to_fp8x2(x, __NV_SATFINITE, __NV_E4M3);
}

// The product of two entries of 16 bits is exact in float32: it is rounded once either way.
__device__ __forceinline__ float2 product(float2 x, float2 y) {
  return make_float2(x.x * y.x, x.y * y.y);
}
__device__ __forceinline__ __half2 product(__half2 x, __half2 y) { return __hmul2(x, y); }
__device__ __forceinline__ __nv_bfloat162 product(__nv_bfloat162 x, __nv_bfloat162 y) {
  return __hmul2(x, y);
}

constexpr int kThreads = 128;
constexpr int kSize = 8;  // entries of a piece; a lane holds two pieces of a head

template <typename T> struct alignas(sizeof(T) == 1 ? 8 : 16) Piece {
  Pair<T> pairs[kSize / 2];
};

// Pairs of 16 bits have copy constructors that keep the compiler from moving 16 bytes at once.
template <typename T>
using Access = typename std::conditional<sizeof(Piece<T>) == 8, uint2, uint4>::type;

template <typename T> __device__ __forceinline__ void move(Piece<T> *to, const Piece<T> *from) {
#pragma unroll
  for (int i = 0; i < sizeof(Piece<T>) / sizeof(Access<T>); ++i)
    reinterpret_cast<Access<T> *>(to)[i] = reinterpret_cast<const Access<T> *>(from)[i];
}

// Eight entries; zeros where there are none.
template <typename T> __device__ __forceinline__ Piece<T> read(const T *source, bool there) {
  Piece<T> piece = {};
  if (there) move(&piece, reinterpret_cast<const Piece<T> *>(source));
  return piece;
}

template <typename T> __device__ __forceinline__ void write(T *target, const Piece<T> &piece) {
  move(reinterpret_cast<Piece<T> *>(target), &piece);
}

// What a cache of C holds for entries of T.
template <typename C, typename T>
__device__ __forceinline__ Piece<C> to_cache(const Piece<T> &piece, float scale) {
  if constexpr (sizeof(C) == sizeof(T)) {
    return piece;
  } else {
    Piece<C> result;
#pragma unroll
    for (int j = 0; j < kSize / 2; ++j) {
      const float2 x = floats(piece.pairs[j]);
      result.pairs[j] = rounded<C>(make_float2(x.x / scale, x.y / scale));
    }
    return result;
  }
}

// Where entry i lies in a token's key or value.
__device__ __forceinline__ int key_offset(const Geometry &at, int i) {
  return (i >> at.log2_piece) * at.key_piece + (i & ((1 << at.log2_piece) - 1));
}

template <typename C>
__device__ __forceinline__ void write_key(const Geometry &at, C *key, int entry,
                                          const Piece<C> &piece) {
  if (at.log2_piece >= 3) {
    write(key + key_offset(at, entry), piece);
  } else {  // float32 in pieces of 4
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      key[key_offset(at, entry + j)] = reinterpret_cast<const C *>(&piece)[j];
  }
}

template <typename C>
__device__ __forceinline__ void write_value(const Geometry &at, C *value, int entry,
                                            const Piece<C> &piece) {
  if (at.value_entry == 1) {
    write(value + entry, piece);
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      value[(entry + j) * at.value_entry] = reinterpret_cast<const C *>(&piece)[j];
  }
}

// A group of 2^log2_lanes lanes does one head, block (token, part of its heads). A lane holds two
// pieces: of queries and keys two that turn against each other, or two of the rest. One head a
// group leaves registers for enough groups to keep the memory busy.
template <typename T, typename C>
__global__ void __launch_bounds__(kThreads)
    store_pieces(const __grid_constant__ Arguments a, int log2_lanes) {
  const Geometry &at = a.at;
  let_next_start();
  const int lane = threadIdx.x & ((1 << log2_lanes) - 1);
  const int index = (blockIdx.y * kThreads + threadIdx.x) >> log2_lanes;
  const int k_index = index - at.q_heads, v_index = k_index - at.kv_heads;
  const HeadKind kind = k_index < 0 ? kQuery : v_index < 0 ? kKey : kValue;
  const int dim = v_index >= at.kv_heads ? 0 : kind == kValue ? at.value_dim : at.key_dim;
  const long long token = blockIdx.x;

  const int turning = kind == kValue ? 0 : at.num_pairs / kSize;
  const int rest = (dim / kSize - 2 * turning + 1) / 2;
  const bool turns = lane < turning, has_first = lane < turning + rest;
  const int first = (turns ? lane : lane + turning) * kSize;
  const int second = first + (turns ? turning : rest) * kSize;
  const bool has_second = has_first && second < dim;

  T *q = static_cast<T *>(a.q) + token * at.q_token + index * at.q_head;
  const T *k = static_cast<const T *>(a.k) + token * at.k_token + k_index * at.k_head;
  const T *v = static_cast<const T *>(a.v) + token * at.v_token + v_index * at.v_head;
  const T *source = kind == kQuery ? q : kind == kKey ? k : v;
  const T *norm = static_cast<const T *>(kind == kQuery ? a.q_norm : a.k_norm);
  const bool has_norm = kind != kValue && norm;
  const Piece<T> weights[2] = {read(norm + first, has_norm && has_first),
                               read(norm + second, has_norm && has_second)};
  wait_for_previous();

  Piece<T> x[2] = {read(source + first, has_first), read(source + second, has_second)};
  const T *cosines = static_cast<const T *>(a.cos) + token * at.cos_token;
  const T *sines = static_cast<const T *>(a.sin) + token * at.sin_token;
  const Piece<T> cos = read(cosines + first, turns), sin = read(sines + first, turns);
  const unsigned slot = static_cast<unsigned>(a.slots[token]);  // a cache has fewer than 2^32
  if (a.q_norm || a.k_norm) {  // the same for all lanes, which the shuffle needs
    float sum = 0.f;
#pragma unroll
    for (int j = 0; j < kSize / 2; ++j) {
      const float2 y = floats(x[0].pairs[j]), z = floats(x[1].pairs[j]);
      sum += y.x * y.x + y.y * y.y + z.x * z.x + z.y * z.y;
    }
    for (int distance = 1 << log2_lanes >> 1; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    if (has_norm) {  // rounded to T before and after the weight, as rms_norm does
      const float inverse = rsqrtf(sum / dim + a.eps);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < kSize / 2; ++j) {
          const float2 y = floats(x[i].pairs[j]);
          x[i].pairs[j] = product(rounded<T>(make_float2(y.x * inverse, y.y * inverse)),
                                  weights[i].pairs[j]);
        }
      }
    }
  }
  if (turns) {
#pragma unroll
    for (int j = 0; j < kSize / 2; ++j) {
      const float2 y = floats(x[0].pairs[j]), z = floats(x[1].pairs[j]);
      const float2 c = floats(cos.pairs[j]), s = floats(sin.pairs[j]);
      x[0].pairs[j] = rounded<T>(make_float2(y.x * c.x - z.x * s.x, y.y * c.y - z.y * s.y));
      x[1].pairs[j] = rounded<T>(make_float2(z.x * c.x + y.x * s.x, z.y * c.y + y.y * s.y));
    }
  }
  if (!has_first) return;
  if (kind == kQuery) {
    write(q + first, x[0]);
    if (has_second) write(q + second, x[1]);
    return;
  }
  const long long block = slot / static_cast<unsigned>(at.block_tokens);
  const int offset = slot % static_cast<unsigned>(at.block_tokens);
  if (kind == kKey) {
    C *key = static_cast<C *>(a.key_cache) + block * at.key_block + k_index * at.key_head +
             offset * at.key_token;
    write_key(at, key, first, to_cache<C>(x[0], a.k_scale));
    if (has_second) write_key(at, key, second, to_cache<C>(x[1], a.k_scale));
  } else {
    C *value = static_cast<C *>(a.value_cache) + block * at.value_block +
               v_index * at.value_head + offset * at.value_token;
    write_value(at, value, first, to_cache<C>(x[0], a.v_scale));
    if (has_second) write_value(at, value, second, to_cache<C>(x[1], a.v_scale));
  }
}

template <typename C> __device__ __forceinline__ C cache_entry(float x, float scale) {
  return from_float<C>(sizeof(C) == 1 ? x / scale : x);  // to float8 it saturates
}

// Heads of any size and alignment: a warp a head, its entries in shared memory as floats.
template <typename T, typename C>
__global__ void store_entries(const __grid_constant__ Arguments a) {
  extern __shared__ float head[];
  const Geometry &at = a.at;
  const int lane = threadIdx.x, kv_index = static_cast<int>(blockIdx.y) - at.q_heads;
  const HeadKind kind = kv_index < 0 ? kQuery : kv_index < at.kv_heads ? kKey : kValue;
  const int dim = kind == kValue ? at.value_dim : at.key_dim;
  const long long token = blockIdx.x;
  let_next_start();
  wait_for_previous();
  T *q = static_cast<T *>(a.q) + token * at.q_token + blockIdx.y * at.q_head;
  const T *source = q;
  if (kind == kKey)
    source = static_cast<const T *>(a.k) + token * at.k_token + kv_index * at.k_head;
  if (kind == kValue)
    source = static_cast<const T *>(a.v) + token * at.v_token +
             (kv_index - at.kv_heads) * at.v_head;
  float sum = 0.f;
  for (int i = lane; i < dim; i += 32) {
    head[i] = to_float(source[i]);
    sum += head[i] * head[i];
  }
  const T *weight = static_cast<const T *>(kind == kQuery ? a.q_norm : a.k_norm);
  if (kind != kValue && weight) {
    for (int distance = 16; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    const float inverse = rsqrtf(sum / dim + a.eps);
    for (int i = lane; i < dim; i += 32) {
      const float normed = to_float(from_float<T>(head[i] * inverse));
      head[i] = to_float(from_float<T>(normed * to_float(weight[i])));
    }
  }
  __syncwarp();
  const unsigned slot = static_cast<unsigned>(a.slots[token]);
  const long long block = slot / static_cast<unsigned>(at.block_tokens);
  const int offset = slot % static_cast<unsigned>(at.block_tokens), pairs = at.num_pairs;
  C *key = static_cast<C *>(a.key_cache) + block * at.key_block + kv_index * at.key_head +
           offset * at.key_token;
  C *value = static_cast<C *>(a.value_cache) + block * at.value_block +
             (kv_index - at.kv_heads) * at.value_head + offset * at.value_token;
  const T *cos = static_cast<const T *>(a.cos) + token * at.cos_token;
  const T *sin = static_cast<const T *>(a.sin) + token * at.sin_token;
  for (int i = lane; i < dim; i += 32) {
    float x = head[i];
    if (kind != kValue && i < 2 * pairs) {
      const int angle = i < pairs ? i : i - pairs;
      const float other = i < pairs ? -head[i + pairs] : head[i - pairs];
      x = to_float(from_float<T>(x * to_float(cos[angle]) + other * to_float(sin[angle])));
    }
    if (kind == kQuery)
      q[i] = from_float<T>(x);
    else if (kind == kKey)
      key[key_offset(at, i)] = cache_entry<C>(x, a.k_scale);
    else
      value[i * at.value_entry] = cache_entry<C>(x, a.v_scale);
  }
}

// Whether every piece of 8 entries can be loaded and stored at once.
bool in_pieces(const Arguments &a) {
  const Geometry &at = a.at;
  int sizes = at.key_dim | at.value_dim | at.num_pairs | at.q_token | at.q_head | at.k_token |
              at.k_head | at.v_token | at.v_head | at.cos_token | at.sin_token;
  if (at.log2_piece >= 3) sizes |= at.key_block | at.key_head | at.key_token | at.key_piece;
  if (at.value_entry == 1) sizes |= at.value_block | at.value_head | at.value_token;
  uintptr_t addresses = 0;
  for (const void *pointer : {static_cast<const void *>(a.q), a.k, a.v,
                              static_cast<const void *>(a.key_cache),
                              static_cast<const void *>(a.value_cache), a.cos, a.sin, a.q_norm,
                              a.k_norm})
    addresses |= reinterpret_cast<uintptr_t>(pointer);
  return sizes % kSize == 0 && addresses % 16 == 0 && at.key_dim <= 32 * kSize &&
         at.value_dim <= 32 * kSize;
}

template <typename T, typename C> cudaError_t run(const Arguments &a, cudaStream_t stream) {
  const int num_heads = a.at.q_heads + 2 * a.at.kv_heads;
  const int dim = a.at.key_dim > a.at.value_dim ? a.at.key_dim : a.at.value_dim;
  const unsigned num_tokens = a.at.num_tokens;
  if (!in_pieces(a))
    return launch(store_entries<T, C>, dim3(num_tokens, num_heads), 32, dim * sizeof(float), stream,
                  a);
  const int turning = a.at.num_pairs / kSize;
  const int key_lanes = turning + (a.at.key_dim / kSize - 2 * turning + 1) / 2;
  const int value_lanes = (a.at.value_dim / kSize + 1) / 2;
  int log2_lanes = 0;
  while (1 << log2_lanes < key_lanes || 1 << log2_lanes < value_lanes) ++log2_lanes;
  const int groups = kThreads >> log2_lanes;
  const unsigned parts = (num_heads + groups - 1) / groups;
  return launch(store_pieces<T, C>, dim3(num_tokens, parts), kThreads, 0, stream, a, log2_lanes);
}

template <typename T> cudaError_t run(const Arguments &a, cudaStream_t stream) {
  return a.at.cache_dtype == kFloat8 ? run<T, __nv_fp8_e4m3>(a, stream) : run<T, T>(a, stream);
}

}  // namespace

OCTAVO_EXPORT int octavo_store_kv(const Geometry *geometry, void *q, const void *k, const void *v,
                                  void *key_cache, void *value_cache, const long long *slots,
                                  const void *cos, const void *sin, const void *q_norm,
                                  const void *k_norm, float eps, float k_scale, float v_scale,
                                  cudaStream_t stream) {
  const Arguments a{*geometry, q,   k,   v,      key_cache, value_cache, slots,
                    cos,       sin, q_norm, k_norm, eps,      k_scale,     v_scale};
  switch (geometry->dtype) {
    case kFloat32: return run<float>(a, stream);
    case kFloat16: return run<__half>(a, stream);
    case kBFloat16: return run<__nv_bfloat16>(a, stream);
    default: return cudaErrorInvalidValue;
  }
}
