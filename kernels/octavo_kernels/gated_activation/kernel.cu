// activation(gate) * up for gate and up side by side in a row, or quick GELU of a row alone.
#include "octavo.cuh"

namespace {

using namespace octavo;

constexpr int kMaxThreads = 256;

// As in __init__.py.
enum Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kQuickGelu = 3 };

__device__ __forceinline__ float activate(float x, int activation) {
  if (activation == kSilu) return __fdividef(x, 1.f + __expf(-x));
  if (activation == kQuickGelu) return __fdividef(x, 1.f + __expf(-1.702f * x));
  if (activation == kGelu) return .5f * x * (1.f + erff(x * .7071067811865476f));
  const float inner = .7978845608028654f * (x + .044715f * x * x * x);
  return .5f * x * (1.f + tanhf(inner));
}

// Access is what a thread moves at once: 16 bytes, or one element where rows are not aligned.
// Block (row, part of it); a thread has up to two accesses of the output, that is four in flight.
template <typename T, typename Access>
__global__ void __launch_bounds__(kMaxThreads)
    activate_rows(const T *gate_up, T *out, int size, long long stride, int activation) {
  constexpr int kSize = sizeof(Access) / sizeof(T);
  constexpr int kUnroll = 2;
  const bool gates_up = activation != kQuickGelu;
  let_next_start();
  const int row_accesses = size / kSize, step = gridDim.y * blockDim.x;
  const int first = blockIdx.y * blockDim.x + threadIdx.x;
  const T *source = gate_up + blockIdx.x * stride;
  const Access *gates = reinterpret_cast<const Access *>(source);
  const Access *ups = reinterpret_cast<const Access *>(source + size);
  Access *outs = reinterpret_cast<Access *>(out + static_cast<long long>(blockIdx.x) * size);
  wait_for_previous();
  Access gate[kUnroll], up[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int at = first + i * step;
    if (at < row_accesses) {
      gate[i] = gates[at];
      if (gates_up) up[i] = ups[at];
    }
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const int at = first + i * step;
    if (at >= row_accesses) break;
    T *x = reinterpret_cast<T *>(&gate[i]);
    const T *y = reinterpret_cast<const T *>(&up[i]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      // Rounded between the two, as in the reference.
      const T active = from_float<T>(activate(to_float(x[j]), activation));
      x[j] = gates_up ? from_float<T>(to_float(active) * to_float(y[j])) : active;
    }
    outs[at] = gate[i];
  }
}

template <typename T>
cudaError_t run(const void *gate_up, void *out, long long num_tokens, int size, long long stride,
                int activation, cudaStream_t stream) {
  constexpr int kSize = Vec<T>::kSize;
  const bool whole = size % kSize == 0 && stride % kSize == 0 &&
                     (reinterpret_cast<uintptr_t>(gate_up) | reinterpret_cast<uintptr_t>(out)) %
                             16 == 0;
  const int accesses = whole ? size / kSize : size;
  // Few rows: one access a thread, over as many processors as there are. Many: two.
  constexpr int kFewRows = 64;
  const bool few = num_tokens <= kFewRows;
  const int unroll = few ? 1 : 2, most = few ? 64 : kMaxThreads;
  const int parts = (accesses + unroll * most - 1) / (unroll * most);
  const int threads = ((accesses + unroll * parts - 1) / (unroll * parts) + 31) / 32 * 32;
  const dim3 grid(static_cast<unsigned>(num_tokens), parts);
  const T *source = static_cast<const T *>(gate_up);
  T *target = static_cast<T *>(out);
  return whole ? launch(activate_rows<T, Vec<T>>, grid, threads, 0, stream, source, target, size,
                        stride, activation)
               : launch(activate_rows<T, T>, grid, threads, 0, stream, source, target, size, stride,
                        activation);
}

}  // namespace

OCTAVO_EXPORT int octavo_gated_activation(const void *gate_up, void *out, long long num_tokens,
                                          int size, long long stride, int dtype, int activation,
                                          cudaStream_t stream) {
  switch (dtype) {
    case kFloat32: return run<float>(gate_up, out, num_tokens, size, stride, activation, stream);
    case kFloat16: return run<__half>(gate_up, out, num_tokens, size, stride, activation, stream);
    case kBFloat16:
      return run<__nv_bfloat16>(gate_up, out, num_tokens, size, stride, activation, stream);
    default: return cudaErrorInvalidValue;
  }
}
