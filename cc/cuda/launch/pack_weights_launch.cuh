// The launch that packs weights.
#ifndef TRANSCONV_CUDA_LAUNCH_PACK_WEIGHTS_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_PACK_WEIGHTS_LAUNCH_CUH_

#include "core/tile_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_weights.cuh"
#include "cuda/launch/packed_weights.cuh"

namespace transconv::cuda {

// Launched as usual: see launch/launch_behind.h.
template <typename T, int PRODUCTS>
cudaError_t LaunchPackWeights(const Call& call, const TilePlan& plan, const PackedWeights& packed) {
  PackWeightsKernel<T, PRODUCTS>
      <<<PackBlocks(call.problem, packed), kPackThreads, 0, call.stream>>>(
          PackParamsOf(call, plan, packed));
  return cudaGetLastError();
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_PACK_WEIGHTS_LAUNCH_CUH_
