// y = x W^T for few tokens: a stream of weights through shared memory into the tensor cores.
//
// The tensor cores' M axis is 64 rows of the weight, their N axis the tokens, so that no work is
// lost on padding. The weight is cut into tiles of rows and these into chunks of the inner axis;
// each block takes a run of consecutive chunks. A run that begins inside a tile leaves its sums in
// `partials`; the block with the tile's first chunk adds what the others left, in their order, and
// finishes the tile. So a result depends on shapes only, never on timing.
//
// One warp of a block does nothing but start copies, into a ring of stages. It starts on the
// weights before the previous kernel has ended, so that memory is busy while small kernels between
// two products run. What remains between products is the way from the last weight to the next
// product's first: of each of its steps, latency counts, not throughput.
#include <algorithm>
#include <atomic>

#include "hopper.cuh"

namespace octavo {
namespace {

using namespace hopper;

// What is done with the sums of a tile; as EPILOGUES in __init__.py.
enum Epilogue : int { kStore = 0, kAdd = 1, kSilu = 2, kGelu = 3, kGeluTanh = 4 };

constexpr int kMaxBlocks = 160;
constexpr int kMaxTile = 128 * 64;
constexpr int kMaxDevices = 64;
// A swizzled row of shared memory: 128 bytes of the inner axis.
constexpr int kSlice = 64;

struct Problem {
  void* out;         // [tokens, out_features]; with kAdd also an input
  const void* bias;  // [rows of the weight] or null
  int64_t out_stride;
  int tokens, out_features;
  int tiles, chunks;  // tiles of the weight's rows; chunks of the inner axis in each
  int epilogue;
};

// How the weight is cut up for a number of tokens. Tiles of 128 rows halve how often x is read: a
// multiprocessor takes in 50 bytes a nanosecond, and 33 are weights when memory is busy.
template <int kTokens_, int kRows_> struct Tiling {
  static constexpr int kTokens = kTokens_;
  static constexpr int kRows = kRows_;
  static constexpr int kChunk = 8192 / kRows;  // of the inner axis: 16 KB of weights
};

// The ring. With less than 120 KB, two blocks fit on a multiprocessor, and those of the next kernel
// crowd on the first that are free (25 % slower); more than 144 KB is no faster, and leaves less
// room for an attention kernel beside it.
template <typename Tile> struct Ring {
  static constexpr int kWeightBytes = Tile::kRows * Tile::kChunk * 2;
  static constexpr int kStageBytes = kWeightBytes + Tile::kTokens * Tile::kChunk * 2;
  static constexpr int kStages = 144 * 1024 / kStageBytes;

  alignas(1024) char stages[kStages][kStageBytes];
  Barrier full[kStages], empty[kStages];
};

// With so many copies still to start, the next kernel may come: it needs some microseconds to.
constexpr int kLead = 12;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;

// Sums of runs that begin inside a tile, by block, as the complements of their bits. Zero is what
// no sum gives (the complement of a NaN that the hardware never makes), so a word that is not zero
// is there, and no flag need follow it: through flags, an exchange took about 1 us more. One set a
// device, zero when the library is loaded; who takes sums leaves zeros. Kernels of one stream use
// it in turn: they write after `wait_for_previous`.
__device__ uint4 partials[kMaxBlocks * kMaxTile / 4];

__device__ __forceinline__ void put(uint4* target, uint4 value) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 get(const uint4* source) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(source)
               : "memory");
  return value;
}

// The first chunk, of all tiles' one after another, of a block's run.
__device__ __forceinline__ int start_of(const Problem& problem, int block) {
  return static_cast<int>(int64_t(problem.tiles) * problem.chunks * block / gridDim.x);
}

// The block whose run has that chunk.
__device__ __forceinline__ int block_of(const Problem& problem, int chunk) {
  const int64_t chunks = int64_t(problem.tiles) * problem.chunks;
  return static_cast<int>((int64_t(chunk + 1) * gridDim.x - 1) / chunks);
}

