// The Hopper weight-gradient kernel in float32.
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda::sm90_wgrad {

template cudaError_t LaunchForms<float, false>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_wgrad
