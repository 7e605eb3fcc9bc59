// The general kernel in float16 and bfloat16.
#include "cuda/launch/simt_launch.cuh"

namespace transconv::cuda::simt {

cudaError_t LaunchF16(const Call& call) { return LaunchPass<__half>(call); }
cudaError_t LaunchBF16(const Call& call) { return LaunchPass<__nv_bfloat16>(call); }

}  // namespace transconv::cuda::simt
