// Thin wrappers of the PTX that the kernels need: barriers, bulk copies, fences, packed converts.
#ifndef TRANSCONV_CUDA_PRIMITIVES_PTX_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_PTX_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace transconv::cuda::ptx {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// -- mbarrier --

__device__ __forceinline__ void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool BarrierTryWait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  while (!BarrierTryWait(barrier, parity)) {
  }
}
// A barrier of some of the block's threads, by hardware number.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void NamedBarrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void NamedBarrierOf(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// -- programmatic dependent launch --

// Waits until the kernel in front of this one in the stream has ended and what it wrote is seen,
// and whatever that one waited for; for kernels started by launch/launch_behind.h, which may be
// early. Elsewhere it does nothing.
__device__ __forceinline__ void WaitForKernelsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the kernel behind this one start as soon as all blocks have come this far.
__device__ __forceinline__ void LetKernelBehindStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// -- bulk copies --

__device__ __forceinline__ void BulkLoad(uint32_t shared, const void* global, uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void BulkStore(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void BulkCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most `kPending` groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void BulkWait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Makes this thread's ordinary stores to shared memory visible to tensor cores and bulk copies.
__device__ __forceinline__ void FenceAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// -- registers per thread, moved between the warpgroups of a block --

template <int kRegisters>
__device__ __forceinline__ void RegistersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void RegistersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// -- copies of single values, in groups of this thread --

// Zero where not `wanted`.
__device__ __forceinline__ void CopyAsync4(uint32_t shared, const void* global, bool wanted) {
  asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 4u : 0u)
               : "memory");
}
__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global, bool wanted) {
  asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 8, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 8u : 0u)
               : "memory");
}
__device__ __forceinline__ void CopyAsync16(uint32_t shared, const void* global, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(wanted ? 16u : 0u)
               : "memory");
}
template <int kBytes>
__device__ __forceinline__ void CopyAsync(uint32_t shared, const void* global, bool wanted) {
  if constexpr (kBytes == 16) CopyAsync16(shared, global, wanted);
  if constexpr (kBytes == 8) CopyAsync8(shared, global, wanted);
  if constexpr (kBytes == 4) CopyAsync4(shared, global, wanted);
}
// Arrives when all of this thread's copies so far are done; the barrier counts every thread.
__device__ __forceinline__ void CopyAsyncArrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `kPending` groups are under way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// -- shared memory --

__device__ __forceinline__ float LoadShared(uint32_t shared) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t LoadSharedWord(uint32_t shared) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared) : "memory");
  return v;
}

__device__ __forceinline__ uint2 LoadShared64(uint32_t shared) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared) : "memory");
  return v;
}

__device__ __forceinline__ uint4 LoadShared128(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}

__device__ __forceinline__ void StoreShared16(uint32_t shared, uint32_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(static_cast<uint16_t>(v)) : "memory");
}

__device__ __forceinline__ void StoreShared128(uint32_t shared, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void StoreShared128If(uint32_t shared, uint4 v, bool wanted) {
  asm volatile(
      "{ .reg .pred q; setp.ne.b32 q, %5, 0;\n"
      "@q st.shared.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"r"(shared),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(static_cast<uint32_t>(wanted))
      : "memory");
}

// -- loads that do not stay in the way; zero where `wanted` is --

__device__ __forceinline__ float LoadIf(const float* p, uint32_t wanted) {
  float v;
  asm volatile(
      "{ .reg .pred q; setp.ne.b32 q, %2, 0; mov.f32 %0, 0f00000000;\n"
      "@q ld.global.nc.L2::256B.f32 %0, [%1]; }"
      : "=f"(v)
      : "l"(p), "r"(wanted));
  return v;
}
__device__ __forceinline__ uint16_t LoadIf(const uint16_t* p, uint32_t wanted) {
  uint16_t v;
  asm volatile(
      "{ .reg .pred q; setp.ne.b32 q, %2, 0; mov.b16 %0, 0;\n"
      "@q ld.global.nc.L2::256B.b16 %0, [%1]; }"
      : "=h"(v)
      : "l"(p), "r"(wanted));
  return v;
}
__device__ __forceinline__ uint32_t LoadIf(const uint32_t* p, uint32_t wanted) {
  uint32_t v;
  asm volatile(
      "{ .reg .pred q; setp.ne.b32 q, %2, 0; mov.b32 %0, 0;\n"
      "@q ld.global.nc.L2::256B.b32 %0, [%1]; }"
      : "=r"(v)
      : "l"(p), "r"(wanted));
  return v;
}

// Stores what leaves the caches before anything else.
__device__ __forceinline__ void StoreFirstOut(float* p, float4 v) {
  asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// Brings a line into the second-level cache, where `wanted`; waits for nothing.
__device__ __forceinline__ void PrefetchIf(const void* p, bool wanted) {
  asm volatile(
      "{ .reg .pred q; setp.ne.b32 q, %1, 0;\n"
      "@q prefetch.global.L2 [%0]; }" ::"l"(p),
      "r"(static_cast<uint32_t>(wanted)));
}

// The same value, from which nothing is computed ahead of time: where registers are scarce.
__device__ __forceinline__ int Late(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

// p + k * bytes in one instruction.
__device__ __forceinline__ const char* Advance(const char* p, uint32_t k, uint32_t bytes) {
  uint64_t r;
  asm("mad.wide.u32 %0, %1, %2, %3;"
      : "=l"(r)
      : "r"(k), "r"(bytes), "l"(reinterpret_cast<uint64_t>(p)));
  return reinterpret_cast<const char*>(r);
}

// -- packed 16-bit values: the first argument is the lower half --

__device__ __forceinline__ uint32_t PackHalf2(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// Larger of the magnitudes, per half; NaN is ignored.
__device__ __forceinline__ uint32_t MaxAbsHalf2(uint32_t a, uint32_t b) {
  const __half2 r = __hmax2(__habs2(reinterpret_cast<const __half2&>(a)),
                            __habs2(reinterpret_cast<const __half2&>(b)));
  return reinterpret_cast<const uint32_t&>(r);
}

}  // namespace transconv::cuda::ptx

#endif  // TRANSCONV_CUDA_PRIMITIVES_PTX_CUH_
