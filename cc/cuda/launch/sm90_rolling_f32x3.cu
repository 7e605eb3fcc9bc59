// The rolling forward pass and gradient of x in float32 with three products.
#include "cuda/launch/sm90_rolling_launch.cuh"

namespace transconv::cuda::sm90_rolling {

cudaError_t LaunchF32x3(const Call& call, const Programme& g) {
  const cudaError_t status = LaunchPack<float, 3>(call, g);
  if (status != cudaSuccess) return status;
  return g.n == 136 ? LaunchKernel<float, 136, 1, 3>(call, g)
                    : LaunchKernel<float, 128, 1, 3>(call, g);
}

}  // namespace transconv::cuda::sm90_rolling
