#include "cuda/launch/sm90_gemm_launch.cuh"

namespace transconv::cuda::sm90_gemm {

template cudaError_t LaunchValues<float>(const Call&, const GemmPlan&);

}  // namespace transconv::cuda::sm90_gemm
