// The direct weight gradient for every type, and its entry.
#include <algorithm>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/direct_wgrad.cuh"
#include "cuda/kernels/direct_wgrad_pairs.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda {
namespace direct_wgrad {
namespace {

// Channel pairs of a group from which tensor cores pay, whatever they waste.
constexpr int64_t kManyPairs = 64 * 64;

int64_t SumBytes(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

const char* Make(const Problem& q, Pass pass, DType dtype, DirectWgradPlan* plan) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (q.in_per_group() * q.out_per_group() >= kManyPairs) return "is for few channels a group";
  return MakeDirectWgradPlan(q, static_cast<int64_t>(ByteWidth(dtype)), SumBytes(dtype), plan);
}
constexpr auto Plan = PlanOf<DirectWgradPlan, Make>;

int64_t PartialBytes(const Problem& q, DType dtype, const DirectWgradPlan& plan) {
  const int64_t bytes =
      plan.splits * q.in_channels * q.out_per_group() * q.taps() * SumBytes(dtype);
  return CeilDiv(bytes, 256) * 256;
}

template <typename T, int RM, int RN>
cudaError_t LaunchChannels(const Call& call, const DirectWgradPlan& plan) {
  using A = typename Accumulator<T>::type;
  const Params p = MakeParams(call.problem, plan);
  A* const partial = static_cast<A*>(call.workspace);
  WgradKernel<T, A, RM, RN>
      <<<static_cast<unsigned>(plan.blocks * plan.splits), kThreads, plan.shared_values * sizeof(A),
         call.stream>>>(static_cast<const T*>(call.x), static_cast<const T*>(call.y), partial, p);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  return LaunchSumSplits<T>(partial, call.w, p.size, plan.splits, call.stream);
}

template <typename T, int TAPS>
cudaError_t LaunchPairs(const Call& call) {
  const Problem& q = call.problem;
  PairsKernel<T, typename Accumulator<T>::type, TAPS>
      <<<static_cast<unsigned>(q.in_channels * q.out_per_group()), kPairThreads, 0, call.stream>>>(
          static_cast<const T*>(call.x), static_cast<const T*>(call.y), static_cast<T*>(call.w),
          MakePairParams(q));
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchType(const Call& call, const DirectWgradPlan& plan) {
  if (IsForPairs(call.problem)) {
    const int64_t taps = call.problem.taps();
    return taps <= 4   ? LaunchPairs<T, 4>(call)
           : taps <= 9 ? LaunchPairs<T, 9>(call)
                       : LaunchPairs<T, kMostPairTaps>(call);
  }
  if (plan.rm == 4) {
    return plan.rn == 4 ? LaunchChannels<T, 4, 4>(call, plan) : LaunchChannels<T, 4, 1>(call, plan);
  }
  return plan.rn == 4 ? LaunchChannels<T, 1, 4>(call, plan) : LaunchChannels<T, 1, 1>(call, plan);
}

cudaError_t LaunchWeight(const Call& call, const DirectWgradPlan& plan) {
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

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  return PartialBytes(problem, dtype, planned->plan) + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const DirectWgradPlan& plan = planned->plan;
  const cudaError_t status = LaunchWeight(call, plan);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(
      call, static_cast<uint8_t*>(call.workspace) + PartialBytes(call.problem, call.dtype, plan));
}

}  // namespace
}  // namespace direct_wgrad

const KernelEntry kCudaDirectWgradEntry = {Algorithm::kCudaDirectWgrad, direct_wgrad::Supports,
                                           direct_wgrad::Workspace, direct_wgrad::Launch};

}  // namespace transconv::cuda
