// Chooses each token's experts: a warp per token.
#include "moe.cuh"

namespace octavo::moe {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxExperts = 512, kMaxGroups = 32;
constexpr unsigned kAllLanes = 0xffffffff;

enum Score : int { kSoftmax = 0, kSigmoid = 1, kSoftmaxAfter = 2 };  // as in __init__.py

struct Routing {
  const void* scores;  // [tokens, experts], rows `stride` apart
  const float* bias;   // [experts] or null
  int* ids;            // [tokens, chosen]
  float* weights;
  int64_t stride;
  int tokens, experts, chosen;
  int score, renormalize, groups, chosen_groups;
  float scale;
};

template <typename Op> __device__ __forceinline__ float reduce(float x, Op op) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = op(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

__device__ __forceinline__ float sum(float x) {
  return reduce(x, [](float a, float b) { return a + b; });
}

// Orders by value, NaN last, then the lower id first; never 0, so that 0 can stand for "taken".
__device__ __forceinline__ uint64_t rank_key(float value, int id) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = value != value ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - id);
}

// The groups that a token may choose from, as bits; `ranked` has its experts' values.
__device__ uint32_t choose_groups(const Routing& r, const float* ranked, int lane) {
  const int size = r.experts / r.groups;
  float first = -INFINITY, second = -INFINITY;
  if (lane < r.groups) {
    for (int i = 0; i < size; ++i) {
      const float value = ranked[lane * size + i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
  }
  // DeepSeek-V3, which has a bias, ranks groups by their best two experts; V2 by the best.
  const float value = r.bias != nullptr && size > 1 ? first + second : first;
  const uint64_t key = lane < r.groups ? rank_key(value, lane) : 0;
  int better = 0;
  for (int other = 0; other < r.groups; ++other) {
    better += __shfl_sync(kAllLanes, key, other) > key;
  }
  return __ballot_sync(kAllLanes, lane < r.groups && better < r.chosen_groups);
}

// kSlots * 32 is at least the number of experts; expert 32 i + lane is in slot i.
template <typename T, int kSlots>
__global__ void __launch_bounds__(32 * kWarps) route_kernel(const Routing r) {
  __shared__ float ranked_values[kWarps][kMaxExperts];
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % 32, token = blockIdx.x * kWarps + threadIdx.x / 32;
  if (token >= r.tokens) return;
  const T* scores = static_cast<const T*>(r.scores) + token * r.stride;

  float values[kSlots], largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int id = 32 * i + lane;
    values[i] = id < r.experts ? to_float(scores[id]) : -INFINITY;
    largest = fmaxf(largest, values[i]);
  }
  largest = reduce(largest, [](float a, float b) { return fmaxf(a, b); });
  if (r.score == kSoftmax) {
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      values[i] = __expf(values[i] - largest);
      total += values[i];
    }
    total = sum(total);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) values[i] = __fdividef(values[i], total);
  } else if (r.score == kSigmoid) {
#pragma unroll
    for (int i = 0; i < kSlots; ++i) values[i] = __fdividef(1.f, 1.f + __expf(-values[i]));
  }

  // What the choice goes by.
  float ranked[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int id = 32 * i + lane;
    ranked[i] = values[i] + (r.bias != nullptr && id < r.experts ? r.bias[id] : 0.f);
  }
  if (r.groups > 1) {
    float* shared = ranked_values[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (32 * i + lane < r.experts) shared[32 * i + lane] = ranked[i];
    }
    __syncwarp();
    const uint32_t groups = choose_groups(r, shared, lane);
    const int size = r.experts / r.groups;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const int group = (32 * i + lane) / size;
      if (group < r.groups && (groups >> group & 1) == 0) ranked[i] = -INFINITY;
    }
  }
  uint64_t keys[kSlots];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int id = 32 * i + lane;
    keys[i] = id < r.experts ? rank_key(ranked[i], id) : 0;
  }

  int chosen_id = 0;         // lane k keeps the k-th choice
  float chosen_value = 0.f;
  for (int k = 0; k < r.chosen; ++k) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) best = max(best, keys[i]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      best = max(best, static_cast<uint64_t>(__shfl_xor_sync(kAllLanes, best, step)));
    }
    const int id = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
    float value = 0.f;
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (keys[i] == best) keys[i] = 0;
      if (i == id / 32) value = values[i];
    }
    value = __shfl_sync(kAllLanes, value, id % 32);
    if (lane == k) chosen_id = id, chosen_value = value;
  }

  const bool counts = lane < r.chosen;
  if (r.score == kSoftmaxAfter) {
    const float top = reduce(counts ? chosen_value : -INFINITY,
                             [](float a, float b) { return fmaxf(a, b); });
    chosen_value = counts ? __expf(chosen_value - top) : 0.f;
  }
  if (r.score == kSoftmaxAfter || r.renormalize) {
    chosen_value = __fdividef(chosen_value, sum(counts ? chosen_value : 0.f) + 1e-20f);
  }
  if (counts) {
    r.ids[token * r.chosen + lane] = chosen_id;
    r.weights[token * r.chosen + lane] = chosen_value * r.scale;
  }
}

template <typename T> cudaError_t run(const Routing& routing, cudaStream_t stream) {
  const dim3 grid((routing.tokens + kWarps - 1) / kWarps), block(32 * kWarps);
  if (routing.experts <= 128) return launch(route_kernel<T, 4>, grid, block, 0, stream, routing);
  return launch(route_kernel<T, kMaxExperts / 32>, grid, block, 0, stream, routing);
}

}  // namespace
}  // namespace octavo::moe

OCTAVO_EXPORT int octavo_moe_route(const void* scores, const void* bias, void* ids, void* weights,
                                   int dtype, int tokens, int experts, int chosen, int64_t stride,
                                   int score, int renormalize, int groups, int chosen_groups,
                                   float scale, void* stream) {
  using namespace octavo;
  const moe::Routing routing = {scores,
                                static_cast<const float*>(bias),
                                static_cast<int*>(ids),
                                static_cast<float*>(weights),
                                stride,
                                tokens,
                                experts,
                                chosen,
                                score,
                                renormalize,
                                groups,
                                chosen_groups,
                                scale};
  const auto on = static_cast<cudaStream_t>(stream);
  switch (dtype) {
    case kFloat32: return moe::run<float>(routing, on);
    case kFloat16: return moe::run<__half>(routing, on);
    case kBFloat16: return moe::run<__nv_bfloat16>(routing, on);
    default: return cudaErrorInvalidValue;
  }
}
