// The entry of Hopper's weight gradient as one matrix product.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sm90_gemm_wgrad_launch.cuh"

namespace transconv::cuda {
namespace sm90_gemm_wgrad {
namespace {

const char* Make(const Problem& q, Pass pass, DType dtype, GemmWgradPlan* plan) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (const char* reason = HasNoProduct(q, dtype)) return reason;
  *plan = PlanGemmWgrad(q, static_cast<int>(ByteWidth(dtype)));
  return plan->reason;
}
constexpr auto Plan = PlanOf<GemmWgradPlan, Make>;

int64_t SlotBytes(const Problem& q, const GemmWgradPlan& plan) {
  if (!plan.has_slots()) return 0;
  return CeilDiv(4 * plan.splits * q.in_channels * plan.rows, 256) * 256;
}

cudaError_t LaunchType(const Call& call, const GemmWgradPlan& plan) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchTaps<__half>(call, plan);
    case DType::kBF16:
      return LaunchTaps<__nv_bfloat16>(call, plan);
    case DType::kF32:
      return LaunchTaps<float>(call, plan);
    default:
      return cudaErrorNotSupported;
  }
}

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  return SlotBytes(problem, planned->plan) + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const GemmWgradPlan& plan = planned->plan;
  const cudaError_t status = LaunchType(call, plan);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call,
                           static_cast<uint8_t*>(call.workspace) + SlotBytes(call.problem, plan));
}

}  // namespace
}  // namespace sm90_gemm_wgrad

const KernelEntry kCudaSm90GemmWgradEntry = {Algorithm::kCudaSm90GemmWgrad,
                                             sm90_gemm_wgrad::Supports, sm90_gemm_wgrad::Workspace,
                                             sm90_gemm_wgrad::Launch};

}  // namespace transconv::cuda
