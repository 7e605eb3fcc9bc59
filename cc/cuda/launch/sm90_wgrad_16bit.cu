// The Hopper weight-gradient kernel in float16 and bfloat16.
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda::sm90_wgrad {

cudaError_t Launch16Bit(const Call& call, const Programme& g) {
  return call.dtype == DType::kF16 ? LaunchSingle<__half, false>(call, g)
                                   : LaunchSingle<__nv_bfloat16, false>(call, g);
}

}  // namespace transconv::cuda::sm90_wgrad
