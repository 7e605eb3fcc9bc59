// The Hopper tile kernel of cells, in bfloat16.
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda::sm90_tile {

cudaError_t LaunchCellsBF16(const Call& call, const Programme& g) {
  using Type = __nv_bfloat16;
  constexpr bool kCells = true;
  TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_LAUNCH_IF)
  return cudaErrorInvalidValue;
}

}  // namespace transconv::cuda::sm90_tile
