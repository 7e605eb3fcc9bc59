// The Hopper tile kernel in bfloat16.
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda::sm90_tile {

template cudaError_t LaunchShapes<__nv_bfloat16, 1>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_tile
