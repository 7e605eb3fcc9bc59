// What the parts of the Hopper weight-gradient kernel share: parameters, control words, a block's
// work, and the tables of a tile's cells.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/wgrad_plan.h"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad {

constexpr int kProducerWarps = 4;
constexpr int kConsumerWarps = 4 * kWgradGroups;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = 32 * (kProducerWarps + kConsumerWarps);
// Gathers in flight per producer, 8 channels of one cell each: in registers, and for float32 apart.
constexpr int kUnits = 5, kAhead = 8;
constexpr int kProducerRegisters = 104, kConsumerRegisters = 136;
constexpr int kMaxStages = 4;
constexpr int kPromote = 4;           // steps of 16 pixels between promotions, with three products
constexpr int kSlotFloats = 64 * 64;  // of one tap

struct WgradParams {
  const void* x;  // the images, or their cells (kernels/pack_cells.cuh)
  const void* dy;
  float* slots;               // [split][unit][warpgroup][slot][64 x 64 in register order]
  int64_t x_batch, dy_batch;  // strides in bytes
  uint32_t x_channel, dy_channel, x_pixel, dy_pixel;
  // Cells: of a group, of 8 channels, from a high part to its low part, and bits of the largest
  // magnitudes of float32.
  int64_t x_group, dy_group, x_chunk, dy_chunk, x_low, dy_low;
  const uint32_t *x_largest, *dy_largest;
  int x_h, x_w, dy_h, dy_w;
  int step_h, step_w;  // from one cell to the next of a plane of dy
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, units;
  int tiles, per_split, flush;
  Divider by_strip, by_row;  // a tile's index: strip, row, image
  int rows, columns, halo_rows, halo_columns, planes_w;
  int x_cells, dy_cells, x_groups, cell_groups, units_per_warp;  // groups of 32 cells, x first
  int stages, stage_bytes, part_bytes, dy_at;  // of a stage: high part, then low part; x, then dy
  int x_row_bytes, dy_row_bytes, dy_plane_bytes;
  int pixel_groups;  // distance between the two halves of 16 pixels: 128, or a row for 8 columns
  int table_at, raw_at;
  int ahead;  // units in flight
  int plane_h[kMaxPlanes], plane_w[kMaxPlanes];
  int first_row, first_column;
  int start[kWgradMaxLanes * kWgradMaxSlots];  // of each tap's dy, in cells of a stage
};

struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  int exponent[kMaxStages];  // of x and dy together
  uint32_t exchange[2][2][kProducerWarps];
  uint32_t redo[2][kProducerWarps];
};
constexpr int kControlBytes = 512;
static_assert(sizeof(Control) <= kControlBytes, "the stages start behind it");

// What one block works on: blockIdx.x = split * units + unit, so that neighbours share tiles.
struct Work {
  int group, in_block, out_block, pass;
  int first, last;  // tiles
  __device__ explicit Work(const WgradParams& p) {
    int unit = blockIdx.x % p.units;
    const int split = blockIdx.x / p.units;
    pass = unit % p.passes;
    unit /= p.passes;
    out_block = unit % p.out_blocks;
    unit /= p.out_blocks;
    in_block = unit % p.in_blocks;
    group = unit / p.in_blocks;
    first = split * p.per_split;
    last = min(first + p.per_split, p.tiles);
  }
};

// What the producers of both kinds know of a tile's cells: by cell, the byte where its chunk 0 goes
// in a stage, its place relative to the tile, and two tables of its offset in its image. Every
// table ends with a group of cells that do not exist.
struct CellTables {
  const WgradParams& p;
  const Work work;
  uint32_t* const table;
  const int warp, lane;

  __device__ int TableCells() const { return (p.cell_groups + 1) * 32; }
  __device__ uint32_t* Part(int i) const { return table + i * TableCells(); }

  __device__ void BuildPlaces() const {
    for (int cell = threadIdx.x; cell < TableCells(); cell += kThreads) {
      const int dy_cell = cell - p.x_groups * 32;
      uint32_t target = kNoCell, place = 0;
      if (dy_cell < 0) {
        const int row = cell / p.columns, column = cell - row * p.columns;
        if (cell < p.x_cells) target = row * p.x_row_bytes + column * 16;
        place = PackPlace(row, column);
      } else if (dy_cell < p.dy_cells) {
        const LoadedCell from(dy_cell, p.halo_rows, p.halo_columns, p.planes_w);
        const int plane = from.plane_h * p.planes_w + from.plane_w;
        target = p.dy_at + plane * p.dy_plane_bytes + from.row * p.dy_row_bytes + from.column * 16;
        place = PackPlace(p.step_h * from.row + p.plane_h[from.plane_h],
                          p.step_w * from.column + p.plane_w[from.plane_w]);
      }
      Part(0)[cell] = target;
      Part(1)[cell] = place;
    }
  }

  // Fills a table for a tile and returns the tile's image.
  __device__ int BuildOffsets(int tile, int which) const {
    const int x_at = p.by_strip.Split(tile) * p.columns, y = p.by_row.Split(tile) * p.rows;
    for (int cell = threadIdx.x; cell < TableCells(); cell += kProducers) {
      const uint32_t place = Part(1)[cell];
      uint32_t offset = kNoCell;
      if (Part(0)[cell] != kNoCell) {
        offset = cell < p.x_groups * 32
                     ? OffsetOf(place, y, x_at, p.x_h, p.x_w, p.x_pixel)
                     : OffsetOf(place, p.step_h * (y + p.first_row),
                                p.step_w * (x_at + p.first_column), p.dy_h, p.dy_w, p.dy_pixel);
      }
      Part(2 + which)[cell] = offset;
    }
    return tile;
  }

  // Unit u of a tile is chunk u % 8 of the 32 cells of group u / 8.
  __device__ __forceinline__ int UnitOf(int i) const { return warp + kProducerWarps * i; }
  __device__ __forceinline__ int GroupOf(int unit) const { return min(unit / 8, p.cell_groups); }
  __device__ __forceinline__ bool IsX(int unit) const { return GroupOf(unit) < p.x_groups; }
  __device__ __forceinline__ uint32_t OffsetOfUnit(int which, int unit) const {
    return Part(2 + which)[GroupOf(unit) * 32 + lane];
  }
  // Where a unit's cells go in a stage, or kNoCell.
  __device__ __forceinline__ uint32_t TargetOf(int unit) const {
    const uint32_t place = Part(0)[GroupOf(unit) * 32 + lane];
    const int chunk = unit % 8 * ((IsX(unit) ? p.x_row_bytes : p.dy_row_bytes) / 8);
    return place == kNoCell ? kNoCell : place + chunk;
  }
  // Of the block, from its first channel on.
  __device__ __forceinline__ int Channels(int unit) const {
    return IsX(unit) ? p.in_per_group - work.in_block * 64 : p.out_per_group - work.out_block * 64;
  }
};

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_
