// The Hopper tile kernel of cells, in float32 with one product, and the algorithm's entry.
#include "cuda/call.h"
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda {
namespace sm90_tile {

cudaError_t LaunchCellsF32(const Call& call, const Programme& g) {
  using Type = float;
  constexpr bool kCells = true;
  TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_LAUNCH_IF)
  return cudaErrorInvalidValue;
}

namespace {

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  Programme g;
  return Choose(problem, pass, dtype, true, &g);
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  Programme g;
  return Choose(problem, pass, dtype, true, &g) == nullptr ? g.workspace_bytes : -1;
}

cudaError_t Launch(const Call& call) {
  Programme g;
  if (Choose(call.problem, call.pass, call.dtype, true, &g) != nullptr)
    return cudaErrorNotSupported;
  switch (call.dtype) {
    case DType::kF32:
      return g.shape.products == 3 ? LaunchCellsF32Triple(call, g) : LaunchCellsF32(call, g);
    case DType::kF16:
      return LaunchCellsF16(call, g);
    case DType::kBF16:
      return LaunchCellsBF16(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace
}  // namespace sm90_tile

const KernelEntry kCudaSm90CellsEntry = {Algorithm::kCudaSm90Cells, sm90_tile::Supports,
                                         sm90_tile::Workspace, sm90_tile::Launch};

}  // namespace transconv::cuda
