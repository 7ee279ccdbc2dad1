// Pairs of a head's entries, (x[i], x[i + F]), turn by their token's angles, in place.
#include "octavo.cuh"

namespace {

using namespace octavo;

constexpr int kMaxThreads = 256;
constexpr int kHeads = 2;  // of a thread: their angles are the same, four pieces are in flight

// Strides in elements.
struct Arguments {
  void *x;
  const void *cos, *sin;
  int num_heads, num_pairs;
  long long x_token, x_head, cos_token, sin_token;
};

// Entries side by side, moved at once, or 16 bytes at a time where they are more.
template <typename T, int kSize>
struct alignas(kSize * sizeof(T) < 16 ? kSize * sizeof(T) : 16) Piece {
  T data[kSize];
};

// Block (token, some of its heads); a thread's x is its piece of the pairs, its y a head.
template <typename T, typename A, int kSize>
__global__ void __launch_bounds__(kMaxThreads) turn_heads(const __grid_constant__ Arguments a) {
  using Entries = Piece<T, kSize>;
  using Angles = Piece<A, kSize>;
  let_next_start();
  const long long token = blockIdx.x;
  const int first_head = blockIdx.y * blockDim.y * kHeads + threadIdx.y;
  const int num_pieces = a.num_pairs / kSize;
  T *x = static_cast<T *>(a.x) + token * a.x_token;
  const A *cosines = static_cast<const A *>(a.cos) + token * a.cos_token;
  const A *sines = static_cast<const A *>(a.sin) + token * a.sin_token;
  wait_for_previous();
  for (int i = threadIdx.x; i < num_pieces; i += blockDim.x) {
    const Angles cos = reinterpret_cast<const Angles *>(cosines)[i];
    const Angles sin = reinterpret_cast<const Angles *>(sines)[i];
    Entries first[kHeads], second[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * blockDim.y;
      if (head >= a.num_heads) break;
      const Entries *source = reinterpret_cast<const Entries *>(x + head * a.x_head);
      first[h] = source[i];
      second[h] = source[i + num_pieces];
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int head = first_head + h * blockDim.y;
      if (head >= a.num_heads) break;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const float y = to_float(first[h].data[j]), z = to_float(second[h].data[j]);
        const float c = to_float(cos.data[j]), s = to_float(sin.data[j]);
        first[h].data[j] = from_float<T>(y * c - z * s);
        second[h].data[j] = from_float<T>(z * c + y * s);
      }
      Entries *target = reinterpret_cast<Entries *>(x + head * a.x_head);
      target[i] = first[h];
      target[i + num_pieces] = second[h];
    }
  }
}

// Whether all pieces of that size are whole and aligned.
template <typename T, typename A, int kSize> bool fits(const Arguments &a) {
  const long long sizes = a.num_pairs | a.x_token | a.x_head | a.cos_token | a.sin_token;
  const uintptr_t angles = reinterpret_cast<uintptr_t>(a.cos) | reinterpret_cast<uintptr_t>(a.sin);
  return sizes % kSize == 0 && angles % alignof(Piece<A, kSize>) == 0 &&
         reinterpret_cast<uintptr_t>(a.x) % alignof(Piece<T, kSize>) == 0;
}

template <typename T, typename A, int kSize = Vec<T>::kSize>
cudaError_t run(const Arguments &a, long long num_tokens, cudaStream_t stream) {
  if constexpr (kSize > 1) {
    if (!fits<T, A, kSize>(a)) return run<T, A, kSize / 2>(a, num_tokens, stream);
  }
  const int num_pieces = a.num_pairs / kSize, pairs_of_heads = (a.num_heads + kHeads - 1) / kHeads;
  const int across = num_pieces < kMaxThreads ? num_pieces : kMaxThreads;
  const int most = kMaxThreads / across, down = pairs_of_heads < most ? pairs_of_heads : most;
  const dim3 grid(static_cast<unsigned>(num_tokens), (pairs_of_heads + down - 1) / down);
  return launch(turn_heads<T, A, kSize>, grid, dim3(across, down), 0, stream, a);
}

}  // namespace

OCTAVO_EXPORT int octavo_rotary(void *x, const void *cos, const void *sin, long long num_tokens,
                                int num_heads, int num_pairs, long long x_token, long long x_head,
                                long long cos_token, long long sin_token, int dtype,
                                int angle_dtype, cudaStream_t stream) {
  const Arguments a{x, cos, sin, num_heads, num_pairs, x_token, x_head, cos_token, sin_token};
  const bool wide = angle_dtype == kFloat32;  // otherwise as x
  switch (dtype) {
    case kFloat32: return run<float, float>(a, num_tokens, stream);
    case kFloat16:
      return wide ? run<__half, float>(a, num_tokens, stream)
                  : run<__half, __half>(a, num_tokens, stream);
    case kBFloat16:
      return wide ? run<__nv_bfloat16, float>(a, num_tokens, stream)
                  : run<__nv_bfloat16, __nv_bfloat16>(a, num_tokens, stream);
    default: return cudaErrorInvalidValue;
  }
}
