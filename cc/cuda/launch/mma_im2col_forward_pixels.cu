// The forward pass of pixels of 16 bits.
#include "cuda/call.h"
#include "cuda/kernels/im2col_forward_pixels.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda::im2col {
namespace {

template <typename T, int K, int S, int NC>
cudaError_t LaunchChunks(const Call& call, const PixelsForwardPlan& plan) {
  auto* kernel = pixels_forward::ForwardPixelsKernel<T, K, S, NC>;
  unsigned blocks = 0;
  const cudaError_t status =
      GridOf(kernel, plan.shared_bytes, CeilDiv(call.problem.batch, plan.walkers), &blocks);
  if (status != cudaSuccess) return status;
  const pixels_forward::Params p = pixels_forward::MakeParams(call.problem, plan, blocks);
  kernel<<<static_cast<unsigned>(p.streams), kBoxThreads, plan.shared_bytes, call.stream>>>(
      static_cast<const uint16_t*>(call.x), static_cast<const uint16_t*>(call.w),
      static_cast<const uint16_t*>(call.vector), static_cast<uint16_t*>(call.y), p);
  return cudaGetLastError();
}

template <typename T, int K, int S>
cudaError_t LaunchTaps(const Call& call, const PixelsForwardPlan& plan) {
  static_assert(transconv::pixels_forward::kMostChunks == 4);
  switch (plan.chunks) {
    case 1:
      return LaunchChunks<T, K, S, 1>(call, plan);
    case 2:
      return LaunchChunks<T, K, S, 2>(call, plan);
    case 3:
      return LaunchChunks<T, K, S, 3>(call, plan);
    default:
      return LaunchChunks<T, K, S, 4>(call, plan);
  }
}

// The first of the kinds from I on.
template <typename T, int I = 0>
cudaError_t LaunchKind(const Call& call, const PixelsForwardPlan& plan) {
  using transconv::pixels_forward::kKinds;
  if constexpr (I < static_cast<int>(sizeof(kKinds) / sizeof(kKinds[0]))) {
    constexpr auto kKind = kKinds[I];
    if (call.problem.h.kernel != kKind.kernel || call.problem.h.stride != kKind.stride) {
      return LaunchKind<T, I + 1>(call, plan);
    }
    return LaunchTaps<T, kKind.kernel, kKind.stride>(call, plan);
  } else {
    return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchForwardPixels(const Call& call, const PixelsForwardPlan& plan) {
  return call.dtype == DType::kF16 ? LaunchKind<__half>(call, plan)
                                   : LaunchKind<__nv_bfloat16>(call, plan);
}

}  // namespace transconv::cuda::im2col
