// The direct kernel in float64.
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda::direct {

cudaError_t LaunchF64(const Call& call, const DirectPlan& plan) {
  return LaunchDirect<double>(call, plan);
}

}  // namespace transconv::cuda::direct
