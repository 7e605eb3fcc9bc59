// What kernels for Hopper need beyond cuda_emulation.h: a stand-in for cuda/primitives/ptx.cuh and,
// in sm90_products.h and sm90_register_products.h, those for cuda/primitives/wgmma.cuh and
// wgmma_registers.cuh. Include them before the kernel's header; CUDA's own headers are replaced by
// those in cuda_headers. They need -fno-strict-aliasing, as the kernels' own conversions do.
//
// Whatever is asynchronous happens as late as its wait allows: copies, stores and matrix products
// touch memory when they are waited for, in the groups in which they were committed. What is
// synchronous for a warp is so here, too; elsewhere each of its lanes comes when it likes.
//
// Every address is checked: those of tensors against what a test allows, shared ones against the
// block's size, and both for alignment. A product's operands must stay as they are until it is
// waited for, and nothing may be left unwaited for at a block's end.
#ifndef TRANSCONV_TESTS_SM90_EMULATION_H_
#define TRANSCONV_TESTS_SM90_EMULATION_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda_emulation.h"
#include "cuda_headers/cuda_fp16.h"
#include "cuda_headers/vector_types.h"

#define __noinline__

namespace transconv::emulation {

// What happens later, in groups as PTX has them.
struct Groups {
  using Group = std::vector<std::function<void()>>;
  Group open;
  std::deque<Group> committed;
  void Commit() {
    committed.push_back(std::move(open));
    open.clear();
  }
  // Until so many are left.
  void Wait(size_t left) {
    for (; committed.size() > left; committed.pop_front()) {
      for (const auto& happen : committed.front()) happen();
    }
  }
  bool done() const { return open.empty() && committed.empty(); }
};

struct ThreadState {
  Groups stores, copies, products;
  // Whether it has stored cells that tensor cores do not see yet: now, and when its warp met last,
  // the time before that in turns.
  bool unfenced = false, unfenced_at[2] = {};
  bool waited = false;  // for the kernels before
};
constexpr unsigned kMostThreads = 1024;
inline std::array<ThreadState, kMostThreads> states;
inline ThreadState& Mine() { return states[::threadIdx.x]; }
inline std::map<uint32_t, Groups::Group> loads;  // by their barrier
// Copies of threads that arrive at a barrier when they are done, by that barrier.
inline std::map<uint32_t, Groups::Group> arrivals;
inline Barrier named_barriers[16];

// What may be read or written.
struct Global {
  struct Range {
    const char *begin, *end;
    bool earlier;  // what a kernel before has written
  };
  std::vector<Range> ranges;
  void Allow(const void* p, size_t bytes, bool earlier = false) {
    const char* const begin = static_cast<const char*>(p);
    ranges.push_back({begin, begin + bytes, earlier});
  }
  void Check(const void* p, size_t bytes, size_t alignment) const {
    if (reinterpret_cast<uintptr_t>(p) % alignment != 0) Fail("a global address is not aligned");
    const char* const at = static_cast<const char*>(p);
    for (const Range& range : ranges) {
      if (at < range.begin || at + bytes > range.end) continue;
      if (range.earlier && !Mine().waited) Fail("the kernel before may not have written this");
      return;
    }
    Fail("an address lies outside of its tensor");
  }
};
inline Global readable, writable;

constexpr uint32_t kSharedBase = 1024;  // as on a GPU, where no shared address is zero
inline uint8_t* Shared(uint32_t at, size_t bytes, size_t alignment) {
  if (at < kSharedBase || at - kSharedBase + bytes > block.shared.size() * 8) {
    Fail("an address lies outside of shared memory");
  }
  if (at % alignment != 0) Fail("a shared address is not aligned");
  return reinterpret_cast<uint8_t*>(block.shared.data()) + (at - kSharedBase);
}

// A barrier in shared memory.
struct MemoryBarrier {
  int16_t expected, arrived;
  int32_t bytes : 31;  // that are missing
  uint32_t phase : 1;
};
static_assert(sizeof(MemoryBarrier) == 8);
inline MemoryBarrier* BarrierAt(uint32_t barrier) {
  return reinterpret_cast<MemoryBarrier*>(Shared(barrier, 8, 8));
}
inline void Change(uint32_t barrier, int arrivals, int bytes) {
  MemoryBarrier* const b = BarrierAt(barrier);
  b->arrived = static_cast<int16_t>(b->arrived + arrivals);
  b->bytes += bytes;
  if (b->arrived > b->expected) Fail("a barrier has too many arrivals");
  if (b->arrived == b->expected && b->bytes == 0) {
    b->arrived = 0;
    b->phase ^= 1;
    block.moved = true;
  }
}

inline Warp& ThisWarp() { return block.warps[::threadIdx.x / kWarp]; }
inline void SyncWarp() {
  Barrier& barrier = ThisWarp().barrier;
  ThreadState& mine = Mine();
  mine.unfenced_at[barrier.generation % 2] = mine.unfenced;
  Wait(&barrier);
}
// What one lane says of its warp's cells holds when the warp met last.
inline void CheckFences() {
  const unsigned met = ThisWarp().barrier.generation - 1;
  const unsigned first = ::threadIdx.x / kWarp * kWarp;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (states[first + lane].unfenced_at[met % 2]) Fail("cells lack a fence");
  }
}

