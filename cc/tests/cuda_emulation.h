// Runs kernels of plain CUDA C++ on the CPU, so that their index arithmetic is proven where there
// is no GPU. Include it before the kernel's header.
//
// What it knows: threadIdx, blockIdx, blockDim, gridDim in x; __syncthreads by every thread of a
// block; static shared arrays; dynamic shared memory through cuda::SharedMemory
// (cuda/primitives/shared_memory.cuh); shuffles by xor, TF32 products
// (cuda/primitives/tf32.cuh) and those of 16 bits (cuda/primitives/mma.cuh) by every lane of a
// warp; copies that are waited for later (cuda/primitives/copy_async.cuh). Shared memory starts
// every block poisoned, and is so again at its end.
//
// A block's threads take turns on one of the CPU's: each runs to its next barrier, in an order that
// is drawn anew each time, the same in every run. Where a barrier is missing, some order shows it.
// Blocks run one after the other, those of a cluster together.
#ifndef TRANSCONV_TESTS_CUDA_EMULATION_H_
#define TRANSCONV_TESTS_CUDA_EMULATION_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
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
  unsigned x = 0, y = 0;  // y of whatever has one alone
};

constexpr int kWarp = 32;

struct Barrier {
  int expected = 0, arrived = 0;
  unsigned generation = 0;
};

// One thread of the block: where it stopped, and its stack.
struct Turn {
  static constexpr size_t kStack = 256 << 10;
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool done = false;
  // What it waits for is another number than this one; it is not woken in vain.
  const unsigned* changes = nullptr;
  unsigned last = 0;
  bool Waits() const { return changes != nullptr && *changes == last; }
};

// One warp's meeting place for shuffles and products.
struct Warp {
  Barrier barrier;
  uint64_t slots[kWarp];
  // Two, in turns: a lane reads one until all lanes have filled the other.
  float operands[2][kWarp][6];
  double wide[2][kWarp][6];
  uint32_t words[2][kWarp][6];
  unsigned products[kWarp] = {};  // of each lane so far
};

struct Block {
  unsigned index = 0;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<uint64_t> shared;  // aligned for every type
  std::vector<Turn> turns;       // kept from launch to launch for their stacks
  std::vector<std::vector<std::function<void()>>> copies;  // of each thread, not waited for yet
  std::vector<std::vector<size_t>> groups;  // of each thread: how many copies a group has
};
constexpr unsigned kMostBlocks = 8;  // of a cluster
inline Block blocks[kMostBlocks];
inline unsigned rank = 0;  // in the cluster, of the block whose thread runs
inline Block& ThisBlock() { return blocks[rank]; }

struct Machine {
  Barrier cluster;
  std::function<void()> body;  // what every thread runs
  ucontext_t scheduler;
  bool moved = false;  // whether a thread ended or did what others may wait for
};
inline Machine machine;

}  // namespace transconv::emulation

inline transconv::emulation::Index threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

namespace transconv::emulation {

[[noreturn]] inline void Fail(const char* what) {
  std::printf("emulation: %s (thread %u of block %u)\n", what, ::threadIdx.x, ::blockIdx.x);
  std::fflush(stdout);
  std::_Exit(1);  // no destructors: this may run on a stack that they free
}

// Lets the others go on until a number changes.
inline void YieldUntil(const unsigned* changes) {
  Turn& turn = ThisBlock().turns[::threadIdx.x];
  turn.changes = changes;
  turn.last = *changes;
  swapcontext(&turn.context, &machine.scheduler);
}

inline void Wait(Barrier* barrier) {
  if (++barrier->arrived == barrier->expected) {
    barrier->arrived = 0;
    ++barrier->generation;
    machine.moved = true;
  }
  if (barrier->arrived != 0) YieldUntil(&barrier->generation);
}

}  // namespace transconv::emulation

inline void __syncthreads() {
  transconv::emulation::Wait(&transconv::emulation::ThisBlock().barrier);
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  auto& warp = transconv::emulation::ThisBlock().warps[threadIdx.x / transconv::emulation::kWarp];
  const unsigned lane = threadIdx.x % transconv::emulation::kWarp;
  std::memcpy(&warp.slots[lane], &value, sizeof(T));
  transconv::emulation::Wait(&warp.barrier);
  T result;
  std::memcpy(&result, &warp.slots[lane ^ mask], sizeof(T));
  transconv::emulation::Wait(&warp.barrier);
  return result;
}

namespace transconv::cuda {

// In place of cuda/primitives/shared_memory.cuh.
inline unsigned char* SharedMemory() {
  return reinterpret_cast<unsigned char*>(emulation::ThisBlock().shared.data());
}
#define TRANSCONV_SHARED_MEMORY(name) unsigned char* const name = ::transconv::cuda::SharedMemory()
using SharedPlace = const char*;
inline SharedPlace PlaceOf(const void* p) { return static_cast<const char*>(p); }
inline float LoadFloat(SharedPlace from) { return *reinterpret_cast<const float*>(from); }
inline uint32_t LoadWord(SharedPlace from) {
  if (reinterpret_cast<uintptr_t>(from) % 4 != 0) emulation::Fail("a word is not aligned");
  return *reinterpret_cast<const uint32_t*>(from);
}
inline void LoadWords(uint32_t (&v)[4], SharedPlace from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulation::Fail("words are not aligned");
  std::memcpy(v, from, 16);
}

}  // namespace transconv::cuda
#define TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_

