// The tile kernel's producers that copy ready cells: 16-bit images whose channels lie together, and
// those that kernels/pack_cells.cuh made. The stages themselves are what is in flight.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_TILE_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_TILE_CELLS_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_tile_params.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_tile {

template <int PRODUCTS>
struct CellsProducer : CellTables {
  Control& control;
  const uint32_t stages;  // shared address of stage 0

  __device__ void Run() const {
    int index = blockIdx.x, which = 0;
    Tile tile = Next(index);
    if (index >= p.tiles) return;
    BuildPlaces();
    ptx::NamedBarrier<1, kProducers>();
    BuildOffsets(tile, 0);
    int stage = 0;
    uint32_t parity = 1;
    while (index < p.tiles) {
      int next_index = index + gridDim.x;
      const Tile next_tile = Next(next_index);
      ptx::NamedBarrier<1,
                        kProducers>();  // this tile's table is there, the other one's use is over
      if (next_index < p.tiles) BuildOffsets(next_tile, which ^ 1);
      const uint32_t* const offsets = OffsetsOf(which);
      const char* const base = static_cast<const char*>(p.source) + tile.image * p.source_batch +
                               tile.group * p.source_group;
      for (int slab = 0; slab < p.slabs; slab += p.depth) {
        ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
        const uint32_t at = stages + stage * p.stage_bytes;
        for (int i = 0; i < p.units_per_warp; ++i) {
          const int unit = UnitOf(i), chunk = ChunkOf(unit);
          const uint32_t offset = offsets[CellOf(unit)], target = TargetOf(unit);
          const bool inside = offset != kNoCell && 8 * (2 * slab + chunk) < p.k_per_group;
          const char* const from = base + (2 * slab + chunk) * p.source_chunk + offset;
          const uint32_t to = at + chunk * p.chunk_pitch + target;
          if (target != kNoCell) {
            ptx::CopyAsync16(to, from, inside);
            if constexpr (PRODUCTS == 3) {
              ptx::CopyAsync16(to + p.low_at, from + p.source_low, inside);
            }
          }
        }
        ptx::CopyAsyncArrive(ptx::SharedAddress(&control.full[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      index = next_index;
      tile = next_tile;
      which ^= 1;
    }
  }
};

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_KERNELS_SM90_TILE_CELLS_CUH_
