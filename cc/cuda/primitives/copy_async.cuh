// Copies of a few values to shared memory that nobody waits for until CopyAsyncDone or
// CopyAsyncWait; a header of its own, so that an emulation can replace it.
#ifndef TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_

#include <cstdint>

namespace transconv::cuda {

// kBytes is 4, 8 or 16, and both sides are aligned to it. Zeros where not `wanted`: then nothing is
// read. Cards before compute capability 8.0 wait for each copy.
template <int kBytes>
__device__ __forceinline__ void CopyAsyncBytes(void* shared, const void* global, bool wanted) {
#if __CUDA_ARCH__ >= 800
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t bytes = wanted ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %3, %2;" ::"r"(to), "l"(global),
                 "r"(bytes), "n"(kBytes)
                 : "memory");
  }
#else
  const uint32_t* const from = static_cast<const uint32_t*>(global);
#pragma unroll
  for (int i = 0; i < kBytes / 4; ++i) {
    static_cast<uint32_t*>(shared)[i] = wanted ? from[i] : 0;
  }
#endif
}
// The same of one, two or four floats.
template <int kCount>
__device__ __forceinline__ void CopyAsync(float* shared, const float* global, bool wanted) {
  CopyAsyncBytes<4 * kCount>(shared, global, wanted);
}

// Waits for this thread's copies; a barrier then shows them to the others.
__device__ __forceinline__ void CopyAsyncDone() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void CopyAsyncCommit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most the last kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