namespace transconv::emulation {

// d (16 x 8) += a (16 x 8) b (8 x 8) with the places of the instruction; `operands` of the warp.
template <typename T>
void Multiply16x8x8(T (Warp::*operands)[2][kWarp][6], T (&d)[4], const T (&a)[4], T b0, T b1) {
  Warp& warp = ThisBlock().warps[threadIdx.x / kWarp];
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  T(&all)[kWarp][6] = (warp.*operands)[warp.products[lane]++ % 2];
  for (int i = 0; i < 4; ++i) all[lane][i] = a[i];
  all[lane][4] = b0;
  all[lane][5] = b1;
  Wait(&warp.barrier);
  for (int k = 0; k < 8; ++k) {
    for (int i = 0; i < 4; ++i) {
      const T* const row = all[4 * g + k % 4];
      const T* const column = all[4 * (2 * t + i % 2) + k % 4];
      d[i] += row[k / 4 * 2 + i / 2] * column[4 + k / 4];
    }
  }
}

}  // namespace transconv::emulation

namespace transconv::cuda::tf32 {

// In place of cuda/primitives/tf32.cuh, whose element types a test brings itself.
inline void Multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
  emulation::Multiply16x8x8(&emulation::Warp::operands, d, a, b0, b1);
}

}  // namespace transconv::cuda::tf32
#define TRANSCONV_CUDA_PRIMITIVES_TF32_CUH_

namespace transconv::cuda::mma_f64 {

// In place of cuda/primitives/mma_f64.cuh.
inline void Multiply(double (&d)[4], const double (&a)[4], double b0, double b1) {
  emulation::Multiply16x8x8(&emulation::Warp::wide, d, a, b0, b1);
}

}  // namespace transconv::cuda::mma_f64
#define TRANSCONV_CUDA_PRIMITIVES_MMA_F64_CUH_

namespace transconv::cuda::mma {

// In place of cuda/primitives/mma.cuh. `Operand` says what 16 bits are.
inline void LoadMatricesTransposed(uint32_t (&r)[4], SharedPlace from) {
  auto& warp = emulation::ThisBlock().warps[threadIdx.x / emulation::kWarp];
  const int lane = threadIdx.x % emulation::kWarp;
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulation::Fail("a matrix is not aligned");
  warp.slots[lane] = reinterpret_cast<uintptr_t>(from);
  emulation::Wait(&warp.barrier);
  for (int i = 0; i < 4; ++i) {
    r[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const uint64_t row = warp.slots[8 * i + 2 * (lane % 4) + half];
      r[i] |= uint32_t{reinterpret_cast<const uint16_t*>(row)[lane / 4]} << (16 * half);
    }
  }
  emulation::Wait(&warp.barrier);
}

template <typename Operand>
void Multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  auto& warp = emulation::ThisBlock().warps[threadIdx.x / emulation::kWarp];
  const int lane = threadIdx.x % emulation::kWarp, g = lane / 4, t = lane % 4;
  uint32_t (&all)[emulation::kWarp][6] = warp.words[warp.products[lane]++ % 2];
  for (int i = 0; i < 4; ++i) all[lane][i] = a[i];
  all[lane][4] = b0;
  all[lane][5] = b1;
  emulation::Wait(&warp.barrier);
  for (int k = 0; k < 16; ++k) {
    const auto value = [&](uint32_t word) {
      return Operand::Load(static_cast<int16_t>(word >> (k % 2 * 16)));
    };
    for (int i = 0; i < 4; ++i) {
      const uint32_t* const row = all[4 * g + k % 8 / 2];
      const uint32_t* const column = all[4 * (2 * t + i % 2) + k % 8 / 2];
      d[i] += value(row[k / 8 * 2 + i / 2]) * value(column[4 + k / 8]);
    }
  }
}

template <typename Operand>
uint32_t Pack(float first, float second) {
  return uint32_t{static_cast<uint16_t>(Operand::Round(first))} |
         uint32_t{static_cast<uint16_t>(Operand::Round(second))} << 16;
}

template <typename Operand>
float Widen(uint16_t bits) {
  return Operand::Load(static_cast<int16_t>(bits));
}

}  // namespace transconv::cuda::mma
#define TRANSCONV_CUDA_PRIMITIVES_MMA_CUH_

