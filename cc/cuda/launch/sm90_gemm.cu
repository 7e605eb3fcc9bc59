// The entries of the Hopper matrix product.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/sm90_gemm_launch.cuh"

namespace transconv::cuda {
namespace sm90_gemm {
namespace {

const char* Make(const Problem& q, Pass pass, DType dtype, GemmPlan* plan) {
  return PlanGemm(q, pass, dtype, kSm90Blocks, plan);
}
constexpr auto Plan = PlanOf<GemmPlan, Make>;

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
  switch (call.dtype) {
    case DType::kF32:
      return LaunchValues<float>(call, planned->plan);
    case DType::kF16:
      return LaunchValues<__half>(call, planned->plan);
    case DType::kBF16:
      return LaunchValues<__nv_bfloat16>(call, planned->plan);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace
}  // namespace sm90_gemm

const KernelEntry kCudaSm90GemmEntry = {Algorithm::kCudaSm90Gemm, sm90_gemm::Supports,
                                        sm90_gemm::Workspace, sm90_gemm::Launch};

}  // namespace transconv::cuda