// f(values) of all lanes of a warp.
template <typename T, typename F>
T OfWarp(T value, const F& f) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Warp& warp = ThisWarp();
  std::memcpy(&warp.slots[::threadIdx.x % kWarp], &value, sizeof(T));
  SyncWarp();
  std::array<T, kWarp> all;
  for (int i = 0; i < kWarp; ++i) std::memcpy(&all[i], &warp.slots[i], sizeof(T));
  SyncWarp();
  return f(all);
}

// As Launch, with what is asked of a thread at its block's end.
template <typename Kernel>
void LaunchSm90(unsigned grid, unsigned threads, size_t shared_bytes, const Kernel& kernel) {
  if (threads > kMostThreads) Fail("a block has too many threads");
  Launch(grid, threads, shared_bytes, [&] {
    ThreadState& mine = Mine() = {};
    kernel();
    if (!mine.stores.done()) Fail("a store is not waited for");
    if (!mine.copies.done()) Fail("a copy is not waited for");
    if (!mine.products.done()) Fail("a product is not waited for");
    __syncthreads();
    if (::threadIdx.x == 0 && !loads.empty()) Fail("a bulk load is not waited for");
    if (::threadIdx.x == 0 && !arrivals.empty()) Fail("an arrival is not waited for");
  });
}

}  // namespace transconv::emulation

inline void __syncwarp() { transconv::emulation::SyncWarp(); }
inline uint32_t __reduce_max_sync(unsigned, uint32_t v) {
  return transconv::emulation::OfWarp(
      v, [](const auto& all) { return *std::max_element(all.begin(), all.end()); });
}
template <typename T>
T __shfl_sync(unsigned, T v, int lane) {
  return transconv::emulation::OfWarp(
      v, [lane](const auto& all) { return all[static_cast<size_t>(lane)]; });
}

namespace transconv::cuda::ptx {

inline uint32_t SharedAddress(const void* p) {
  const ptrdiff_t at = static_cast<const uint8_t*>(p) - SharedMemory();
  if (at < 0) emulation::Fail("an address lies outside of shared memory");
  const uint32_t address = emulation::kSharedBase + static_cast<uint32_t>(at);
  emulation::Shared(address, 0, 1);
  return address;
}

inline void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  *emulation::BarrierAt(barrier) = {static_cast<int16_t>(arrivals), 0, 0, 0};
}
inline void BarrierInitFence() {}
inline void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  emulation::CheckFences();
  emulation::Change(barrier, 1, static_cast<int>(bytes));
}
inline void BarrierArrive(uint32_t barrier) { BarrierArriveExpect(barrier, 0); }
// For the end of a phase of this parity: the present one is another.
inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  const emulation::MemoryBarrier* const b = emulation::BarrierAt(barrier);
  if (b->expected <= 0) emulation::Fail("a barrier is not set up");
  while (b->phase == parity) {
    if (b->arrived == b->expected) {  // bytes alone are missing
      const auto arriving = emulation::loads.extract(barrier);
      if (!arriving.empty()) {
        for (const auto& happen : arriving.mapped()) happen();
        continue;
      }
    }
    const auto arriving = emulation::arrivals.extract(barrier);
    if (!arriving.empty()) {
      for (const auto& happen : arriving.mapped()) happen();
      continue;
    }
    emulation::Yield();
  }
}
template <int kThreads>
void NamedBarrierOf(int barrier) {
  if (barrier < 1 || barrier > 15) emulation::Fail("there is no such barrier");
  emulation::Barrier& b = emulation::named_barriers[barrier];
  if (b.arrived > 0 && b.expected != kThreads) emulation::Fail("a barrier's threads disagree");
  b.expected = kThreads;
  emulation::Wait(&b);
}
template <int kBarrier, int kThreads>
void NamedBarrier() {
  NamedBarrierOf<kThreads>(kBarrier);
}

inline void WaitForKernelsBefore() { emulation::Mine().waited = true; }
inline void LetKernelBehindStart() {}

