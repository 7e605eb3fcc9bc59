// The depthwise kernels, a part of cuda:direct.
#include <cstddef>
#include <iterator>
#include <utility>

#include "cuda/kernels/depthwise.cuh"
#include "cuda/launch/depthwise_launch.cuh"
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda::depthwise {
namespace {

template <typename T, size_t kShape>
void LaunchForward(const Call& call, const DepthwisePlan& plan) {
  constexpr DepthwiseShape kIs = kDepthwiseForward[kShape];
  DepthwiseForward<direct::Element<T>, kIs.rows, kIs.step, kIs.columns>
      <<<static_cast<unsigned>(plan.blocks), kDepthwiseThreads, 0, call.stream>>>(
          static_cast<const T*>(call.x), static_cast<const T*>(call.w),
          static_cast<const T*>(call.vector), static_cast<T*>(call.y), plan);
}

template <typename T, size_t kShape>
void LaunchGradInput(const Call& call, const DepthwisePlan& plan) {
  constexpr DepthwiseShape kIs = kDepthwiseGradInput[kShape];
  DepthwiseGradInput<direct::Element<T>, kIs.rows, kIs.step, kIs.columns>
      <<<static_cast<unsigned>(plan.blocks), kDepthwiseThreads, 0, call.stream>>>(
          static_cast<const T*>(call.y), static_cast<const T*>(call.w), static_cast<T*>(call.x),
          plan);
}

bool Same(const DepthwiseShape& a, const DepthwiseShape& b) {
  return a.rows == b.rows && a.step == b.step && a.columns == b.columns;
}

template <typename T, size_t... kForward, size_t... kGradInput>
cudaError_t LaunchType(const Call& call, const DepthwisePlan& plan,
                       std::index_sequence<kForward...>, std::index_sequence<kGradInput...>) {
  if (call.pass == Pass::kForward) {
    ((Same(plan.shape, kDepthwiseForward[kForward]) ? LaunchForward<T, kForward>(call, plan)
                                                    : void()),
     ...);
  } else {
    ((Same(plan.shape, kDepthwiseGradInput[kGradInput]) ? LaunchGradInput<T, kGradInput>(call, plan)
                                                        : void()),
     ...);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchType(const Call& call, const DepthwisePlan& plan) {
  return LaunchType<T>(call, plan, std::make_index_sequence<std::size(kDepthwiseForward)>(),
                       std::make_index_sequence<std::size(kDepthwiseGradInput)>());
}

}  // namespace

cudaError_t Launch(const Call& call, const DepthwisePlan& plan) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchType<__half>(call, plan);
    case DType::kBF16:
      return LaunchType<__nv_bfloat16>(call, plan);
    case DType::kF32:
      return LaunchType<float>(call, plan);
    case DType::kF64:
      return LaunchType<double>(call, plan);
  }
  return cudaErrorInvalidValue;
}

}  // namespace transconv::cuda::depthwise
