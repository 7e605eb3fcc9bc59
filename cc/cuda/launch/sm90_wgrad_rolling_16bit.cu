// The rolling weight gradient in float16 and bfloat16.
#include "cuda/launch/sm90_wgrad_rolling_launch.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

cudaError_t Launch16Bit(const Call& call, const Programme& g) {
  return call.dtype == DType::kF16 ? LaunchType<__half>(call, g)
                                   : LaunchType<__nv_bfloat16>(call, g);
}

}  // namespace transconv::cuda::sm90_wgrad_rolling
