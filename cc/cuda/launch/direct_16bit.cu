// The direct kernel in float16 and bfloat16.
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda::direct {

cudaError_t LaunchF16(const Call& call) { return LaunchDirect<__half>(call); }
cudaError_t LaunchBF16(const Call& call) { return LaunchDirect<__nv_bfloat16>(call); }

}  // namespace transconv::cuda::direct
