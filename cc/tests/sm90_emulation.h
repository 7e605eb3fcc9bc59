// What kernels for Hopper need beyond cuda_emulation.h, which is included before: stand-ins for
// cuda/primitives/ptx.cuh and cuda/primitives/wgmma.cuh. It needs CUDA's headers, no GPU.
//
// Whatever is asynchronous happens as late as its wait allows: copies, stores and matrix products
// touch memory when they are waited for. What is synchronous for a warp is so here, too: its lanes
// wait for a barrier in shared memory, and for matrix products, together.
#ifndef TRANSCONV_TESTS_SM90_EMULATION_H_
#define TRANSCONV_TESTS_SM90_EMULATION_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda_emulation.h"

#ifndef __noinline__
#define __noinline__
#endif

namespace transconv::emulation {

[[noreturn]] inline void Fail(const char* what) {
  std::printf("emulation: %s (thread %u of block %u)\n", what, ::threadIdx.x, ::blockIdx.x);
  std::exit(1);
}

// What copies may read and write.
struct Global {
  std::vector<std::pair<const char*, const char*>> ranges;
  void Allow(const void* p, size_t bytes) {
    ranges.emplace_back(static_cast<const char*>(p), static_cast<const char*>(p) + bytes);
  }
  void Check(const void* p, size_t bytes) const {
    const char* const at = static_cast<const char*>(p);
    for (const auto& [begin, end] : ranges) {
      if (at >= begin && at + bytes <= end) return;
    }
    Fail("an address lies outside of its tensor");
  }
};
inline Global readable, writable;

using Later = std::vector<std::function<void()>>;
inline void Do(Later* later) {
  for (const auto& f : *later) f();
  later->clear();
}
// Of each thread, by what it waits for.
struct Pending {
  Later stores, products, open;
  std::deque<Later> copies;
};
inline std::map<unsigned, Pending> pending;
inline Pending& Mine() { return pending[::threadIdx.x]; }
inline std::map<int, Barrier> named_barriers;

inline uint8_t* Shared(uint32_t at, size_t bytes, size_t alignment) {
  if (at + bytes > block.shared.size() * 8) Fail("an address lies outside of shared memory");
  if (at % alignment != 0) Fail("a shared address is not aligned");
  return reinterpret_cast<uint8_t*>(block.shared.data()) + at;
}
inline void Aligned(const void* p, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) Fail("a global address is not aligned");
}

// A barrier in shared memory.
struct MemoryBarrier {
  int16_t expected, arrived;
  int32_t state;  // phase in the lowest bit; bytes that are missing above it
};
static_assert(sizeof(MemoryBarrier) == 8);
inline void Change(uint32_t barrier, int arrivals, int bytes) {
  auto* const b = reinterpret_cast<MemoryBarrier*>(Shared(barrier, 8, 8));
  b->arrived = static_cast<int16_t>(b->arrived + arrivals);
  b->state += 2 * bytes;
  if (b->arrived > b->expected) Fail("a barrier has too many arrivals");
  if (b->arrived == b->expected && b->state / 2 == 0) {
    b->arrived = 0;
    b->state ^= 1;
  }
  block.moved = true;
}

template <typename T>
std::array<T, kWarp> OfWarp(T value) {
  Warp& warp = block.warps[::threadIdx.x / kWarp];
  std::memcpy(&warp.slots[::threadIdx.x % kWarp], &value, sizeof(T));
  Wait(&warp.barrier);
  std::array<T, kWarp> all;
  for (int i = 0; i < kWarp; ++i) std::memcpy(&all[i], &warp.slots[i], sizeof(T));
  Wait(&warp.barrier);
  return all;
}

template <typename To, typename From>
To BitsOf(From v) {
  static_assert(sizeof(To) == sizeof(From));
  To r;
  std::memcpy(&r, &v, sizeof(r));
  return r;
}

}  // namespace transconv::emulation

