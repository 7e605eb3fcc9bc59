// The direct kernel in float32, and its entry.
#include "core/direct_heads.h"
#include "core/direct_results.h"
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/direct_heads.cuh"
#include "cuda/kernels/direct_results.cuh"
#include "cuda/launch/depthwise_launch.cuh"
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda {
namespace direct {

cudaError_t LaunchF32(const Call& call, const DirectPlan& plan) {
  return LaunchDirect<float>(call, plan);
}

namespace {

// Whether a call is one for the kernel of small heads, and the card's blocks have room for it.
cudaError_t IsForHeads(const Call& call, bool* is) {
  *is = call.pass == Pass::kForward && transconv::heads::IsFor(call.problem) &&
        reinterpret_cast<uintptr_t>(call.w) % 16 == 0;
  if (!*is) return cudaSuccess;
  int device = 0, most = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  *is = heads::SharedBytes(call.problem) <= most;
  return status;
}

template <int kOut>
cudaError_t LaunchHeads(const Call& call) {
  auto* kernel = heads::HeadsKernel<kOut>;
  const int shared_bytes = heads::SharedBytes(call.problem);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const heads::Params p = heads::MakeParams(call.problem);
  const int64_t blocks = CeilDiv(p.positions, heads::kPositions);
  kernel<<<static_cast<unsigned>(blocks), heads::kThreads, shared_bytes, call.stream>>>(
      static_cast<const float*>(call.x), static_cast<const float*>(call.w),
      static_cast<const float*>(call.vector), static_cast<float*>(call.y), p);
  return cudaGetLastError();
}

cudaError_t LaunchResults(const Call& call) {
  const results::Params p = results::MakeParams(call.problem);
  const int64_t blocks = CeilDiv(p.results, results::kThreads);
  results::ResultsKernel<<<static_cast<unsigned>(blocks), results::kThreads, 0, call.stream>>>(
      static_cast<const float*>(call.y), static_cast<const float*>(call.w),
      static_cast<float*>(call.x), p);
  return cudaGetLastError();
}

// The depthwise kernels run what they can.
struct Plans {
  bool is_depthwise = false;
  DepthwisePlan depthwise;
  DirectPlan direct;
};

const char* Make(const Problem& problem, Pass pass, DType dtype, Plans* plans) {
  plans->depthwise = PlanDepthwise(pass, problem);
  plans->is_depthwise = plans->depthwise.reason == nullptr;
  if (plans->is_depthwise) return nullptr;
  plans->direct = PlanDirect(pass, problem, dtype == DType::kF64 ? 8 : 4);
  return plans->direct.reason;
}
constexpr auto Plan = PlanOf<Plans, Make>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  if (planned->plan.is_depthwise) return depthwise::Launch(call, planned->plan.depthwise);
  const DirectPlan& plan = planned->plan.direct;
  switch (call.dtype) {
    case DType::kF16:
      return LaunchF16(call, plan);
    case DType::kBF16:
      return LaunchBF16(call, plan);
    case DType::kF32: {
      if (call.pass == Pass::kGradInput && transconv::results::IsFor(call.problem)) {
        return LaunchResults(call);
      }
      bool heads = false;
      const cudaError_t status = IsForHeads(call, &heads);
      if (status != cudaSuccess) return status;
      if (!heads) return LaunchF32(call, plan);
      return call.problem.out_channels == 1 ? LaunchHeads<1>(call) : LaunchHeads<2>(call);
    }
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
