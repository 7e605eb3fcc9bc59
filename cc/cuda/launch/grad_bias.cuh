// The bias gradient for kernels that do not sum dy themselves.
#ifndef TRANSCONV_CUDA_LAUNCH_GRAD_BIAS_CUH_
#define TRANSCONV_CUDA_LAUNCH_GRAD_BIAS_CUH_

#include <cstdint>

#include "cuda/call.h"

namespace transconv::cuda::grad_bias {

int64_t WorkspaceBytes(const Problem& problem, DType dtype);

// Writes call.vector from call.y.
cudaError_t Launch(const Call& call, void* workspace);

}  // namespace transconv::cuda::grad_bias

#endif  // TRANSCONV_CUDA_LAUNCH_GRAD_BIAS_CUH_