__device__ __forceinline__ float activate(float x, int epilogue) {
  if (epilogue == kSilu) return x / (1.0f + __expf(-x));
  if (epilogue == kGelu) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

template <typename T> __device__ __forceinline__ float unpack(uint32_t bits, int index) {
  union {
    uint32_t bits;
    T values[2];
  } pair = {bits};
  return to_float(pair.values[index]);
}

// As barrier.wait, with a loop that the compiler does not see: it unrolls the loops around it, to a
// third more code in small tiles. Not yet timed against the other.
__device__ __forceinline__ void wait(Barrier& barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

// Starts the copies of a run. Called by one thread.
template <typename Tile> class Producer {
 public:
  __device__ Producer(const CUtensorMap& weight, const CUtensorMap& x, const Problem& problem,
                      Ring<Tile>& ring, int first, int end)
      : weight_(weight), x_(x), problem_(problem), ring_(ring), first_(first),
        count_(end - first) {}

  // What needs nothing from the previous kernel.
  __device__ void start() {
    prefetch(x_);
    for (int i = 0; i < min(kStages, count_); ++i) copy_weight(i, i);
  }

  __device__ void run() {
    const int ready = min(kStages, count_), release = max(count_ - kLead, ready);
    if (release == ready) let_next_start();
    wait_for_previous();
    for (int i = 0; i < ready; ++i) copy_x(i, i);
    int stage = 0, parity = 0;
    for (int i = ready; i < count_; ++i) {
      if (i == release) let_next_start();
      wait(ring_.empty[stage], parity);
      copy_weight(i, stage);
      copy_x(i, stage);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;

  // Also makes the stage expect all of its bytes.
  __device__ void copy_weight(int i, int stage) {
    const int row = (first_ + i) / problem_.chunks * Tile::kRows;
    const int column = (first_ + i) % problem_.chunks * Tile::kChunk;
    const bool gated = problem_.epilogue >= kSilu;
    ring_.full[stage].arrive_and_expect(Ring<Tile>::kStageBytes);
#pragma unroll
    for (int k = 0; k < Tile::kChunk; k += kSlice) {
      copy_tile<4, kEvictFirst>(ring_.stages[stage] + k * Tile::kRows * 2, weight_,
                                ring_.full[stage], column + k, gated ? 0 : row, 0,
                                gated ? row / 16 : 0);
    }
  }

  __device__ void copy_x(int i, int stage) {
    const int column = (first_ + i) % problem_.chunks * Tile::kChunk;
    char* target = ring_.stages[stage] + Ring<Tile>::kWeightBytes;
#pragma unroll
    for (int k = 0; k < Tile::kChunk; k += kSlice) {
      copy_tile<2, kEvictLast>(target + k * Tile::kTokens * 2, x_,
                               ring_.full[stage], column + k, 0);
    }
  }

  const CUtensorMap &weight_, &x_;
  const Problem& problem_;
  Ring<Tile>& ring_;
  int first_, count_;
};

// Multiplies the chunks of a run, and finishes the tiles that are the run's to finish. One
// warpgroup; of each 64 rows a warp has 16.
template <typename T, typename Tile> class Consumer {
 public:
  __device__ Consumer(const Problem& problem, Ring<Tile>& ring)
      : problem_(problem), ring_(ring), lane_(threadIdx.x % 32) {}

  __device__ void run(int chunk, int end) {
    wait_for_previous();
    while (chunk < end) {
      const int tile = chunk / problem_.chunks, tile_end = (tile + 1) * problem_.chunks;
      const int stop = min(tile_end, end);
      multiply_chunks(stop - chunk);
      if (chunk == tile * problem_.chunks) {
        finish(tile, block_of(problem_, tile_end - 1));
      } else {
        leave();
      }
      chunk = stop;
    }
  }

 private:
  static constexpr int kStages = Ring<Tile>::kStages;
  static constexpr int kTokens = Tile::kTokens;
  static constexpr int kParts = Tile::kRows / 64;
  static constexpr int kSums = kTokens / 2;  // of a part, a thread's
  static constexpr int kQuads = kSums / 4;
  // The products of one stage run while the next is waited for. With many sums the compiler does
  // not see that this is safe, and the products take long enough.
  static constexpr bool kOverlap = kParts * kSums < 32;

  __device__ void multiply_chunks(int count) {
    Barrier* before = nullptr;
    for (int i = 0; i < count; ++i) {
      const char* weight = ring_.stages[stage_];
      const char* x = weight + Ring<Tile>::kWeightBytes;
      wait(ring_.full[stage_], parity_);
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

  // Of the sums that a block leaves, this thread's of a part.
  static __device__ uint4* partial_of(int block, int part) {
    return partials + (block * kParts + part) * (kConsumers * kQuads) + threadIdx.x;
  }

  // Leaves the sums for the block that finishes the tile.
  __device__ void leave() {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      uint4* target = partial_of(blockIdx.x, part);
      const float* sums = sums_[part];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        put(target + i * kConsumers,
            make_uint4(~__float_as_uint(sums[4 * i]), ~__float_as_uint(sums[4 * i + 1]),
                       ~__float_as_uint(sums[4 * i + 2]), ~__float_as_uint(sums[4 * i + 3])));
      }
    }
  }

  // Adds what the blocks after this one, up to `last`, left of a part; that of some blocks at once,
  // for the latency. They run: a grid has no more blocks than the device has multiprocessors, and
  // later kernels start only after all of them have.
  __device__ void collect(int last, int part) {
    constexpr int kBatch = 8 / kQuads;
    for (int first = blockIdx.x + 1; first <= last; first += kBatch) {
      uint4 quads[kBatch][kQuads];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
#pragma unroll
          for (int i = 0; i < kQuads; ++i) {
            quads[n][i] = make_uint4(~0u, ~0u, ~0u, ~0u);  // zeros, should there be no such block
            if (first + n <= last) quads[n][i] = get(partial_of(first + n, part) + i * kConsumers);
          }
        }
#pragma unroll
        for (int n = 0; n < kBatch; ++n) {
#pragma unroll
          for (int i = 0; i < kQuads; ++i) {
            const uint4& quad = quads[n][i];
            there = there && quad.x != 0 && quad.y != 0 && quad.z != 0 && quad.w != 0;
          }
        }
      } while (!__all_sync(~0u, there));
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
#pragma unroll
        for (int i = 0; i < kQuads; ++i) {
          if (first + n <= last) {
            put(partial_of(first + n, part) + i * kConsumers, make_uint4(0, 0, 0, 0));
          }
          float* sums = &sums_[part][4 * i];
          sums[0] += __uint_as_float(~quads[n][i].x), sums[1] += __uint_as_float(~quads[n][i].y);
          sums[2] += __uint_as_float(~quads[n][i].z), sums[3] += __uint_as_float(~quads[n][i].w);
        }
      }
    }
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
      collect(last, part);
      if (problem_.epilogue >= kSilu) {
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
          const uint32_t pair = transpose(before[2 * j + h]);
          low += unpack<T>(pair, 0), high += unpack<T>(pair, 1);
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
    Consumer<T, Tile>(problem, ring).run(first, end);
  } else if (threadIdx.x == kConsumers) {
    producer.run();
  }
}

// ---- host ------------------------------------------------------------------------------------

// Fetching 256 bytes at once made streams 7 % slower.
constexpr CUtensorMapL2promotion kFetch = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

// The weight [rows, features]. For a gated product the third of four axes is gate or up, so that
// one copy takes 8 rows of the one and the same 8 of the other by turns.
template <typename T, typename Tile>
cudaError_t encode_weight(CUtensorMap* map, const void* weight, cuuint64_t rows,
                          cuuint64_t features, bool gated) {
  const cuuint64_t row = features * sizeof(T);
  if (gated) {
    return encode_map<4>(map, kDtypeOf<T>, weight, {features, 8, 2, rows / 16},
                         {row, rows / 2 * row, 8 * row}, {kSlice, 8, 2, Tile::kRows / 16}, kFetch);
  }
  return encode_map<4>(map, kDtypeOf<T>, weight, {features, rows, 1, 1}, {row, row, row},
                       {kSlice, Tile::kRows, 1, 1}, kFetch);
}

struct Arguments {
  void* out;
  const void *x, *weight, *bias;
  int epilogue, tokens, features, rows;
  int64_t x_stride, out_stride;
  cudaStream_t stream;
};

// The device's multiprocessors; at first also lets the kernel have its shared memory.
template <typename T, typename Tile> cudaError_t count_multiprocessors(int* count) {
  static std::atomic<int> known[kMaxDevices];
  int device;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  *count = known[device].load();
  if (*count != 0) return cudaSuccess;
  const auto kernel = linear_kernel<T, Tile>;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Ring<Tile>));
  if (error != cudaSuccess) return error;
  // Else the driver may part shared memory and L1 so that this and the next kernel do not fit.
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) known[device] = *count;
  return error;
}

