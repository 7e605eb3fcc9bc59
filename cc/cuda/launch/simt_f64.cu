// The general kernel in float64.
#include "cuda/launch/simt_launch.cuh"

namespace transconv::cuda::simt {

cudaError_t LaunchF64(const Call& call) { return LaunchPass<double>(call); }

}  // namespace transconv::cuda::simt
