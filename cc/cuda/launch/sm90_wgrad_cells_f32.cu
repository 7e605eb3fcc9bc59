// The Hopper weight-gradient kernel of cells, in float32.
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda::sm90_wgrad {

template cudaError_t LaunchForms<float, true>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_wgrad
