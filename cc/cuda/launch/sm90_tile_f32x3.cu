// The Hopper tile kernel in float32 with three products.
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda::sm90_tile {

template cudaError_t LaunchShapes<float, 3>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_tile
