// Chooses each row's token. The first kernel reads every row once, divided among as many blocks as
// fill the device: it edits scores and takes the best or races them. The second, launched only when
// the host knows of rows that need it, samples for rows with top_k, top_p or min_p.
#include "edits.cuh"
#include "race.cuh"
#include "thresholds.cuh"

namespace octavo::sample {

constexpr int kBlock = 256;
constexpr int kBlocksPerSm = 4;
constexpr unsigned kLargestTeam = 8;

template <typename T> __device__ __forceinline__ Row<T> logits_of(const Batch& batch, int row) {
  return Row<T>(static_cast<const T*>(batch.logits) + row * batch.stride, batch.vocab);
}

template <typename T>
__device__ __forceinline__ void set_masks(Row<T>& logits, const Batch& batch, const Parameters& p,
                                          int row, int slot, int features) {
  if (batch.mask_rows != nullptr && batch.mask_rows[row] >= 0) {
    const size_t place = static_cast<size_t>(batch.mask_rows[row]) * batch.mask_words;
    logits.set_mask(0, batch.mask + place, batch.mask_words);
  }
  if ((features & kBias) && p.allowed != nullptr) {
    const size_t place = static_cast<size_t>(slot) * p.allowed_words;
    logits.set_mask(1, p.allowed + place, p.allowed_words);
  }
}

// The likeliest token of those that a thread has seen, which come by rising id.
struct Likeliest {
  static constexpr int kInFlight = 4;  // 16-byte loads of a thread: 64 KiB an SM
  float score = -INFINITY;
  unsigned id;

  __device__ explicit Likeliest(int first_id) : id(max(first_id, 0)) {}
  __device__ Choice choice() const { return {~ordered(score), id}; }