inline void __syncwarp() {
  using transconv::emulation::block, transconv::emulation::kWarp;
  transconv::emulation::Wait(&block.warps[threadIdx.x / kWarp].barrier);
}
inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  const auto all = transconv::emulation::OfWarp(v);
  return *std::max_element(all.begin(), all.end());
}
template <typename T>
T __shfl_sync(unsigned, T v, int lane) {
  return transconv::emulation::OfWarp(v)[static_cast<size_t>(lane)];
}
inline uint32_t __float_as_uint(float v) { return transconv::emulation::BitsOf<uint32_t>(v); }
inline int __float_as_int(float v) { return transconv::emulation::BitsOf<int>(v); }
inline float __uint_as_float(uint32_t v) { return transconv::emulation::BitsOf<float>(v); }
inline float __int_as_float(int v) { return transconv::emulation::BitsOf<float>(v); }
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= (bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}

namespace transconv::cuda::ptx {

inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - emulation::Shared(0, 0, 1));
}

inline void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  *reinterpret_cast<emulation::MemoryBarrier*>(emulation::Shared(barrier, 8, 8)) = {
      static_cast<int16_t>(arrivals), 0, 0};
}
inline void BarrierInitFence() {}
inline void BarrierArrive(uint32_t barrier) { emulation::Change(barrier, 1, 0); }
inline void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  emulation::Change(barrier, 1, static_cast<int>(bytes));
}
inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  const auto* const b =
      reinterpret_cast<emulation::MemoryBarrier*>(emulation::Shared(barrier, 8, 8));
  if (threadIdx.x % emulation::kWarp == 0) {
    while (static_cast<uint32_t>(b->state & 1) == parity) {
      swapcontext(&emulation::block.turns[threadIdx.x].context, &emulation::block.scheduler);
    }
    emulation::block.moved = true;
  }
  __syncwarp();
}
template <int kThreads>
void NamedBarrierOf(int barrier) {
  emulation::Barrier& b = emulation::named_barriers[barrier];
  b.expected = kThreads;
  emulation::Wait(&b);
}
template <int kBarrier, int kThreads>
void NamedBarrier() {
  NamedBarrierOf<kThreads>(kBarrier);
}

inline void BulkLoad(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulation::readable.Check(global, bytes);
  emulation::Aligned(global, 16);
  if (bytes % 16 != 0) emulation::Fail("a bulk copy is no whole number of 16 bytes");
  std::memcpy(emulation::Shared(shared, bytes, 16), global, bytes);
  emulation::Change(barrier, 0, -static_cast<int>(bytes));
}
inline void BulkStore(void* global, uint32_t shared, uint32_t bytes) {
  emulation::writable.Check(global, bytes);
  emulation::Aligned(global, 16);
  if (bytes % 16 != 0) emulation::Fail("a bulk copy is no whole number of 16 bytes");
  emulation::Mine().stores.push_back(
      [=] { std::memcpy(global, emulation::Shared(shared, bytes, 16), bytes); });
}
inline void WaitForKernelsBefore() {}  // kernels run one after the other
inline void LetKernelBehindStart() {}

inline void BulkCommit() {}
template <int kPending>
void BulkWaitRead() {
  static_assert(kPending == 0);
  emulation::Do(&emulation::Mine().stores);
}
template <int kPending>
void BulkWait() {
  BulkWaitRead<kPending>();
}
inline void FenceAsync() {}

template <int kRegisters>
void RegistersUp() {}
template <int kRegisters>
void RegistersDown() {}

inline void CopyAsync4(uint32_t shared, const void* global, bool wanted) {
  if (wanted) {
    emulation::readable.Check(global, 4);
    emulation::Aligned(global, 4);
  }
  uint8_t* const to = emulation::Shared(shared, 4, 4);
  emulation::Mine().open.push_back([=] {
    std::memset(to, 0, 4);
    if (wanted) std::memcpy(to, global, 4);
  });
}
inline void CopyAsyncCommit() {
  emulation::Pending& mine = emulation::Mine();
  mine.copies.push_back(std::move(mine.open));
  mine.open.clear();
}
template <int kPending>
void CopyAsyncWait() {
  auto& copies = emulation::Mine().copies;
  for (; copies.size() > kPending; copies.pop_front()) emulation::Do(&copies.front());
}

