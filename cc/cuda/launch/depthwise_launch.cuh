// The depthwise kernels, which cuda:direct has for what they can run; in depthwise.cu.
#ifndef TRANSCONV_CUDA_LAUNCH_DEPTHWISE_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_DEPTHWISE_LAUNCH_CUH_

#include "core/depthwise_plan.h"
#include "cuda/call.h"

namespace transconv::cuda::depthwise {

cudaError_t Launch(const Call& call, const DepthwisePlan& plan);

}  // namespace transconv::cuda::depthwise

#endif  // TRANSCONV_CUDA_LAUNCH_DEPTHWISE_LAUNCH_CUH_
