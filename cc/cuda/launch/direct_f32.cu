// The direct kernel in float32, and its entry.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda {
namespace direct {

cudaError_t LaunchF32(const Call& call, const DirectPlan& plan) {
  return LaunchDirect<float>(call, plan);
}

namespace {

const char* Make(const Problem& problem, Pass pass, DType dtype, DirectPlan* plan) {
  *plan = PlanDirect(pass, problem, dtype == DType::kF64 ? 8 : 4);
  return plan->reason;
}
constexpr auto Plan = PlanOf<DirectPlan, Make>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const DirectPlan& plan = planned->plan;
  switch (call.dtype) {
    case DType::kF16:
      return LaunchF16(call, plan);
    case DType::kBF16:
      return LaunchBF16(call, plan);
    case DType::kF32:
      return LaunchF32(call, plan);
    case DType::kF64:
      return LaunchF64(call, plan);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace direct

const KernelEntry kCudaDirectEntry = {Algorithm::kCudaDirect, direct::Supports, direct::Workspace,
                                      direct::Launch};

}  // namespace transconv::cuda
