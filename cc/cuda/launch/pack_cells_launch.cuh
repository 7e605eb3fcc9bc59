// The launches that pack cells.
#ifndef TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_cells.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/pack_cells_call.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda {

// Packs both images of a pass, whose magnitudes lie side by side.
template <typename T, int PRODUCTS>
cudaError_t LaunchPackCells(const PackBothParams& p, cudaStream_t stream) {
  const int parts = p.image[0].parts + p.image[1].parts;
  if (parts == 0) return cudaSuccess;
  const auto blocks = [](int64_t work) {
    return static_cast<unsigned>(std::clamp<int64_t>(work, 1, 8 * kSm90Blocks));
  };
  if constexpr (sizeof(T) == 4) {
    const cudaError_t status =
        cudaMemsetAsync(p.image[0].magnitudes, 0, 2 * sizeof(Magnitudes), stream);
    if (status != cudaSuccess) return status;
    const int64_t vectors = std::max(p.image[0].vectors, p.image[1].vectors);
    const dim3 grid(blocks(CeilDiv(vectors, int64_t{4 * kPackCellsThreads})), 2);
    SampleKernel<<<grid, kPackCellsThreads, 0, stream>>>(p);
  }
  cudaError_t status = LaunchBehind(PackCellsKernel<T, PRODUCTS>, static_cast<unsigned>(parts),
                                    kPackCellsThreads, 0, stream, p);
  if (status != cudaSuccess) return status;
  if constexpr (sizeof(T) == 4 && PRODUCTS == 1) {
    const dim3 grid(blocks(std::max(p.image[0].parts, p.image[1].parts)), 2);
    status = LaunchBehind(PackAgainKernel, grid, kPackCellsThreads, 0, stream, p);
  }
  return status;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_
