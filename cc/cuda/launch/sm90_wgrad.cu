// The entries of the Hopper weight-gradient kernel: gathered from the images, and of packed cells.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda {
namespace sm90_wgrad {
namespace {

template <bool CELLS>
const char* Make(const Problem& problem, Pass pass, DType dtype, Programme* programme) {
  return Choose(problem, pass, dtype, CELLS, programme);
}
template <bool CELLS>
constexpr auto Plan = PlanOf<Programme, Make<CELLS>>;

template <bool CELLS>
const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan<CELLS>(pass, problem, dtype)->reason;
}

template <bool CELLS>
int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan<CELLS>(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  return planned->plan.workspace_bytes + grad_bias::WorkspaceBytes(problem, dtype);
}

template <bool CELLS>
cudaError_t LaunchType(const Call& call, const Programme& g) {
  switch (call.dtype) {
    case DType::kF32:
      return LaunchForms<float, CELLS>(call, g);
    case DType::kF16:
      return LaunchForms<__half, CELLS>(call, g);
    case DType::kBF16:
      return LaunchForms<__nv_bfloat16, CELLS>(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

// Whether cells that are the images themselves can be copied; the others are the workspace's.
bool CopiesCells(const Call& call, const Programme& g) {
  return (!g.x.direct || Aligned(call.x, 16) == 16) && (!g.dy.direct || Aligned(call.y, 16) == 16);
}

template <bool CELLS>
cudaError_t LaunchProgramme(const Call& call, const Programme& g) {
  if (!CELLS || CopiesCells(call, g)) return LaunchType<CELLS>(call, g);
  // Of 16 bits, which need no more shared memory where they are gathered.
  Programme gathers = g;
  gathers.cells = false;
  return LaunchType<false>(call, gathers);
}

template <bool CELLS>
cudaError_t Launch(const Call& call) {
  const auto planned = Plan<CELLS>(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const Programme& g = planned->plan;
  const cudaError_t status = LaunchProgramme<CELLS>(call, g);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call, static_cast<uint8_t*>(call.workspace) + g.workspace_bytes);
}

}  // namespace
}  // namespace sm90_wgrad

const KernelEntry kCudaSm90WgradEntry = {Algorithm::kCudaSm90Wgrad, sm90_wgrad::Supports<false>,
                                         sm90_wgrad::Workspace<false>, sm90_wgrad::Launch<false>};
const KernelEntry kCudaSm90WgradCellsEntry = {
    Algorithm::kCudaSm90WgradCells, sm90_wgrad::Supports<true>, sm90_wgrad::Workspace<true>,
    sm90_wgrad::Launch<true>};

}  // namespace transconv::cuda
