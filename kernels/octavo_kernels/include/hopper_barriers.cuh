// Barriers in shared memory, which threads and the copy engine arrive at, and of a block's warps.
#pragma once

#include "octavo.cuh"

namespace octavo::hopper {

// In shared memory an address takes half the registers that a pointer does.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ uint32_t shared_address(uint32_t address) { return address; }

// A barrier in shared memory. Its phases count from 0; before them, one of parity 1 has ended.
struct Barrier {
  // By one thread, before `publish_barriers`.
  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals));
  }

  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this))
                 : "memory");
  }

  // Arrives, and lets the phase end only when `copy_tile` has brought that many bytes as well.
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }

  // Arrives when this thread's `copy_async`s so far have ended.
  __device__ __forceinline__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     shared_address(this))
                 : "memory");
  }

  // Waits until the phase of that parity has ended.
  __device__ __forceinline__ void wait(uint32_t parity) { wait_at(shared_address(this), parity); }

  // The same for a phase by its number.
  __device__ __forceinline__ void wait_phase(uint32_t phase) {
    wait_at(shared_address(this), phase & 1);
  }

  // As `wait`, with a loop that the compiler does not see: it unrolls the loops around it, to a
  // third more code in `linear`'s small tiles, whose products of one layer took 2 % longer.
  __device__ __forceinline__ void wait_unseen(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }

 private:
  __device__ __forceinline__ static void wait_at(uint32_t address, uint32_t parity) {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(address), "r"(parity)
          : "memory");
    } while (!done);
  }

  uint64_t state_;
};

// Makes initialised barriers known to the copy engine.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Makes ordinary writes to shared memory, those that this thread knows of, visible to the tensor
// cores and the copy engine.
__device__ __forceinline__ void publish_shared_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Numbered barriers, 1 to 15, of some of the block's warps: `wait_for_threads` ends when `threads`
// threads, its own included, have come to either function.
__device__ __forceinline__ void wait_for_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void arrive_for_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace octavo::hopper
