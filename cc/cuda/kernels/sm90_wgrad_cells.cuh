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

  // Copies the groups of one chunk; zeros where its channels or its cells do not exist.
  __device__ __forceinline__ void Copy(const char* from, int64_t low, bool exists, uint32_t offsets,
                                       uint32_t targets, int groups, uint32_t to) const {
#pragma unroll 4
    for (int g = 0; g < groups; ++g, offsets += 128, targets += 128) {
      const uint32_t offset = ptx::LoadSharedWord(offsets), target = ptx::LoadSharedWord(targets);
      if (target == kNoCell) continue;
      const bool inside = exists && offset != kNoCell;
      const char* const cell = from + (inside ? offset : 0);
      ptx::CopyAsync16(to + target, cell, inside);
      if constexpr (PRODUCTS == 3) ptx::CopyAsync16(to + target + p.part_bytes, cell + low, inside);
    }
  }

  __device__ void Run() const {
    if (work.first >= work.last) return;
    constexpr int kHalves = Form::kHalves;
    const char* const x = static_cast<const char*>(p.x) + work.group * p.x_group +
                          8 * kHalves * work.in_block * p.x_chunk;
    const char* const dy =
        static_cast<const char*>(p.dy) + work.group * p.dy_group + 8 * work.out_block * p.dy_chunk;
    const int x_channels = p.in_per_group - work.in_block * 64 * kHalves;
    const int dy_channels = p.out_per_group - work.out_block * 64;
    const uint32_t dy_entry = 128 * p.x_groups, targets = this->Entry(0);
    int image = this->BuildOffsets(work.first, 0), which = 0, stage = 0;
    uint32_t parity = 1;
    for (int tile = work.first; tile < work.last; ++tile) {
      // This tile's table is there, the other one's use is over.
      ptx::NamedBarrier<1, Form::kProducers>();
      const int next_image = tile + 1 < work.last ? this->BuildOffsets(tile + 1, which ^ 1) : 0;
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
      const uint32_t at = stages + stage * p.stage_bytes, offsets = this->Entry(2 + which);
      const char* const x_image = x + image * p.x_batch;
      const char* const dy_image = dy + image * p.dy_batch;
      for (int chunk = this->warp; chunk < 8; chunk += Form::kProducerWarps) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const int c = chunk + 8 * half;
          Copy(x_image + c * p.x_chunk, p.x_low, 8 * c < x_channels, offsets, targets, p.x_groups,
               at + c * p.x_chunk_bytes);
        }
        Copy(dy_image + chunk * p.dy_chunk, p.dy_low, 8 * chunk < dy_channels, offsets + dy_entry,
             targets + dy_entry, p.dy_groups, at + chunk * p.dy_chunk_bytes);
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
