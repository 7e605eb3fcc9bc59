// The weight-gradient kernel's producers that copy ready cells: 16-bit images whose channels lie
// together, and those that kernels/pack_cells.cuh made. The stages themselves are what is in
// flight.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_wgrad_params.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad {

template <typename Form, int PRODUCTS>
struct CellsProducer : CellTables<Form> {
  using Tables = CellTables<Form>;
  using Tables::p;
  using Tables::work;

  Control& control;
  const uint32_t stages;  // shared address

  __device__ void Run() const {
    if (work.first >= work.last) return;
    const char* const x = static_cast<const char*>(p.x) + work.group * p.x_group +
                          8 * Form::kHalves * work.in_block * p.x_chunk;
    const char* const dy =
        static_cast<const char*>(p.dy) + work.group * p.dy_group + 8 * work.out_block * p.dy_chunk;
    int image = this->BuildOffsets(work.first, 0), which = 0, stage = 0;
    uint32_t parity = 1;
    for (int tile = work.first; tile < work.last; ++tile) {
      // This tile's table is there, the other one's use is over.
      ptx::NamedBarrier<1, Form::kProducers>();
      const int next_image = tile + 1 < work.last ? this->BuildOffsets(tile + 1, which ^ 1) : 0;
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
      const uint32_t at = stages + stage * p.stage_bytes;
      const char* const x_image = x + image * p.x_batch;
      const char* const dy_image = dy + image * p.dy_batch;
      for (int i = 0; i < p.units_per_warp; ++i) {
        const int unit = this->UnitOf(i), chunk = this->ChunkOf(unit);
        const bool is_x = this->IsX(unit);
        const uint32_t offset = this->OffsetOfUnit(which, unit), target = this->TargetOf(unit);
        const bool inside = offset != kNoCell && 8 * chunk < this->Channels(unit);
        const char* const from =
            (is_x ? x_image : dy_image) + chunk * (is_x ? p.x_chunk : p.dy_chunk) + offset;
        if (target != kNoCell) {
          ptx::CopyAsync16(at + target, from, inside);
          if constexpr (PRODUCTS == 3) {
            ptx::CopyAsync16(at + target + p.part_bytes, from + (is_x ? p.x_low : p.dy_low),
                             inside);
          }
        }
      }
      ptx::CopyAsyncArrive(ptx::SharedAddress(&control.full[stage]));
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
      which ^= 1;
      image = next_image;
    }
  }
};

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_
