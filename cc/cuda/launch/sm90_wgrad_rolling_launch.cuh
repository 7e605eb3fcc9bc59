// Launches of the rolling weight gradient.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_

#include "cuda/call.h"
#include "cuda/kernels/sm90_wgrad_rolling.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/sm90_limits.h"
#include "cuda/launch/sm90_wgrad_rolling_plan.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS = 1>
cudaError_t LaunchKernel(const Call& call, const Programme& g) {
  auto* kernel = RollingWgradKernel<T, COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS>;
  using Ring = RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS == 3 ? 2 : 1>;
  constexpr int kShared = kControlBytes + Ring::kBytes;
  static_assert(kShared <= kSm90SharedBytes, "what one block may have");
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  kernel<<<g.blocks(), kThreads, kShared, call.stream>>>(ParamsOf(call, g));
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchSum(const Call& call, const Programme& g) {
  SumParams s = SumParamsOf(call.problem, g);
  s.slots = static_cast<const float*>(call.workspace);
  s.dw = call.w;
  SumSlotsKernel<T><<<s.blocks, kSumThreads, 0, call.stream>>>(s);
  return cudaGetLastError();
}

template <typename T, int COLUMNS>
cudaError_t LaunchColumns(const Call& call, const Programme& g) {
  if (g.in_halves == 2) {
    return g.out_halves == 2 ? LaunchKernel<T, COLUMNS, 2, 2>(call, g)
                             : LaunchKernel<T, COLUMNS, 2, 1>(call, g);
  }
  return g.out_halves == 2 ? LaunchKernel<T, COLUMNS, 1, 2>(call, g)
                           : LaunchKernel<T, COLUMNS, 1, 1>(call, g);
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Programme& g) {
  const cudaError_t status =
      g.columns == 128 ? LaunchColumns<T, 128>(call, g) : LaunchColumns<T, 64>(call, g);
  return status == cudaSuccess ? LaunchSum<T>(call, g) : status;
}

// One per element type and number of products, each in a file of its own.
cudaError_t LaunchF32(const Call& call, const Programme& g);
cudaError_t LaunchF32x3(const Call& call, const Programme& g);
cudaError_t Launch16Bit(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_
