// What the im2col kernels share on the host.
#ifndef TRANSCONV_CUDA_LAUNCH_MMA_IM2COL_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_MMA_IM2COL_LAUNCH_CUH_

#include <cstdint>

#include "core/im2col_forward_pixels_plan.h"
#include "core/im2col_forward_plan.h"
#include "core/im2col_pixels_plan.h"
#include "core/im2col_plan.h"
#include "core/im2col_wgrad_pixels_plan.h"
#include "cuda/call.h"
#include "cuda/launch/mma_launch.cuh"

namespace transconv::cuda::im2col {

static_assert(kBoxThreads == mma_cells::kThreads, "GridOf counts blocks of as many threads");

inline bool IsAligned(const void* p, size_t bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// Vectors need an aligned source, which buffers of XLA are.
template <typename T>
Im2colLimits LimitsFor(const void* source) {
  Im2colLimits limits;
  while (!IsAligned(source, limits.most_vector * sizeof(T))) limits.most_vector /= 2;
  return limits;
}

// One for each pass, in a file of its own so that they compile side by side.
cudaError_t LaunchForward(const Call& call, const Im2colForwardPlan& plan);
cudaError_t LaunchForwardPixels(const Call& call, const PixelsForwardPlan& plan);
cudaError_t LaunchGradInput(const Call& call, const Im2colPlan& plan);
cudaError_t LaunchGradInputPixels(const Call& call, const PixelsInputPlan& plan);
// The sums of splits of the weight gradient, to the workspace.
cudaError_t LaunchPixelsWgrad(const Call& call, const PixelsWgradPlan& plan);

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_LAUNCH_MMA_IM2COL_LAUNCH_CUH_
