// The weight gradient as one matrix product in float16 and bfloat16.
#include "cuda/launch/sm90_gemm_wgrad_launch.cuh"

namespace transconv::cuda::sm90_gemm_wgrad {

template cudaError_t LaunchTaps<__half>(const Call& call, const GemmWgradPlan& plan);
template cudaError_t LaunchTaps<__nv_bfloat16>(const Call& call, const GemmWgradPlan& plan);

}  // namespace transconv::cuda::sm90_gemm_wgrad
