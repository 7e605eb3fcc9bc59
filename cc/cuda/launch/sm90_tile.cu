// The entries of the Hopper tile kernel: gathered from the image, and of packed cells.
#include "cuda/call.h"
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda {
namespace sm90_tile {
namespace {

template <bool CELLS>
const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  return Choose(problem, pass, dtype, CELLS, &g);
}

template <bool CELLS>
int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  return Choose(problem, pass, dtype, CELLS, &g) == nullptr ? g.workspace_bytes : -1;
}

template <bool CELLS>
cudaError_t Launch(const Call& call) {
  Programme g{};
  if (Choose(call.problem, call.pass, call.dtype, CELLS, &g) != nullptr) {
    return cudaErrorNotSupported;
  }
  switch (call.dtype) {
    case DType::kF32:
      return g.shape.products == 3 ? LaunchShapes<float, 3, CELLS>(call, g)
                                   : LaunchShapes<float, 1, CELLS>(call, g);
    case DType::kF16:
      return LaunchShapes<__half, 1, CELLS>(call, g);
    case DType::kBF16:
      return LaunchShapes<__nv_bfloat16, 1, CELLS>(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace
}  // namespace sm90_tile

const KernelEntry kCudaSm90TileEntry = {Algorithm::kCudaSm90Tile, sm90_tile::Supports<false>,
                                        sm90_tile::Workspace<false>, sm90_tile::Launch<false>};
const KernelEntry kCudaSm90CellsEntry = {Algorithm::kCudaSm90Cells, sm90_tile::Supports<true>,
                                         sm90_tile::Workspace<true>, sm90_tile::Launch<true>};

}  // namespace transconv::cuda
