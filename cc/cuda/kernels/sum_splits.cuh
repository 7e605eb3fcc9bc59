// The last step of every reduction that blocks share: the splits of each entry added in a fixed
// order and rounded once.
#ifndef TRANSCONV_CUDA_KERNELS_SUM_SPLITS_CUH_
#define TRANSCONV_CUDA_KERNELS_SUM_SPLITS_CUH_

#include <cstdint>

#include "cuda/primitives/simt.cuh"

namespace transconv::cuda {

constexpr int kSumSplitsThreads = 256;

// Four neighbouring entries a thread, where a result has so many that they fill a card all the
// same.
template <typename T>
__global__ void __launch_bounds__(kSumSplitsThreads)
    SumSplitsOfFoursKernel(const float4* __restrict__ partial, T* __restrict__ result,
                           int64_t fours, int64_t splits) {
  struct alignas(4 * sizeof(T)) Four {
    T value[4];
  };
  const int64_t i = int64_t{blockIdx.x} * kSumSplitsThreads + threadIdx.x;
  if (i >= fours) return;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
  for (int64_t s = 0; s < splits; ++s) {
    const float4 v = partial[s * fours + i];
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  Four all;
  Store(&all.value[0], sum.x);
  Store(&all.value[1], sum.y);
  Store(&all.value[2], sum.z);
  Store(&all.value[3], sum.w);
  reinterpret_cast<Four*>(result)[i] = all;
}

// `partial` is [split][entry]. Each of PARTS groups of a block's threads sums some of the splits.
template <typename T, int PARTS>
__global__ void __launch_bounds__(kSumSplitsThreads)
    SumSplitsKernel(const typename Accumulator<T>::type* __restrict__ partial,
                    T* __restrict__ result, int64_t size, int64_t splits) {
  using A = typename Accumulator<T>::type;
  constexpr int kWidth = kSumSplitsThreads / PARTS;
  __shared__ A sums[PARTS > 1 ? PARTS : 1][kWidth];
  const int part = static_cast<int>(threadIdx.x) / kWidth, lane = threadIdx.x % kWidth;
  const int64_t begin = splits * part / PARTS, end = splits * (part + 1) / PARTS;
  for (int64_t first = int64_t{blockIdx.x} * kWidth; first < size;
       first += int64_t{gridDim.x} * kWidth) {
    const int64_t i = first + lane;
    A sum = 0;
    if (i < size) {
#pragma unroll 8
      for (int64_t s = begin; s < end; ++s) sum += partial[s * size + i];
    }
    if constexpr (PARTS > 1) {
      sums[part][lane] = sum;
      __syncthreads();
      if (part == 0) {
        for (int other = 1; other < PARTS; ++other) sum += sums[other][lane];
      }
      __syncthreads();
    }
    if (part == 0 && i < size) Store(result + i, sum);
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_SUM_SPLITS_CUH_
