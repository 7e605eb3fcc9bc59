// What kernels for Hopper need beyond cuda_emulation.h: a stand-in for cuda/primitives/ptx.cuh and,
// in sm90_products.h and sm90_register_products.h, those for cuda/primitives/wgmma.cuh and
// wgmma_registers.cuh. Include them before the kernel's header; CUDA's own headers are replaced by
// those in cuda_headers. They need -fno-strict-aliasing, as the kernels' own conversions do.
//
// Whatever is asynchronous happens as late as its wait allows: copies, stores and matrix products
// touch memory when they are waited for, in the groups in which they were committed; what a copy
// writes is poisoned until then. What is synchronous for a warp is so here, too; elsewhere each of
// its lanes comes when it likes.
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
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/primitives/box.cuh"
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
  std::function<void()> told;  // the copies that a barrier has been told of
  // Whether it has stored cells that tensor cores do not see yet: now, and when its warp met last,
  // the time before that in turns.
  bool unfenced = false, unfenced_at[2] = {};
  bool waited = false;  // for the kernels before
};
constexpr unsigned kMostThreads = 1024;
inline std::array<ThreadState, kMostThreads> states[kMostBlocks];
inline ThreadState& Mine() { return states[rank][::threadIdx.x]; }
inline std::map<uint32_t, Groups::Group> loads;     // by their barrier
inline std::map<uint32_t, Groups::Group> arrivals;  // of threads whose copies are under way
inline Barrier named_barriers[kMostBlocks][16];

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
constexpr int kRankBit = 24;            // above it, an address has its block's rank
inline uint8_t* SharedOf(uint32_t at, size_t bytes, size_t alignment, unsigned owner) {
  std::vector<uint64_t>& shared = blocks[owner].shared;
  at &= (1u << kRankBit) - 1;
  if (at < kSharedBase || at - kSharedBase + bytes > shared.size() * 8) {
    Fail("an address lies outside of shared memory");
  }
  if (at % alignment != 0) Fail("a shared address is not aligned");
  return reinterpret_cast<uint8_t*>(shared.data()) + (at - kSharedBase);
}
// Of this block. Descriptors have no rank.
inline uint8_t* Shared(uint32_t at, size_t bytes, size_t alignment) {
  const uint32_t owner = at >> kRankBit;
  if (owner != 0 && owner != rank) Fail("an address lies in another block");
  return SharedOf(at, bytes, alignment, rank);
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
// Counts what those who wait at one may have waited for; some barriers share a number.
inline unsigned& ChangesOf(uint32_t barrier) {
  static unsigned changes[1 << 10] = {};
  return changes[(barrier >> 3) % std::size(changes)];
}
inline void Change(uint32_t barrier, int arrivals, int bytes) {
  MemoryBarrier* const b = BarrierAt(barrier);
  ++ChangesOf(barrier);
  b->arrived = static_cast<int16_t>(b->arrived + arrivals);
  b->bytes += bytes;
  machine.moved = true;  // who waits may let happen what is under way
  if (b->arrived > b->expected) Fail("a barrier has too many arrivals");
  if (b->arrived == b->expected && b->bytes == 0) {
    b->arrived = 0;
    b->phase ^= 1;
  }
}

inline Warp& ThisWarp() { return ThisBlock().warps[::threadIdx.x / kWarp]; }
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
    if (states[rank][first + lane].unfenced_at[met % 2]) Fail("cells lack a fence");
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
void LaunchSm90(unsigned grid, unsigned threads, size_t shared_bytes, const Kernel& kernel,
                unsigned cluster = 1) {
  if (threads > kMostThreads) Fail("a block has too many threads");
  const auto body = [&] {
    ThreadState& mine = Mine() = {};
    kernel();
    if (!mine.stores.done()) Fail("a store is not waited for");
    if (!mine.copies.done()) Fail("a copy is not waited for");
    if (!mine.products.done()) Fail("a product is not waited for");
    __syncthreads();
    if (::threadIdx.x != 0) return;
    for (const auto* later : {&loads, &arrivals}) {
      for (const auto& [barrier, _] : *later) {
        if (barrier >> kRankBit == rank) Fail("what a barrier is told of is not waited for");
      }
    }
  };
  Launch(grid, threads, shared_bytes, body, cluster, true);
}

}  // namespace transconv::emulation

