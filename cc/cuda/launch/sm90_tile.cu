// The entries of the Hopper tile kernel.
#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda {
namespace sm90_tile {
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
  switch (call.dtype) {
    case DType::kF32:
      return g.shape.products == 3 ? LaunchShapes<float, 3>(call, g)
                                   : LaunchShapes<float, 1>(call, g);
    case DType::kF16:
      return LaunchShapes<__half, 1>(call, g);
    case DType::kBF16:
      return LaunchShapes<__nv_bfloat16, 1>(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace
}  // namespace sm90_tile

const KernelEntry kCudaSm90TileEntry = {Algorithm::kCudaSm90Tile, sm90_tile::Supports,
                                        sm90_tile::Workspace, sm90_tile::Launch};

}  // namespace transconv::cuda
