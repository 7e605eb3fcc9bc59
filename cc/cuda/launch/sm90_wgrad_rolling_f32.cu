// The rolling weight gradient in float32, and the algorithm's entry.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sm90_wgrad_rolling_launch.cuh"

namespace transconv::cuda {
namespace sm90_wgrad_rolling {

cudaError_t LaunchF32(const Call& call, const Programme& g) { return LaunchType<float>(call, g); }

namespace {

constexpr auto Plan = PlanOf<Programme, Choose>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  return planned->plan.workspace_bytes + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const Programme& g = planned->plan;
  const cudaError_t status = g.products == 3             ? LaunchF32x3(call, g)
                             : call.dtype == DType::kF32 ? LaunchF32(call, g)
                                                         : Launch16Bit(call, g);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call, static_cast<uint8_t*>(call.workspace) + g.workspace_bytes);
}

}  // namespace
}  // namespace sm90_wgrad_rolling

const KernelEntry kCudaSm90WgradRollingEntry = {
    Algorithm::kCudaSm90WgradRolling, sm90_wgrad_rolling::Supports, sm90_wgrad_rolling::Workspace,
    sm90_wgrad_rolling::Launch};

}  // namespace transconv::cuda