// One block per multiprocessor; up to 4 % fewer if all runs are then of one length, for then fewer
// blocks meet in a tile: 28672 x 4096 takes 55.1 us with 128 blocks and 58.7 with 132.
int choose_blocks(const Problem& problem, int multiprocessors) {
  const int64_t chunks = int64_t(problem.tiles) * problem.chunks;
  const int room = std::min(multiprocessors, kMaxBlocks);
  const int most = static_cast<int>(std::min<int64_t>(chunks, room));
  for (int blocks = most; blocks * 100 > most * 96; --blocks) {
    if (chunks % blocks == 0) return blocks;
  }
  return most;
}

template <typename T, typename Tile> cudaError_t run_tile(const Arguments& a) {
  const bool gated = a.epilogue >= kSilu;
  Problem problem;
  problem.out = a.out, problem.bias = a.bias, problem.out_stride = a.out_stride;
  problem.tokens = a.tokens;
  problem.out_features = gated ? a.rows / 2 : a.rows;
  problem.tiles = (a.rows + Tile::kRows - 1) / Tile::kRows;
  problem.chunks = (a.features + Tile::kChunk - 1) / Tile::kChunk;
  problem.epilogue = a.epilogue;

  int multiprocessors;
  CUtensorMap weight, x;
  cudaError_t error = count_multiprocessors<T, Tile>(&multiprocessors);
  if (error != cudaSuccess) return error;
  error = encode_weight<T, Tile>(&weight, a.weight, a.rows, a.features, gated);
  if (error != cudaSuccess) return error;
  error = encode_map<2>(&x, kDtypeOf<T>, a.x, {cuuint64_t(a.features), cuuint64_t(a.tokens)},
                        {cuuint64_t(a.x_stride * sizeof(T))}, {kSlice, Tile::kTokens}, kFetch);
  if (error != cudaSuccess) return error;
  return launch(linear_kernel<T, Tile>, dim3(choose_blocks(problem, multiprocessors)),
                dim3(kThreads), sizeof(Ring<Tile>), a.stream, weight, x, problem);
}

