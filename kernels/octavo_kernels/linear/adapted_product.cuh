// The kernel of a product with adapters.
//
// Beside what linear_kernel has, a block has helpers: warps that multiply x by adapters' rank rows
// while the weight streams in (adapter_sums.cuh), and the sums by `up` (adapter_tiles.cuh). Who
// finishes a tile adds what they leave in shared memory.
#pragma once

#include "adapter_tiles.cuh"
#include "product.cuh"

namespace octavo::linear {

// Starts the copies of a run of chunks. Called by one thread, but for the first of x: another one
// starts these, which need not wait until runs are listed.
template <typename Tile> class AdaptedProducer : public Producer<Tile> {
 public:
  __device__ AdaptedProducer(const CUtensorMap& weight, const CUtensorMap& x,
                             const Problem& problem, Ring<Tile>& ring, int first, int end)
      : Producer<Tile>(weight, x, problem, ring, first, end),
        ready_(min(Producer<Tile>::kStages, this->count_)) {}

  __device__ void start() {
    prefetch(this->x_);
#pragma unroll 1
    for (int i = 0; i < min(kAhead, ready_); ++i) this->copy_next_weight(i);
  }

  // Adapters' rows go before further weights.
  __device__ void run(Barrier& listed) {
    const int release = max(this->count_ - kLead, ready_);
    if (release >= this->count_) let_next_start();
    listed.wait_phase(0);
#pragma unroll 1
    for (int i = kAhead; i < ready_; ++i) this->copy_next_weight(i);
    this->x_chunk_ = (this->x_chunk_ + ready_) % this->problem_.chunks;
    wait_for_previous();
    this->template copy_rest<kMost>(release);
  }

 private:
  static constexpr int kAhead = 3;  // of weights, ahead of the adapters' rows
  // With fewer weights on their way, what adapters ask for comes sooner.
  static constexpr int kMost = 4;
  static_assert(kMost <= Producer<Tile>::kStages);

  const int ready_;  // chunks that need not wait for a stage
};

template <typename Tile> struct AdaptedShared {
  Ring<Tile> ring;
  Desk<Tile> desk;
};
static_assert(sizeof(AdaptedShared<Tiling<32, 64>>) <= 227 * 1024);
static_assert(sizeof(AdaptedShared<Tiling<64, 64>>) <= 227 * 1024);

template <typename Tile> constexpr int kAdaptedThreads = kThreads + kAdapterThreads<Tile>;
// A quarter of the registers is left. With 96 and 128, where a block of 512 threads of 32 registers
// fits in for sure, products spilled, and a step took 1 % longer; with 80, where attention's does,
// 3 %.
template <typename Tile>
constexpr int kRegisters = (65536 - 512 * 32) / kAdaptedThreads<Tile> / 8 * 8;

template <typename T, typename Tile>
__global__ void __maxnreg__(kRegisters<Tile>)
    adapted_kernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap x, const __grid_constant__ Problem problem,
                   const __grid_constant__ Adapters adapters) {
  extern __shared__ __align__(1024) char shared[];
  auto& [ring, desk] = *reinterpret_cast<AdaptedShared<Tile>*>(shared);
  const int first = start_of(problem, blockIdx.x), end = start_of(problem, blockIdx.x + 1);
  AdaptedProducer<Tile> producer(weight, x, problem, ring, first, end);
  if (threadIdx.x == kConsumers) {
    for (int i = 0; i < Ring<Tile>::kStages; ++i) {
      ring.full[i].init(1);
      ring.empty[i].init(kConsumers / 32);
    }
    desk.init();
    publish_barriers();
    producer.start();
  }
  Shrinker<T, Tile> shrinker(adapters, problem, desk);
  if (threadIdx.x >= kThreads) shrinker.start();
  __syncthreads();
  if (threadIdx.x == 0) {
    wait_for_previous();
    producer.copy_first_x();
  }
  if (threadIdx.x < kConsumers) {
    Taker<Tile> taker(problem, desk);
    Consumer<T, Tile, Taker<Tile>&>(problem, ring, taker).run(first, end);
  } else if (threadIdx.x == kConsumers) {
    producer.run(desk.listed);
  } else if (threadIdx.x >= kThreads) {
    shrinker.run();
    const int tile = (first + problem.chunks - 1) / problem.chunks;
    Expander<T, Tile> expander(adapters, problem, desk, tile, end);
    if (desk.num_runs == 0) return;
    expander.start();
    wait_for_previous();
    expander.run(shrinker);
    shrinker.sweep();
  }
}

}  // namespace octavo::linear
