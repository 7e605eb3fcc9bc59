// The entries of the Hopper tile kernel.
#include "cuda/call.h"
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda {
namespace sm90_tile {
namespace {

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  return Choose(problem, pass, dtype, &g);
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  return Choose(problem, pass, dtype, &g) == nullptr ? g.workspace_bytes : -1;
}

cudaError_t Launch(const Call& call) {
  Programme g{};
  if (Choose(call.problem, call.pass, call.dtype, &g) != nullptr) {
    return cudaErrorNotSupported;
  }
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
