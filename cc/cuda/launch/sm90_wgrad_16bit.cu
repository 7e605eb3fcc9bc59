// The Hopper weight-gradient kernel in float16 and bfloat16.
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda::sm90_wgrad {

template cudaError_t LaunchForms<__half, false>(const Call& call, const Programme& g);
template cudaError_t LaunchForms<__nv_bfloat16, false>(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_wgrad
