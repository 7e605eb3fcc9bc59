// The weight-gradient kernel's producers that copy ready cells. Those that kernels/pack_cells.cuh
// made come as boxes, a plane each, sent by one thread; 16-bit images whose channels lie together
// are cells themselves, which all threads copy one by one. The stages themselves are what is in
// flight.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_wgrad_params.cuh"
#include "cuda/primitives/box_load.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad {

template <typename Form, int PRODUCTS>
struct CellsProducer : CellTables<Form> {
  using Tables = CellTables<Form>;
  using Tables::p;
  using Tables::work;
  static constexpr int kHalves = Form::kHalves, kProducers = Form::kProducers;

  Control& control;
  const uint32_t stages;  // shared address

  // Copies the groups of one chunk; zeros where its channels or its cells do not exist.
  __device__ __forceinline__ void CopyChunk(const char* from, bool exists, uint32_t offsets,
                                            uint32_t targets, int groups, uint32_t to) const {
#pragma unroll 4
    for (int g = 0; g < groups; ++g, offsets += 128, targets += 128) {
      const uint32_t offset = ptx::LoadSharedWord(offsets), target = ptx::LoadSharedWord(targets);
      if (target == kNoCell) continue;
      const bool inside = exists && offset != kNoCell;
      ptx::CopyAsync16(to + target, from + (inside ? offset : 0), inside);
    }
  }

  // The first position of a tile.
  struct Origin {
    int image, y, x;
  };
  __device__ __forceinline__ Origin OriginOf(int tile) const {
    const int x = p.by_strip.Split(tile) * p.columns, y = p.by_row.Split(tile) * p.rows;
    return {tile, y, x};
  }

  // By one thread: the boxes of a tile in the stage at `at`. Those of low parts follow the others
  // in their tensor.
  __device__ __forceinline__ void CopyX(const Origin& origin, uint32_t at, uint32_t full) const {
    const int group = origin.image * p.groups + work.group;
#pragma unroll
    for (int part = 0; part < (PRODUCTS == 3 ? 2 : 1); ++part) {
      ptx::BoxLoad(
          at + part * p.part_bytes, p.x_boxes,
          {2 * origin.x, 8 * kHalves * work.in_block, origin.y, 0, group + part * p.image_groups},
          full);
    }
  }
  __device__ __forceinline__ void CopyDy(const Origin& origin, uint32_t at, uint32_t full) const {
    const int group = origin.image * p.groups + work.group;
    for (int plane = 0; plane < p.pass_planes; ++plane) {
      int h = plane;
      const int w = p.by_plane_w.Split(h);
      const int y = p.step_h * (origin.y + p.first_row) + p.plane_h[p.pass_plane_h[work.pass] + h];
      // Columns of a remainder lie together.
      int column = p.plane_w[p.pass_plane_w[work.pass] + w];
      const int remainder = p.by_step.Split(column);
#pragma unroll
      for (int part = 0; part < (PRODUCTS == 3 ? 2 : 1); ++part) {
        ptx::BoxLoad(at + part * p.part_bytes + plane * p.dy_plane_bytes, p.dy_boxes,
                     {2 * (origin.x + p.first_column + column), 8 * work.out_block, y, remainder,
                      group + part * p.image_groups},
                     full);
      }
    }
  }

  // By one thread: all boxes of a tile.
  __device__ __forceinline__ void CopyBoxes(int tile, uint32_t at, uint32_t full) const {
    const Origin origin = OriginOf(tile);
    ptx::BarrierExpect(full, p.box_bytes);
    if (p.x_packed) CopyX(origin, at, full);
    if (p.dy_packed) CopyDy(origin, at + p.dy_at, full);
  }
  // The cells that are an image's own.
  __device__ __forceinline__ void CopyCells(int image, uint32_t at, uint32_t offsets,
                                            uint32_t targets) const {
    if (!p.x_packed) {
      const char* const from = static_cast<const char*>(p.x) + image * p.x_batch +
                               work.group * p.x_group + 8 * kHalves * work.in_block * p.x_chunk;
      const int channels = p.in_per_group - work.in_block * 64 * kHalves;
      for (int c = this->warp; c < 8 * kHalves; c += Form::kProducerWarps) {
        CopyChunk(from + c * p.x_chunk, 8 * c < channels, offsets, targets, p.x_groups,
                  at + c * p.x_chunk_bytes);
      }
    }
    if (!p.dy_packed) {
      const char* const from = static_cast<const char*>(p.dy) + image * p.dy_batch +
                               work.group * p.dy_group + 8 * work.out_block * p.dy_chunk;
      const int channels = p.out_per_group - work.out_block * 64;
      const uint32_t entry = 128 * p.x_groups;
      for (int c = this->warp; c < 8; c += Form::kProducerWarps) {
        CopyChunk(from + c * p.dy_chunk, 8 * c < channels, offsets + entry, targets + entry,
                  p.dy_groups, at + c * p.dy_chunk_bytes);
      }
    }
  }

  // Goes through the tiles: `copy` brings one into the stage at an address, and tells its barrier.
  template <typename CopyTile>
  __device__ __forceinline__ void ForEachTile(CopyTile copy) const {
    int stage = 0;
    uint32_t parity = 1;
    for (int tile = work.first; tile < work.last; ++tile) {
      copy(tile, stages + stage * p.stage_bytes, stage, parity);
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  __device__ void Run() const {
    if (work.first >= work.last) return;
    if (!p.tables) {
      if (threadIdx.x != 0) return;
      ForEachTile([&](int tile, uint32_t at, int stage, uint32_t parity) {
        const uint32_t full = ptx::SharedAddress(&control.full[stage]);
        ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
        CopyBoxes(tile, at, full);
        ptx::BarrierArrive(full);
      });
      return;
    }
    int image = this->BuildOffsets(work.first, 0), which = 0;
    ForEachTile([&](int tile, uint32_t at, int stage, uint32_t parity) {
      // This tile's table is there, the other one's use is over.
      ptx::NamedBarrier<1, kProducers>();
      const int next_image = tile + 1 < work.last ? this->BuildOffsets(tile + 1, which ^ 1) : 0;
      const uint32_t full = ptx::SharedAddress(&control.full[stage]);
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
      if (p.box_bytes > 0 && threadIdx.x == 0) CopyBoxes(tile, at, full);
      CopyCells(image, at, this->Entry(2 + which), this->Entry(0));
      ptx::CopyAsyncArrive(full);
      which ^= 1;
      image = next_image;
    });
  }
};

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CELLS_CUH_
