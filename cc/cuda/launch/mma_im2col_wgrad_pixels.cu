// The weight gradient of pixels of 16 bits.
#include "cuda/call.h"
#include "cuda/kernels/im2col_wgrad_pixels.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda::im2col {
namespace {

template <typename T, int FM, int FN>
cudaError_t LaunchFragments(const Call& call, const PixelsWgradPlan& plan) {
  auto* kernel = pixels_wgrad::PixelsKernel<T, FM, FN>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(plan.in_blocks * plan.splits), kBoxThreads, plan.shared_bytes,
           call.stream>>>(static_cast<const uint16_t*>(call.x),
                          static_cast<const uint16_t*>(call.y), static_cast<float*>(call.workspace),
                          pixels_wgrad::MakeParams(call.problem, plan));
  return cudaGetLastError();
}

// The first of the plan's kinds of fragments from I on.
template <typename T, int I = 0>
cudaError_t LaunchKind(const Call& call, const PixelsWgradPlan& plan) {
  using transconv::pixels_wgrad::kFragments;
  if constexpr (I < static_cast<int>(sizeof(kFragments) / sizeof(kFragments[0]))) {
    constexpr auto kKind = kFragments[I];
    if (plan.fragments_m != kKind.m || plan.fragments_n != kKind.n) {
      return LaunchKind<T, I + 1>(call, plan);
    }
    return LaunchFragments<T, kKind.m, kKind.n>(call, plan);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchPixelsWgrad(const Call& call, const PixelsWgradPlan& plan) {
  return call.dtype == DType::kF16 ? LaunchKind<__half>(call, plan)
                                   : LaunchKind<__nv_bfloat16>(call, plan);
}

}  // namespace transconv::cuda::im2col