namespace transconv::cuda {

// In place of cuda/primitives/copy_async.cuh. Nothing is copied before it is waited for.
template <int kBytes>
void CopyAsyncBytes(void* shared, const void* global, bool wanted) {
  const bool aligned = reinterpret_cast<uintptr_t>(shared) % kBytes == 0 &&
                       (!wanted || reinterpret_cast<uintptr_t>(global) % kBytes == 0);
  if (!aligned) emulation::Fail("a copy is not aligned");
  emulation::ThisBlock().copies[threadIdx.x].push_back([=] {
    if (wanted) {
      std::memcpy(shared, global, kBytes);
    } else {
      std::memset(shared, 0, kBytes);
    }
  });
}
template <int kCount>
void CopyAsync(float* shared, const float* global, bool wanted) {
  CopyAsyncBytes<4 * kCount>(shared, global, wanted);
}
inline void CopyAsyncDone() {
  auto& copies = emulation::ThisBlock().copies[threadIdx.x];
  for (const auto& copy : copies) copy();
  copies.clear();
  emulation::ThisBlock().groups[threadIdx.x].clear();
}
inline void CopyAsyncCommit() {
  auto& groups = emulation::ThisBlock().groups[threadIdx.x];
  size_t copies = emulation::ThisBlock().copies[threadIdx.x].size();
  for (const size_t group : groups) copies -= group;
  groups.push_back(copies);
}
template <int kPending>
void CopyAsyncWait() {
  auto& copies = emulation::ThisBlock().copies[threadIdx.x];
  auto& groups = emulation::ThisBlock().groups[threadIdx.x];
  while (groups.size() > kPending) {
    const auto end = copies.begin() + static_cast<std::ptrdiff_t>(groups.front());
    std::for_each(copies.begin(), end, [](const auto& copy) { copy(); });
    copies.erase(copies.begin(), end);
    groups.erase(groups.begin());
  }
}

}  // namespace transconv::cuda
#define TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_

namespace transconv::emulation {

// What a thread's context starts in; the scheduler has set threadIdx.
inline void Begin() {
  machine.body();
  ThisBlock().turns[::threadIdx.x].done = true;
  machine.moved = true;
}

// A function of its own: getcontext may return twice, and warnings count the caller's variables.
inline void Prepare(Turn* turn) {
  getcontext(&turn->context);
  turn->context.uc_stack.ss_sp = turn->stack.get();
  turn->context.uc_stack.ss_size = Turn::kStack;
  turn->context.uc_link = &machine.scheduler;
  makecontext(&turn->context, Begin, 0);
  turn->done = false;
  turn->changes = nullptr;
}

// Runs `kernel()` for every thread of every block, cluster after cluster. Where a warp may be late,
// one that is drawn stands still until no other can go on, and then another.
template <typename Kernel>
void Launch(unsigned grid, unsigned threads, size_t shared_bytes, const Kernel& kernel,
            unsigned cluster = 1, bool late = false) {
  if (cluster > kMostBlocks || grid % cluster != 0) Fail("there are no such clusters");
  ::gridDim.x = grid;
  ::blockDim.x = threads;
  const auto poison = [](Block* block) {
    std::fill(block->shared.begin(), block->shared.end(), ~uint64_t{0});
  };
  machine.body = [&] {
    for (unsigned b = rank; b < grid; b += cluster) {
      ::blockIdx.x = ThisBlock().index = b;
      __syncthreads();
      kernel();
      __syncthreads();
      if (::threadIdx.x == 0) poison(&ThisBlock());
    }
  };
  machine.cluster = {static_cast<int>(threads * cluster)};
  for (unsigned r = 0; r < cluster; ++r) {
    Block& block = blocks[r];
    block.index = r;
    block.barrier = {static_cast<int>(threads)};
    block.warps.resize((threads + kWarp - 1) / kWarp);
    for (unsigned w = 0; w < block.warps.size(); ++w) {
      block.warps[w].barrier = {std::min<int>(threads - w * kWarp, kWarp)};
    }
    block.shared.resize((shared_bytes + 7) / 8);
    poison(&block);
    block.copies.resize(threads);
    block.groups.resize(threads);
    if (block.turns.size() < threads) block.turns.resize(threads);
    for (unsigned t = 0; t < threads; ++t) Prepare(&block.turns[t]);
  }
  std::vector<unsigned> order(threads * cluster);
  std::iota(order.begin(), order.end(), 0u);
  const auto turn = [threads](unsigned t) -> Turn& {
    return blocks[t / threads].turns[t % threads];
  };
  std::minstd_rand random;
  constexpr unsigned kNone = ~0u;
  unsigned held = kNone;
  while (!order.empty()) {
    std::shuffle(order.begin(), order.end(), random);
    machine.moved = false;
    for (const unsigned t : order) {
      if (t / kWarp == held || turn(t).Waits()) continue;
      rank = t / threads;
      ::threadIdx.x = t % threads;
      ::blockIdx.x = ThisBlock().index;
      swapcontext(&machine.scheduler, &turn(t).context);
    }
    if (!machine.moved && held == kNone) {
      Fail("threads wait at a barrier that others never reach");
    }
    if (!machine.moved) {
      held = kNone;
    } else if (late && held == kNone) {
      held = order[random() % order.size()] / kWarp;
    }
    order.erase(
        std::remove_if(order.begin(), order.end(), [&](unsigned t) { return turn(t).done; }),
        order.end());
  }
  rank = 0;
}

}  // namespace transconv::emulation

#endif  // TRANSCONV_TESTS_CUDA_EMULATION_H_