  template <int kWidth> __device__ void add(const float (&scores)[kWidth], int first_id) {
#pragma unroll
    for (int j = 0; j < kWidth; j++) {
      if (scores[j] > score) {
        score = scores[j];
        id = first_id + j;
      }
    }
  }
};

// Vectors [begin, end) as they are; lanes past the end add nothing, so that warps stay together.
template <typename T, typename Chooser>
__device__ __forceinline__ Choice choose(const Row<T>& logits, int begin, int end,
                                         Chooser chooser) {
  constexpr int kInFlight = Chooser::kInFlight;
  for (int start = begin; start < end; start += kInFlight * kBlock) {
    Vec<T> raw[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; u++) {
      const int vector = start + u * kBlock + threadIdx.x;
      if (vector < end) raw[u] = logits.load(vector);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; u++) {
      if (start + u * kBlock >= end) break;
      const int vector = start + u * kBlock + threadIdx.x;
      float scores[Row<T>::kWidth];
#pragma unroll
      for (int j = 0; j < Row<T>::kWidth; j++) scores[j] = -INFINITY;
      if (vector < end) {
        logits.mend(raw[u], vector);
        logits.unpack(raw[u], vector, scores);
      }
      chooser.add(scores, logits.first_id(vector));
    }
  }
  return chooser.choice();
}

// Vectors [begin, end) with edits, tile by tile; the edited scores also go to `scratch`, if any.
template <typename T, typename Chooser>
__device__ __forceinline__ Choice choose_edited(const Row<T>& logits, int begin, int end,
                                                const Edits& edits, const Parameters& p,
                                                TileMemory& memory, float* scratch,
                                                Chooser chooser) {
  constexpr int kWidth = Row<T>::kWidth, kTileVectors = kTileTokens / kWidth;
  float(&tile_scores)[kTileTokens] = memory.scores;
  for (int start = begin; start < end; start += kTileVectors) {
    const int stop = min(start + kTileVectors, end);
    const Tile tile = {memory, logits.first_id(start), (stop - start) * kWidth};
    for (int vector = start + threadIdx.x; vector < stop; vector += kBlock) {
      float scores[kWidth];
      Vec<T> raw = logits.load(vector);
      logits.mend(raw, vector);
      logits.unpack(raw, vector, scores);
#pragma unroll
      for (int j = 0; j < kWidth; j++) tile_scores[(vector - start) * kWidth + j] = scores[j];
    }
    edit(tile, edits, p);
    for (int first = start; first < stop; first += kBlock) {
      const int vector = first + threadIdx.x, id = logits.first_id(vector);
      float scores[kWidth];
#pragma unroll
      for (int j = 0; j < kWidth; j++) {
        scores[j] = vector < stop ? tile_scores[(vector - start) * kWidth + j] : -INFINITY;
        const bool is_token = static_cast<unsigned>(id + j) < static_cast<unsigned>(logits.vocab);
        if (scratch != nullptr && vector < stop && is_token) scratch[id + j] = scores[j];
      }
      chooser.add(scores, id);
    }
    __syncthreads();
  }
  return chooser.choice();
}

// The last block of a row to come here has the row's choice in its first warp, and true.
__device__ __forceinline__ bool join_splits(Choice& choice, const Parameters& p, int row) {
  const int num_splits = gridDim.x, lane = threadIdx.x;
  if (num_splits == 1) return true;
  unsigned arrived = 0;
  if (lane == 0) {
    p.partial_values[row * num_splits + blockIdx.x] = choice.value;
    p.partial_ids[row * num_splits + blockIdx.x] = choice.id;
    __threadfence();
    arrived = atomicAdd(&p.arrivals[row], 1u) + 1;
  }
  if (__shfl_sync(~0u, arrived, 0) != static_cast<unsigned>(num_splits)) return false;
  __threadfence();
  for (int i = lane; i < num_splits; i += 32) {
    const Choice other = {__ldcg(&p.partial_values[row * num_splits + i]),
                          __ldcg(&p.partial_ids[row * num_splits + i])};
    if (other.beats(choice)) choice = other;
  }
  choice = best_of_warp(choice);
  if (lane == 0) p.arrivals[row] = 0;
  return true;
}

__device__ __forceinline__ int token_of(const Choice& choice, const Batch& batch) {
  return static_cast<int>(min(choice.id, batch.vocab - 1u));  // NaN may leave an id outside
}

// Grid: splits of a row, rows. kPlain: all rows are greedy, and nothing of their slots is read.
template <typename T, bool kPlain>
__global__ __launch_bounds__(kBlock, kBlocksPerSm) void choose_kernel(Batch batch, Parameters p) {
  let_next_start();
  const int row = blockIdx.y;
  Row<T> logits = logits_of<T>(batch, row);
  const int length = (logits.num_vectors + gridDim.x - 1) / gridDim.x;
  const int begin = blockIdx.x * length, end = min(begin + length, logits.num_vectors);
  const Likeliest likeliest(logits.first_id(begin));
  wait_for_previous();
  if (!kPlain && begin + static_cast<int>(threadIdx.x) < end) {
    // The row's parameters come from memory twice removed; the first logits need not wait for them.
    asm volatile("prefetch.global.L2 [%0];" ::"l"(logits.vectors + begin + threadIdx.x));
  }
  Choice choice;
  bool has_thresholds = false;
  if constexpr (kPlain) {
    choice = choose(logits, begin, end, likeliest);
  } else {
    const int slot = batch.slots[row], features = p.features[slot];
    const bool is_random = features & kRandom;
    has_thresholds = is_random && (features & kThresholds);
    set_masks(logits, batch, p, row, slot, features);
    // Not kept in a register: where it is needed is far apart.
    const auto num_tokens = [&] { return num_tokens_at(batch, p, row, slot); };
    const Edits edits(p, slot, features, num_tokens());
    const bool races = is_random && !has_thresholds;
    if (edits.features == 0) {
      choice = races ? choose(logits, begin, end, Race(p, slot, num_tokens()))
                     : choose(logits, begin, end, likeliest);
    } else {
      float* const scratch = has_thresholds && batch.scratch != nullptr
                                 ? batch.scratch + static_cast<size_t>(row) * batch.vocab
                                 : nullptr;
      __shared__ TileMemory memory;
      choice = races ? choose_edited(logits, begin, end, edits, p, memory, scratch,
                                     Race(p, slot, num_tokens()))
                     : choose_edited(logits, begin, end, edits, p, memory, scratch, likeliest);
    }
  }
  choice = best_of_block<kBlock>(choice);
  if (threadIdx.x >= 32 || !join_splits(choice, p, row) || threadIdx.x != 0) return;
  batch.tokens[row] = token_of(choice, batch);
  if (has_thresholds) p.best[row] = from_ordered(~static_cast<unsigned>(choice.value));
}

// Grid: blocks of a row's team, rows.
template <typename T>
__global__ __launch_bounds__(kThreads) void draw_kernel(Batch batch, Parameters p) {
  __shared__ ThresholdMemory memory;
  let_next_start();
  wait_for_previous();
  const int row = blockIdx.y, slot = batch.slots[row], features = p.features[slot];
  if (!(features & kRandom) || !(features & kThresholds)) return;
  const float best = p.best[row];
  const int num_tokens = num_tokens_at(batch, p, row, slot);
  Choice choice;
  if (batch.scratch != nullptr && Edits(p, slot, features, num_tokens).features != 0) {
    const Row<float> edited(batch.scratch + static_cast<size_t>(row) * batch.vocab, batch.vocab);
    choice = draw_row(edited, best, p, slot, num_tokens, features, memory);
  } else {
    Row<T> logits = logits_of<T>(batch, row);
    set_masks(logits, batch, p, row, slot, features);
    choice = draw_row(logits, best, p, slot, num_tokens, features, memory);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) batch.tokens[row] = token_of(choice, batch);
}

// Of few rows, each is a cluster's work: together they fill the device.
cudaError_t launch_draws(void (*kernel)(Batch, Parameters), const Batch& batch,
                         const Parameters& p, cudaStream_t stream) {
  unsigned team = 1;
  while (OCTAVO_ARCH >= 90 && team < kLargestTeam && 2 * team * batch.num_rows <= p.num_sms) {
    team *= 2;
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {team, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(team, batch.num_rows);
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = OCTAVO_ARCH >= 90 ? 2 : 0;
  return cudaLaunchKernelEx(&config, kernel, batch, p);
}

template <typename T>
cudaError_t sample(const Batch& batch, const Parameters& p, int work, cudaStream_t stream) {
  const int num_vectors = batch.vocab / Row<T>::kWidth;
  const int wanted = kBlocksPerSm * p.num_sms / batch.num_rows;
  const int splits = max(1, min(wanted, num_vectors / kBlock));
  const dim3 grid(splits, batch.num_rows);
  const bool is_plain = work == 0 && batch.mask_rows == nullptr;
  const cudaError_t error =
      launch(is_plain ? choose_kernel<T, true> : choose_kernel<T, false>, grid, kBlock, 0, stream,
             batch, p);
  if (error != cudaSuccess || !(work & kThresholdRows)) return error;
  return launch_draws(draw_kernel<T>, batch, p, stream);
}

}  // namespace octavo::sample

OCTAVO_EXPORT int octavo_sample(const octavo::sample::Parameters* parameters, const void* logits,
                                int dtype, long long stride, int num_rows, int vocab,
                                const int* slots, const int* ahead, int* tokens,
                                const int* mask_rows, const unsigned* mask, int mask_words,
                                float* scratch, int work, cudaStream_t stream) {
  using namespace octavo;
  const sample::Batch batch = {logits, stride,    num_rows, vocab,      slots,  ahead,
                               tokens, mask_rows, mask,     mask_words, scratch};
  switch (dtype) {
    case kFloat32:
      return sample::sample<float>(batch, *parameters, work, stream);
    case kFloat16:
      return sample::sample<__half>(batch, *parameters, work, stream);
    case kBFloat16:
      return sample::sample<__nv_bfloat16>(batch, *parameters, work, stream);
    default:
      return cudaErrorInvalidValue;
  }
}
