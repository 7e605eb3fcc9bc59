// The Hopper weight-gradient kernel of cells in float16 and bfloat16.
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda::sm90_wgrad {

cudaError_t LaunchCells16Bit(const Call& call, const Programme& g) {
  return call.dtype == DType::kF16 ? LaunchSingle<__half, true>(call, g)
                                   : LaunchSingle<__nv_bfloat16, true>(call, g);
}

}  // namespace transconv::cuda::sm90_wgrad
