// What the portable tensor-core kernels share on the host.
#ifndef TRANSCONV_CUDA_LAUNCH_MMA_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_MMA_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "core/tile_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/mma_cells.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda {

constexpr int kMmaSharedBytes = 96 * 1024;  // of a block, on every card that has the instruction

// An image and its cells for tiles of a plan; `planes` false: one plane without a halo, as x has in
// the weight gradient.
inline mma_cells::CellParams CellsOfImage(const Problem& q, DType dtype, bool is_x,
                                          const void* image) {
  const bool first = q.layout == Layout::kNCHW;
  const int64_t element = static_cast<int64_t>(ByteWidth(dtype));
  const int64_t channels = is_x ? q.in_channels : q.out_channels;
  const int64_t height = is_x ? q.h.in : q.h.out, width = is_x ? q.w.in : q.w.out;
  mma_cells::CellParams p{};
  p.image = image;
  p.batch = channels * height * width * element;
  p.channel = static_cast<uint32_t>((first ? height * width : 1) * element);
  p.pixel = static_cast<uint32_t>((first ? 1 : channels) * element);
  p.height = static_cast<int>(height);
  p.width = static_cast<int>(width);
  p.step_h = p.step_w = 1;
  p.planes_w = 1;
  return p;
}

// The source of a tile plan.
inline void SetCells(const TilePlan& plan, mma_cells::CellParams* p) {
  p->step_h = static_cast<int>(plan.h.source_step);
  p->step_w = static_cast<int>(plan.w.source_step);
  p->halo_rows = plan.halo_rows;
  p->halo_columns = plan.halo_columns;
  p->planes_w = plan.w.planes;
  p->plane_pitch = plan.plane_pitch;
  p->cells = plan.cells;
  p->by_cell = Divider(plan.cells);
  p->chunk_pitch = 16 * plan.planes() * plan.plane_pitch;
  for (int i = 0; i < kMaxPlanes; ++i) {
    p->plane_h[i] = static_cast<int>(plan.h.plane[i]);
    p->plane_w[i] = static_cast<int>(plan.w.plane[i]);
  }
}

// As many blocks as the card holds at a time, or as there is work.
template <typename Kernel>
cudaError_t GridOf(Kernel* kernel, int shared_bytes, int64_t work, unsigned* blocks) {
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  int device = 0, multiprocessors = 0, each = 0;
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (status == cudaSuccess) {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, mma_cells::kThreads,
                                                           shared_bytes);
  }
  *blocks = static_cast<unsigned>(
      std::max<int64_t>(std::min<int64_t>(work, int64_t{each} * multiprocessors), 1));
  return status;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_MMA_LAUNCH_CUH_
