// Launches of the rolling forward pass and gradient of x.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_LAUNCH_CUH_

#include "cuda/call.h"
#include "cuda/kernels/pack_weights.cuh"
#include "cuda/kernels/sm90_rolling.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/sm90_rolling_programme.cuh"

namespace transconv::cuda::sm90_rolling {

// Launched as usual: see launch/launch_behind.h.
template <typename T, int PRODUCTS>
cudaError_t LaunchPack(const Call& call, const Programme& g) {
  PackWeightsKernel<T, 1, PRODUCTS == 3>
      <<<PackBlocks(g), kPackThreads, 0, call.stream>>>(PackParamsOf(call, g));
  return cudaGetLastError();
}

template <typename T, int N, int HALVES, int PRODUCTS = 1>
cudaError_t LaunchKernel(const Call& call, const Programme& g) {
  auto* kernel = RollingTileKernel<T, N, HALVES, PRODUCTS>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared_bytes);
  if (status != cudaSuccess) return status;
  return LaunchBehind(kernel, Blocks(g), kThreads, g.shared_bytes, call.stream, ParamsOf(call, g));
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Programme& g) {
  const cudaError_t status = LaunchPack<T, 1>(call, g);
  if (status != cudaSuccess) return status;
  if constexpr (sizeof(T) == 4) {
    if (g.n == 136) {
      return g.halves == 2 ? LaunchKernel<T, 136, 2>(call, g) : LaunchKernel<T, 136, 1>(call, g);
    }
  } else {
    if (g.n == 144) return LaunchKernel<T, 144, 1>(call, g);
  }
  return g.halves == 2 ? LaunchKernel<T, 128, 2>(call, g) : LaunchKernel<T, 128, 1>(call, g);
}

// One per element size and number of products, each in a file of its own.
cudaError_t LaunchF32(const Call& call, const Programme& g);
cudaError_t LaunchF32x3(const Call& call, const Programme& g);
cudaError_t Launch16Bit(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_LAUNCH_CUH_