// Threads take turns.
inline uint32_t atomicMax(uint32_t* at, uint32_t v) {
  const uint32_t before = *at;
  *at = std::max(before, v);
  return before;
}

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
  const uint32_t address =
      emulation::kSharedBase + static_cast<uint32_t>(at) + (emulation::rank << emulation::kRankBit);
  emulation::Shared(address, 0, 1);
  return address;
}

inline void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  *emulation::BarrierAt(barrier) = {static_cast<int16_t>(arrivals), 0, 0, 0};
  ++emulation::ChangesOf(barrier);
}
inline void BarrierInitFence() {}
inline void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  emulation::CheckFences();
  emulation::Change(barrier, 1, static_cast<int>(bytes));
}
inline void BarrierArrive(uint32_t barrier) { BarrierArriveExpect(barrier, 0); }
inline void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  emulation::Change(barrier, 0, static_cast<int>(bytes));
}
// For the end of a phase of this parity: the present one is another.
inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  const emulation::MemoryBarrier* const b = emulation::BarrierAt(barrier);
  if (b->expected <= 0) emulation::Fail("a barrier is not set up");
  const auto happen = [barrier](auto* later) {
    const auto mine = later->extract(barrier);
    if (mine.empty()) return false;
    for (const auto& one : mine.mapped()) one();
    return true;
  };
  while (b->phase == parity) {
    // Nothing but what is under way is missing; then bytes alone.
    const auto arriving = emulation::arrivals.find(barrier);
    const bool last = arriving != emulation::arrivals.end() &&
                      b->arrived + static_cast<int>(arriving->second.size()) == b->expected;
    if (last && happen(&emulation::arrivals)) continue;
    if (b->arrived == b->expected && happen(&emulation::loads)) continue;
    emulation::YieldUntil(&emulation::ChangesOf(barrier));
  }
}
template <int kThreads>
void NamedBarrierOf(int barrier) {
  if (barrier < 1 || barrier > 15) emulation::Fail("there is no such barrier");
  emulation::Barrier& b = emulation::named_barriers[emulation::rank][barrier];
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
  std::memset(emulation::Shared(shared, bytes, 16), 0xff, bytes);
  ++emulation::ChangesOf(barrier);
  emulation::loads[barrier].push_back([=] {
    std::memcpy(emulation::Shared(shared, bytes, 16), global, bytes);
    emulation::Change(barrier, 0, -static_cast<int>(bytes));
  });
}
// A map is a tensor's address here.
inline BoxMap MapOf(const BoxTensor* tensor) {
  BoxMap map{};
  std::memcpy(map.opaque, &tensor, sizeof(tensor));
  return map;
}
inline void BoxLoad(uint32_t shared, const BoxMap& map, const BoxPlace& place, uint32_t barrier) {
  const BoxTensor* tensor;
  std::memcpy(&tensor, map.opaque, sizeof(tensor));
  const uint32_t element = tensor->element;
  uint32_t count[5], bytes = element;
  for (int d = 0; d < 5; ++d) {
    if (tensor->box[d] > kMostBox || tensor->step[d] > kMostBoxStep) emulation::Fail("a large box");
    count[d] = (tensor->box[d] + tensor->step[d] - 1) / tensor->step[d];
    bytes *= count[d];
  }
  if (tensor->step[0] != 1 || count[0] * element % 16 != 0) {
    emulation::Fail("a box's rows have holes");
  }
  if (tensor->swizzled && (count[0] * element != 128 || shared % 1024 != 0)) {
    emulation::Fail("a box is no whole swizzle");
  }
  uint64_t starts = reinterpret_cast<uintptr_t>(tensor->base);
  for (const uint64_t stride : tensor->stride) starts |= stride;
  if (starts % 16 != 0) emulation::Fail("a box's tensor is not aligned");
  emulation::Shared(shared, bytes, 128);
  std::memset(emulation::Shared(shared, bytes, 128), 0xff, bytes);
  ++emulation::ChangesOf(barrier);
  emulation::loads[barrier].push_back([=] {
    uint8_t* const box = emulation::Shared(shared, bytes, 128);
    uint32_t at[5];
    for (uint32_t i = 0; i < bytes / element; ++i) {
      uint32_t byte = i * element;
      if (tensor->swizzled) byte ^= (byte >> 7 & 7) << 4;
      uint8_t* const to = box + byte;
      uint32_t rest = i;
      bool inside = true;
      const uint8_t* from = static_cast<const uint8_t*>(tensor->base);
      for (int d = 0; d < 5; ++d) {
        at[d] = rest % count[d] * tensor->step[d];
        rest /= count[d];
        const int64_t where = int64_t{place.at[d]} + at[d];
        inside = inside && where >= 0 && where < static_cast<int64_t>(tensor->size[d]);
        from += where * static_cast<int64_t>(d == 0 ? element : tensor->stride[d - 1]);
      }
      if (inside) emulation::readable.Check(from, element, element);
      if (inside) std::memcpy(to, from, element);
      if (!inside) std::memset(to, 0, element);
    }
    emulation::Change(barrier, 0, -static_cast<int>(bytes));
  });
}
inline void StoreFirstOut(float* p, float4 v) { *reinterpret_cast<float4*>(p) = v; }
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
  std::memset(to, 0xff, kBytes);
  emulation::Mine().copies.open.push_back([=, mine = &emulation::Mine()] {
    std::memset(to, 0, kBytes);
    if (wanted) std::memcpy(to, global, kBytes);
    if (kBytes > 4) mine->unfenced = true;  // cells, where single values are none yet
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
// Arrives when this thread's copies so far have ended.
inline void CopyAsyncArrive(uint32_t barrier) {
  emulation::Groups& copies = emulation::Mine().copies;
  const auto batch = std::make_shared<emulation::Groups::Group>();
  for (const auto& group : copies.committed) {
    batch->insert(batch->end(), group.begin(), group.end());
  }
  copies.committed.clear();
  batch->insert(batch->end(), copies.open.begin(), copies.open.end());
  copies.open.clear();
  // By whichever is waited for first: the barrier, or the copies.
  const auto once = [batch] {
    for (const auto& copy : std::exchange(*batch, {})) copy();
  };
  auto& told = emulation::Mine().told;
  if (told) batch->insert(batch->begin(), told);
  told = once;
  emulation::Groups::Group& arriving = emulation::arrivals[barrier];
  emulation::machine.moved = true;
  ++emulation::ChangesOf(barrier);
  arriving.push_back([=] {
    once();
    emulation::Change(barrier, 1, 0);
  });
  const emulation::MemoryBarrier* const b = emulation::BarrierAt(barrier);
  if (b->arrived + static_cast<int>(arriving.size()) > b->expected) {
    emulation::Fail("a barrier has too many arrivals");
  }
}
inline void CopyAsyncCommit() { emulation::Mine().copies.Commit(); }
template <int kPending>
void CopyAsyncWait() {
  if (const auto& told = emulation::Mine().told) told();
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
#define TRANSCONV_CUDA_PRIMITIVES_BOX_LOAD_CUH_

namespace transconv::cuda::mma {

// By a shared address.
inline void LoadMatricesTransposed(uint32_t (&r)[4], uint32_t shared) {
  LoadMatricesTransposed(r, reinterpret_cast<SharedPlace>(emulation::Shared(shared, 16, 16)));
}
inline void StoreMatricesTransposed(uint32_t shared, const uint32_t (&r)[4]) {
  uint8_t* const to = emulation::Shared(shared, 16, 16);
  const size_t lane = threadIdx.x % emulation::kWarp, column = lane % 8;
  for (size_t i = 0; i < 4; ++i) {
    emulation::OfWarp(r[i], [&](const auto& all) {
      for (size_t row = 0; row < 8 && lane / 8 == i; ++row) {
        const uint16_t v = static_cast<uint16_t>(all[4 * row + column / 2] >> (16 * (column % 2)));
        std::memcpy(to + 2 * row, &v, 2);
      }
      return 0;
    });
  }
}

}  // namespace transconv::cuda::mma

namespace transconv::cuda::cluster {

// In place of cuda/primitives/cluster.cuh.
inline uint32_t Rank() { return emulation::rank; }
inline void Sync() { emulation::Wait(&emulation::machine.cluster); }
inline void SyncToLeave() { Sync(); }
inline uint32_t AddressIn(uint32_t shared, uint32_t rank) {
  emulation::Shared(shared, 0, 1);
  return (shared & ((1u << emulation::kRankBit) - 1)) | rank << emulation::kRankBit;
}
inline float4 LoadShared128(uint32_t address) {
  float4 v;
  std::memcpy(&v, emulation::SharedOf(address, 16, 16, address >> emulation::kRankBit), 16);
  return v;
}

}  // namespace transconv::cuda::cluster
#define TRANSCONV_CUDA_PRIMITIVES_CLUSTER_CUH_

#endif  // TRANSCONV_TESTS_SM90_EMULATION_H_
