// The input gradient of pixels of 16 bits.
#include "cuda/call.h"
#include "cuda/kernels/im2col_grad_input_pixels.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda::im2col {
namespace {

template <typename T, int FM, int FN>
cudaError_t LaunchFragments(const Call& call, const PixelsInputPlan& plan) {
  auto* kernel = pixels_input::GradInputPixelsKernel<T, FM, FN>;
  unsigned blocks = 0;
  const cudaError_t status =
      GridOf(kernel, plan.shared_bytes, plan.in_blocks * plan.tiles, &blocks);
  if (status != cudaSuccess) return status;
  const pixels_input::Params p = pixels_input::MakeParams(call.problem, plan, blocks);
  kernel<<<p.streams* static_cast<unsigned>(plan.in_blocks), kBoxThreads, plan.shared_bytes,
           call.stream>>>(static_cast<const uint16_t*>(call.y),
                          static_cast<const uint16_t*>(call.w), static_cast<uint16_t*>(call.x), p);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchType(const Call& call, const PixelsInputPlan& plan) {
  if (plan.fragments_m == 1) {
    return plan.fragments_n == 4 ? LaunchFragments<T, 1, 4>(call, plan)
                                 : LaunchFragments<T, 1, 8>(call, plan);
  }
  return plan.fragments_n == 4 ? LaunchFragments<T, 2, 4>(call, plan)
                               : LaunchFragments<T, 2, 8>(call, plan);
}

}  // namespace

cudaError_t LaunchGradInputPixels(const Call& call, const PixelsInputPlan& plan) {
  return call.dtype == DType::kF16 ? LaunchType<__half>(call, plan)
                                   : LaunchType<__nv_bfloat16>(call, plan);
}

}  // namespace transconv::cuda::im2col