inline float LoadShared(uint32_t shared) {
  float v;
  std::memcpy(&v, emulation::Shared(shared, 4, 4), 4);
  return v;
}
inline void StoreShared128(uint32_t shared, uint4 v) {
  std::memcpy(emulation::Shared(shared, 16, 16), &v, 16);
}
inline void StoreShared128If(uint32_t shared, uint4 v, bool wanted) {
  if (wanted) StoreShared128(shared, v);
}
template <typename T>
T LoadIf(const T* p, uint32_t wanted) {
  if (wanted == 0) return T{0};
  emulation::readable.Check(p, sizeof(T));
  return *p;
}
inline const char* Advance(const char* p, uint32_t k, uint32_t bytes) {
  return p + static_cast<uint64_t>(k) * bytes;
}

inline uint32_t PackHalf2(float lo, float hi) {
  return emulation::BitsOf<uint16_t>(__float2half_rn(lo)) |
         static_cast<uint32_t>(emulation::BitsOf<uint16_t>(__float2half_rn(hi))) << 16;
}
inline uint32_t MaxAbsHalf2(uint32_t a, uint32_t b) {
  const auto larger = [](uint32_t x, uint32_t y) {
    x &= 0x7fff;
    y &= 0x7fff;
    return x > 0x7c00 ? y : y > 0x7c00 ? x : std::max(x, y);  // NaN is ignored
  };
  return larger(a, b) | larger(a >> 16, b >> 16) << 16;
}

}  // namespace transconv::cuda::ptx
#define TRANSCONV_CUDA_PRIMITIVES_PTX_CUH_

namespace transconv::cuda::wgmma {

inline uint64_t Descriptor(uint32_t chunk, uint32_t stride) {
  return static_cast<uint64_t>((chunk & 0x3ffff) >> 4) << 16 |
         static_cast<uint64_t>((stride & 0x3ffff) >> 4) << 32;
}
inline void Fence() {}
inline void Commit() {}
template <int kPending>
void Wait() {
  static_assert(kPending == 0);
  emulation::Do(&emulation::Mine().products);
  __syncwarp();
}
template <int N>
void Pin(float (&)[N]) {}

// Sixteen k of one row of a K-major operand.
template <typename Operand>
void LoadRow(uint64_t descriptor, int row, float (&to)[16]) {
  const auto field = [&](int shift) {
    return static_cast<uint32_t>(descriptor >> shift & 0x3fff) * 16;
  };
  for (int k = 0; k < 16; ++k) {
    const uint32_t at =
        field(0) + row % 8 * 16 + row / 8 * field(32) + k / 8 * field(16) + k % 8 * 2;
    Operand v;
    std::memcpy(static_cast<void*>(&v), emulation::Shared(at, 2, 2), 2);
    to[k] = static_cast<float>(v);
  }
}

// A lane's own part.
template <typename Operand, int N>
struct Multiply {
  static void Run(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {
    float* const sums = d;
    emulation::Mine().products.push_back([=] {
      const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
      float rows[2][16], column[16];
      for (int half = 0; half < 2; ++half) {
        LoadRow<Operand>(a, 16 * warp + 8 * half + lane / 4, rows[half]);
      }
      for (int i = 0; i < N / 4; ++i) {
        LoadRow<Operand>(b, 8 * (i / 2) + 2 * (lane % 4) + i % 2, column);
        for (int half = 0; half < 2; ++half) {
          float& to = sums[4 * (i / 2) + 2 * half + i % 2];
          double sum = accumulate != 0 ? to : 0.0;
          for (int k = 0; k < 16; ++k) sum += static_cast<double>(rows[half][k]) * column[k];
          to = static_cast<float>(sum);
        }
      }
    });
  }
};

}  // namespace transconv::cuda::wgmma
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_

#endif  // TRANSCONV_TESTS_SM90_EMULATION_H_
