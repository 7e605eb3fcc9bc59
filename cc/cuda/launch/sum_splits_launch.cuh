// Launches the sum of splits.
#ifndef TRANSCONV_CUDA_LAUNCH_SUM_SPLITS_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SUM_SPLITS_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/sum_splits.cuh"
#include "cuda/primitives/simt.cuh"

namespace transconv::cuda {

template <typename T>
cudaError_t LaunchSumSplits(const typename Accumulator<T>::type* partial, void* result,
                            int64_t size, int64_t splits, cudaStream_t stream) {
  constexpr int64_t kMany = 1 << 17, kFew = 1 << 12;  // entries that fill a card, or leave it empty
  constexpr int64_t kManySplits = 64;
  constexpr int64_t kMost = int64_t{1} << 40;  // that blocks can be counted
  T* const to = static_cast<T*>(result);
  if constexpr (sizeof(T) < sizeof(double)) {
    const bool vectors = size % 4 == 0 && reinterpret_cast<uintptr_t>(partial) % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(result) % (4 * sizeof(T)) == 0;
    if (vectors && size >= 4 * kMany && size <= kMost) {
      const int64_t fours = size / 4;
      const auto blocks =
          static_cast<unsigned>((fours + kSumSplitsThreads - 1) / kSumSplitsThreads);
      SumSplitsOfFoursKernel<T><<<blocks, kSumSplitsThreads, 0, stream>>>(
          reinterpret_cast<const float4*>(partial), to, fours, splits);
      return cudaGetLastError();
    }
  }
  const auto blocks = [size](int parts) {
    const int64_t width = kSumSplitsThreads / parts;
    return static_cast<unsigned>(std::clamp<int64_t>((size + width - 1) / width, 1, 1 << 20));
  };
  if (size >= kMany || splits < 8) {
    SumSplitsKernel<T, 1><<<blocks(1), kSumSplitsThreads, 0, stream>>>(partial, to, size, splits);
  } else if (size > kFew || splits < kManySplits) {
    SumSplitsKernel<T, 8><<<blocks(8), kSumSplitsThreads, 0, stream>>>(partial, to, size, splits);
  } else {
    SumSplitsKernel<T, 32><<<blocks(32), kSumSplitsThreads, 0, stream>>>(partial, to, size, splits);
  }
  return cudaGetLastError();
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_SUM_SPLITS_LAUNCH_CUH_