inline void CheckBulk(uint32_t shared, uint32_t bytes) {
  if (bytes % 16 != 0) emulation::Fail("a bulk copy is no whole number of 16 bytes");
  emulation::Shared(shared, bytes, 16);
}
inline void BulkLoad(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulation::readable.Check(global, bytes, 16);
  CheckBulk(shared, bytes);
  emulation::loads[barrier].push_back([=] {
    std::memcpy(emulation::Shared(shared, bytes, 16), global, bytes);
    emulation::Change(barrier, 0, -static_cast<int>(bytes));
  });
}
inline void BulkStore(void* global, uint32_t shared, uint32_t bytes) {
  emulation::writable.Check(global, bytes, 16);
  CheckBulk(shared, bytes);
  emulation::Mine().stores.open.push_back(
      [=] { std::memcpy(global, emulation::Shared(shared, bytes, 16), bytes); });
}
inline void BulkCommit() { emulation::Mine().stores.Commit(); }
template <int kPending>
void BulkWaitRead() {
  emulation::Mine().stores.Wait(kPending);
}
template <int kPending>
void BulkWait() {
  BulkWaitRead<kPending>();
}
inline void FenceAsync() { emulation::Mine().unfenced = false; }

template <int kRegisters>
void RegistersUp() {}
template <int kRegisters>
void RegistersDown() {}

template <int kBytes>
void CopyAsync(uint32_t shared, const void* global, bool wanted) {
  if (wanted) emulation::readable.Check(global, kBytes, kBytes);
  uint8_t* const to = emulation::Shared(shared, kBytes, kBytes);
  emulation::Mine().copies.open.push_back([=] {
    std::memset(to, 0, kBytes);
    if (wanted) std::memcpy(to, global, kBytes);
    if (kBytes > 4) emulation::Mine().unfenced = true;  // cells, where single values are none yet
  });
}
inline void CopyAsync4(uint32_t shared, const void* global, bool wanted) {
  CopyAsync<4>(shared, global, wanted);
}
inline void CopyAsync8(uint32_t shared, const void* global, bool wanted) {
  CopyAsync<8>(shared, global, wanted);
}
inline void CopyAsync16(uint32_t shared, const void* global, bool wanted) {
  CopyAsync<16>(shared, global, wanted);
}
inline void CopyAsyncArrive(uint32_t barrier) {
  emulation::Groups& copies = emulation::Mine().copies;
  copies.Commit();
  emulation::Groups::Group& late = emulation::arrivals[barrier];
  for (auto& group : copies.committed) {
    for (auto& happen : group) late.push_back(std::move(happen));
  }
  copies.committed.clear();
  late.push_back([=] { emulation::Change(barrier, 1, 0); });
  emulation::block.moved = true;
}
inline void CopyAsyncCommit() { emulation::Mine().copies.Commit(); }
template <int kPending>
void CopyAsyncWait() {
  emulation::Mine().copies.Wait(kPending);
}

template <typename T>
T LoadSharedAs(uint32_t shared) {
  T v;
  std::memcpy(&v, emulation::Shared(shared, sizeof(T), sizeof(T)), sizeof(T));
  return v;
}
inline float LoadShared(uint32_t shared) { return LoadSharedAs<float>(shared); }
inline uint32_t LoadSharedWord(uint32_t shared) { return LoadSharedAs<uint32_t>(shared); }
inline uint2 LoadShared64(uint32_t shared) { return LoadSharedAs<uint2>(shared); }
inline uint4 LoadShared128(uint32_t shared) { return LoadSharedAs<uint4>(shared); }
// Of cells, or parts of cells: kernels store other things without these.
inline void StoreCells(uint32_t shared, const void* v, size_t bytes) {
  std::memcpy(emulation::Shared(shared, bytes, bytes), v, bytes);
  emulation::Mine().unfenced = true;
}
inline void StoreShared16(uint32_t shared, uint32_t v) {
  const uint16_t half = static_cast<uint16_t>(v);
  StoreCells(shared, &half, 2);
}
inline void StoreSharedWord(uint32_t shared, uint32_t v) { StoreCells(shared, &v, 4); }
inline void StoreShared64(uint32_t shared, uint2 v) { StoreCells(shared, &v, 8); }
inline void StoreShared128(uint32_t shared, uint4 v) { StoreCells(shared, &v, 16); }
inline void StoreShared128If(uint32_t shared, uint4 v, bool wanted) {
  if (wanted) StoreShared128(shared, v);
}
template <typename T>
T LoadIf(const T* p, uint32_t wanted) {
  if (wanted == 0) return T{0};
  emulation::readable.Check(p, sizeof(T), sizeof(T));
  return *p;
}
inline void PrefetchIf(const void* p, bool wanted) {
  if (wanted) emulation::readable.Check(p, 1, 1);
}
inline int Late(int v) { return v; }
inline const char* Advance(const char* p, uint32_t k, uint32_t bytes) {
  return p + static_cast<uint64_t>(k) * bytes;
}

inline uint32_t PackHalf2(float lo, float hi) {
  return emulation::BitsOf<uint32_t>(__floats2half2_rn(lo, hi));
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

#endif  // TRANSCONV_TESTS_SM90_EMULATION_H_
