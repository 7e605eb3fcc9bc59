// The direct kernel in float16 and bfloat16.
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda::direct {

cudaError_t LaunchF16(const Call& call, const DirectPlan& plan) {
  return LaunchDirect<__half>(call, plan);
}
cudaError_t LaunchBF16(const Call& call, const DirectPlan& plan) {
  return LaunchDirect<__nv_bfloat16>(call, plan);
}

}  // namespace transconv::cuda::direct
