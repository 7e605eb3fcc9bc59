// The entry of Hopper's weight gradient from lines of both images.
#include <algorithm>
#include <cstdint>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_lines_wgrad.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sm90_limits.h"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda {
namespace sm90_lines_wgrad {
namespace {

static_assert(lines_wgrad::kSharedBytes == kSm90SharedBytes);
static_assert(lines_wgrad::kMultiprocessors == kSm90Blocks);

constexpr auto Plan = PlanOf<LinesWgradPlan, PlanLinesWgrad>;

int64_t SlotBytes(const Problem& q, const LinesWgradPlan& plan) {
  if (plan.splits == 1) return 0;
  return CeilDiv(4 * plan.splits * q.in_channels * plan.weights, int64_t{256}) * 256;
}

template <int N, int TILES>
cudaError_t LaunchKernel(const Call& call, const LinesWgradPlan& plan) {
  Params p = MakeParams(call.problem, plan);
  p.x = static_cast<const float*>(call.x);
  p.dy = static_cast<const float*>(call.y);
  p.slots = plan.splits > 1 ? static_cast<float*>(call.workspace) : nullptr;
  p.dw = static_cast<float*>(call.w);
  p.x_copy = Aligned(call.x, p.x_copy);
  p.dy_copy = Aligned(call.y, p.dy_copy);
  if (std::min(p.x_copy, p.dy_copy) < 4) return cudaErrorMisalignedAddress;
  auto* kernel = LinesWgradKernel<N, TILES>;
  const int shared = static_cast<int>(lines_wgrad::SharedBytes(plan));
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(plan.blocks * plan.splits), kThreads, shared, call.stream>>>(p);
  status = cudaGetLastError();
  if (status != cudaSuccess || plan.splits == 1) return status;
  return LaunchSumSplits<float>(p.slots, call.w, p.weights, plan.splits, call.stream);
}

cudaError_t LaunchPlan(const Call& call, const LinesWgradPlan& plan) {
  switch (plan.columns) {
    case 256:
      return LaunchKernel<256, 1>(call, plan);
    case 128:
      return plan.tiles == 2 ? LaunchKernel<128, 2>(call, plan) : LaunchKernel<128, 1>(call, plan);
    default:
      return LaunchKernel<64, 2>(call, plan);
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
  const LinesWgradPlan& plan = planned->plan;
  const cudaError_t status = LaunchPlan(call, plan);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call,
                           static_cast<uint8_t*>(call.workspace) + SlotBytes(call.problem, plan));
}

}  // namespace
}  // namespace sm90_lines_wgrad

const KernelEntry kCudaSm90LinesWgradEntry = {
    Algorithm::kCudaSm90LinesWgrad, sm90_lines_wgrad::Supports, sm90_lines_wgrad::Workspace,
    sm90_lines_wgrad::Launch};

}  // namespace transconv::cuda
