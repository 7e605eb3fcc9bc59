// Runs kernels of plain CUDA C++ on the CPU, one thread for each of a block's, so that their index
// arithmetic is proven where there is no GPU. Include it before the kernel's header.
//
// What it knows: threadIdx, blockIdx, blockDim, gridDim in x; __syncthreads by every thread of a
// block; static shared arrays; dynamic shared memory through cuda::SharedMemory
// (cuda/primitives/shared_memory.cuh); shuffles down by every lane of a warp. Shared memory starts
// every block poisoned.
#ifndef TRANSCONV_TESTS_CUDA_EMULATION_H_
#define TRANSCONV_TESTS_CUDA_EMULATION_H_

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

namespace transconv::emulation {

struct Index {
  unsigned x = 0;
};

constexpr int kWarp = 32;

// One warp's meeting place for shuffles.
struct Warp {
  explicit Warp(int lanes) : barrier(lanes) {}
  std::barrier<> barrier;
  uint64_t slots[kWarp];
};

struct Block {
  std::unique_ptr<std::barrier<>> barrier;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<uint64_t> shared;  // aligned for every type
};
inline Block block;

}  // namespace transconv::emulation

inline thread_local transconv::emulation::Index threadIdx, blockIdx;
inline transconv::emulation::Index blockDim, gridDim;

using std::max;
using std::min;

inline void __syncthreads() { transconv::emulation::block.barrier->arrive_and_wait(); }

template <typename T>
T __shfl_down_sync(unsigned, T value, int step) {
  auto& warp = *transconv::emulation::block.warps[threadIdx.x / transconv::emulation::kWarp];
  const int lane = threadIdx.x % transconv::emulation::kWarp;
  std::memcpy(&warp.slots[lane], &value, sizeof(T));
  warp.barrier.arrive_and_wait();
  T result = value;
  if (lane + step < transconv::emulation::kWarp) {
    std::memcpy(&result, &warp.slots[lane + step], sizeof(T));
  }
  warp.barrier.arrive_and_wait();
  return result;
}

namespace transconv::cuda {

// In place of cuda/primitives/shared_memory.cuh.
inline unsigned char* SharedMemory() {
  return reinterpret_cast<unsigned char*>(emulation::block.shared.data());
}

}  // namespace transconv::cuda
#define TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_

namespace transconv::emulation {

// Runs `kernel()` for every thread of every block, block after block.
template <typename Kernel>
void Launch(unsigned grid, unsigned threads, size_t shared_bytes, const Kernel& kernel) {
  ::gridDim.x = grid;
  ::blockDim.x = threads;
  block.barrier = std::make_unique<std::barrier<>>(threads);
  block.warps.clear();
  for (unsigned first = 0; first < threads; first += kWarp) {
    block.warps.push_back(std::make_unique<Warp>(std::min<int>(threads - first, kWarp)));
  }
  block.shared.resize((shared_bytes + 7) / 8);
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      ::threadIdx.x = t;
      for (unsigned b = 0; b < grid; ++b) {
        ::blockIdx.x = b;
        if (t == 0) std::memset(block.shared.data(), 0xff, block.shared.size() * 8);
        __syncthreads();
        kernel();
        __syncthreads();
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
}

}  // namespace transconv::emulation

#endif  // TRANSCONV_TESTS_CUDA_EMULATION_H_
