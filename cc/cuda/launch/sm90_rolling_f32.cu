// The rolling forward pass and gradient of x in float32, and the algorithm's entry.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/sm90_rolling_launch.cuh"

namespace transconv::cuda {
namespace sm90_rolling {

cudaError_t LaunchF32(const Call& call, const Programme& g) { return LaunchType<float>(call, g); }

namespace {

constexpr auto Plan = PlanOf<Programme, Choose>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  return planned->reason == nullptr ? planned->plan.workspace_bytes : -1;
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const Programme& g = planned->plan;
  if (call.dtype != DType::kF32) return Launch16Bit(call, g);
  return g.products == 3 ? LaunchF32x3(call, g) : LaunchF32(call, g);
}

}  // namespace
}  // namespace sm90_rolling

const KernelEntry kCudaSm90RollingEntry = {Algorithm::kCudaSm90Rolling, sm90_rolling::Supports,
                                           sm90_rolling::Workspace, sm90_rolling::Launch};

}  // namespace transconv::cuda
