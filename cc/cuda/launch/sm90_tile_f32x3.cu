// The Hopper tile kernel in float32 with three products.
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda::sm90_tile {

cudaError_t LaunchF32Triple(const Call& call, const Programme& g) {
  using Type = float;
  constexpr bool kCells = false;
  TRANSCONV_SM90_TILE_TRIPLE(TRANSCONV_LAUNCH_IF)
  return cudaErrorInvalidValue;
}

}  // namespace transconv::cuda::sm90_tile
