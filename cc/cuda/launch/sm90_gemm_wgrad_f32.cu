// The weight gradient as one matrix product in TF32.
#include "cuda/launch/sm90_gemm_wgrad_launch.cuh"

namespace transconv::cuda::sm90_gemm_wgrad {

template cudaError_t LaunchTaps<float>(const Call& call, const GemmWgradPlan& plan);

}  // namespace transconv::cuda::sm90_gemm_wgrad