// From so many rows on, tiles of 128: with 32 tokens, 128256 x 2048 took 125 us in them and 132 in
// tiles of 64. With fewer, too many blocks meet in a tile: 4096 x 4096 took 15.5 us and 12.9.
constexpr int kTallRows = 16384;

template <typename T> cudaError_t run(const Arguments& arguments, int tile_tokens) {
  const bool tall = arguments.rows >= kTallRows;
  switch (tile_tokens) {
    case 8:
      return run_tile<T, Tiling<8, 64>>(arguments);
    case 16:
      return run_tile<T, Tiling<16, 64>>(arguments);
    case 32:
      return tall ? run_tile<T, Tiling<32, 128>>(arguments)
                  : run_tile<T, Tiling<32, 64>>(arguments);
    case 64:
      return tall ? run_tile<T, Tiling<64, 128>>(arguments)
                  : run_tile<T, Tiling<64, 64>>(arguments);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace
}  // namespace octavo

OCTAVO_EXPORT int octavo_linear(void* out, const void* x, const void* weight, const void* bias,
                                int dtype, int epilogue, int tile_tokens, int tokens, int features,
                                int rows, int64_t x_stride, int64_t out_stride, void* stream) {
  using namespace octavo;
  for (int token = 0; token < tokens; token += tile_tokens) {
    const Arguments arguments = {static_cast<char*>(out) + token * out_stride * 2,
                                 static_cast<const char*>(x) + token * x_stride * 2,
                                 weight,
                                 bias,
                                 epilogue,
                                 std::min(tile_tokens, tokens - token),
                                 features,
                                 rows,
                                 x_stride,
                                 out_stride,
                                 static_cast<cudaStream_t>(stream)};
    const cudaError_t error = dtype == kBFloat16 ? run<__nv_bfloat16>(arguments, tile_tokens)
                                                 : run<__half>(arguments, tile_tokens);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
