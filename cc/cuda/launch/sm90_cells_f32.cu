// The Hopper tile kernel of cells, in float32 with one product.
#include "cuda/launch/sm90_tile_launch.cuh"

namespace transconv::cuda::sm90_tile {

template cudaError_t LaunchShapes<float, 1, true>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_tile
