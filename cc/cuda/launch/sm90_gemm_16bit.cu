#include "cuda/launch/sm90_gemm_launch.cuh"

namespace transconv::cuda::sm90_gemm {

template cudaError_t LaunchValues<__half>(const Call&, const GemmPlan&);
template cudaError_t LaunchValues<__nv_bfloat16>(const Call&, const GemmPlan&);

}  // namespace transconv::cuda::sm90_gemm
