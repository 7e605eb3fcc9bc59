// The rolling weight gradient as accurate as float32, with three products.
#include "cuda/launch/sm90_wgrad_rolling_launch.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

cudaError_t LaunchF32x3(const Call& call, const Programme& g) {
  const cudaError_t status = g.columns == 128 ? LaunchKernel<float, 128, 1, 1, 3>(call, g)
                                              : LaunchKernel<float, 64, 1, 1, 3>(call, g);
  return status == cudaSuccess ? LaunchSum<float>(call, g) : status;
}

}  // namespace transconv::cuda::sm90_wgrad_rolling
