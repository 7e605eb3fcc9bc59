// Launches of Hopper's weight gradient as one matrix product.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_GEMM_WGRAD_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_GEMM_WGRAD_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "core/gemm_wgrad_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_gemm_wgrad.cuh"
#include "cuda/launch/encode_box.h"
#include "cuda/launch/launch_cluster.h"
#include "cuda/launch/sm90_limits.h"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda::sm90_gemm_wgrad {

static_assert(SharedBytes(256) <= kSm90SharedBytes && SharedBytes(128) <= kSm90SharedBytes);

template <typename T, int KW, int N>
cudaError_t LaunchKernel(const Call& call, const GemmWgradPlan& plan) {
  Params p = MakeParams(call.problem, plan, sizeof(T));
  p.x = static_cast<const char*>(call.x);
  p.dy = static_cast<const char*>(call.y);
  p.slots = plan.has_slots() ? static_cast<float*>(call.workspace) : nullptr;
  p.dw = call.w;
  p.pairs = Aligned(call.w, 2 * sizeof(T)) == 2 * sizeof(T);
  p.x_vector = Aligned(call.x, p.x_vector);
  p.dy_vector = Aligned(call.y, p.dy_vector);
  p.boxed = plan.boxed && p.x_vector == 16;
  if (std::min(p.x_vector, p.dy_vector) < 4) return cudaErrorMisalignedAddress;
  auto* kernel = GemmWgradKernel<T, KW, N>;
  constexpr int kBytes = SharedBytes(N);
  cudaError_t status =
      p.boxed ? EncodeBox(XBoxesOf(call.x, call.problem, plan), &p.x_boxes) : cudaSuccess;
  if (status != cudaSuccess) return status;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  status = LaunchCluster(kernel, static_cast<unsigned>(plan.blocks * plan.splits), kThreads, kBytes,
                         call.stream, p, static_cast<unsigned>(p.cluster));
  if (status != cudaSuccess || !plan.has_slots()) return status;
  return LaunchSumSplits<T>(p.slots, call.w, p.weights, plan.splits, call.stream);
}

template <typename T, int KW>
cudaError_t LaunchColumns(const Call& call, const GemmWgradPlan& plan) {
  return plan.columns == 256 ? LaunchKernel<T, KW, 256>(call, plan)
                             : LaunchKernel<T, KW, 128>(call, plan);
}

// All kernels of one element type; instantiated in files of their own.
template <typename T>
cudaError_t LaunchTaps(const Call& call, const GemmWgradPlan& plan) {
  switch (plan.w.kernel) {
    case 1:
      return LaunchColumns<T, 1>(call, plan);
    case 2:
      return LaunchColumns<T, 2>(call, plan);
    case 4:
      return LaunchColumns<T, 4>(call, plan);
    case 8:
      return LaunchColumns<T, 8>(call, plan);
    default:
      return cudaErrorNotSupported;
  }
}

extern template cudaError_t LaunchTaps<float>(const Call& call, const GemmWgradPlan& plan);
extern template cudaError_t LaunchTaps<__half>(const Call& call, const GemmWgradPlan& plan);
extern template cudaError_t LaunchTaps<__nv_bfloat16>(const Call& call, const GemmWgradPlan& plan);

}  // namespace transconv::cuda::sm90_gemm_wgrad

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_GEMM_WGRAD_LAUNCH_CUH_
