// Copies of a few float32 values to shared memory that nobody waits for until CopyAsyncDone; a
// header of its own, so that an emulation can replace it.
#ifndef TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_

#include <cstdint>

namespace transconv::cuda {

// kCount is 1, 2 or 4, and both sides are aligned to it. Zeros where not `wanted`: then nothing is
// read.
template <int kCount>
__device__ __forceinline__ void CopyAsync(float* shared, const float* global, bool wanted) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t bytes = wanted ? 4 * kCount : 0;
  if constexpr (kCount == 4) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %3, %2;" ::"r"(to), "l"(global),
                 "r"(bytes), "n"(4 * kCount)
                 : "memory");
  }
}

// Waits for this thread's copies; a barrier then shows them to the others.
__device__ __forceinline__ void CopyAsyncDone() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_COPY_ASYNC_CUH_
