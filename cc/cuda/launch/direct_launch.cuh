// Instances of the direct kernel, for one element type; in direct_{f32,f64,16bit}.cu.
#ifndef TRANSCONV_CUDA_LAUNCH_DIRECT_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_DIRECT_LAUNCH_CUH_

#include "core/direct_plan.h"
#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/kernels/direct.cuh"
#include "cuda/primitives/simt.cuh"

namespace transconv::cuda::direct {

template <typename T>
struct Element {
  using Type = T;
  using Sum = typename Accumulator<T>::type;
  static __device__ Sum Load(const T* from) { return cuda::Load(from); }
  static __device__ void Store(T* to, Sum value) { cuda::Store(to, value); }
};

template <typename T, int RM, Pass kPass, bool kSliced>
cudaError_t LaunchInstance(const Call& call, const DirectPlan& plan) {
  constexpr bool kForward = kPass == Pass::kForward;
  DirectKernel<Element<T>, RM, kPass, kSliced>
      <<<static_cast<unsigned>(plan.blocks), plan.threads, plan.shared_bytes, call.stream>>>(
          static_cast<const T*>(kForward ? call.x : call.y), static_cast<const T*>(call.w),
          static_cast<const T*>(kForward ? call.vector : nullptr),
          static_cast<T*>(kForward ? call.y : call.x), plan);
  return cudaGetLastError();
}

template <typename T, int RM, Pass kPass>
cudaError_t LaunchSlices(const Call& call, const DirectPlan& plan) {
  if constexpr (RM <= kDirectSlicedChannels) {
    if (plan.slices() > 1) return LaunchInstance<T, RM, kPass, true>(call, plan);
  }
  return LaunchInstance<T, RM, kPass, false>(call, plan);
}

template <typename T, int RM>
cudaError_t LaunchPass(const Call& call, const DirectPlan& plan) {
  return call.pass == Pass::kForward ? LaunchSlices<T, RM, Pass::kForward>(call, plan)
                                     : LaunchSlices<T, RM, Pass::kGradInput>(call, plan);
}

template <typename T>
cudaError_t LaunchDirect(const Call& call, const DirectPlan& plan) {
  if (plan.blocks == 0) return cudaSuccess;
  switch (plan.rm) {
    case 1:
      return LaunchPass<T, 1>(call, plan);
    case 2:
      return LaunchPass<T, 2>(call, plan);
    case 3:
      return LaunchPass<T, 3>(call, plan);
    case 4:
      return LaunchPass<T, 4>(call, plan);
    default:  // never for float64, whose sums would fill the registers
      if constexpr (sizeof(T) == 8) return cudaErrorInvalidValue;
      return LaunchPass<T, sizeof(T) == 8 ? 4 : 8>(call, plan);
  }
}

// One per element type, each in a file of its own so that they compile side by side.
cudaError_t LaunchF16(const Call& call, const DirectPlan& plan);
cudaError_t LaunchBF16(const Call& call, const DirectPlan& plan);
cudaError_t LaunchF32(const Call& call, const DirectPlan& plan);
cudaError_t LaunchF64(const Call& call, const DirectPlan& plan);

}  // namespace transconv::cuda::direct

#endif  // TRANSCONV_CUDA_LAUNCH_DIRECT_LAUNCH_CUH_
