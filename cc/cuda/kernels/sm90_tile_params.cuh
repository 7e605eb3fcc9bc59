// What the parts of the Hopper tile kernel share: parameters, control words, tiles, and the tables
// of a tile's cells.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_TILE_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_TILE_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/tile_plan.h"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_tile {

// Registers move between whole warpgroups, so the weight warp completes the producers' second one.
constexpr int kProducerWarps = 7;
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = 32 * (kProducerWarps + 1 + kConsumerWarps);
constexpr int kProducerRegisters = 80, kConsumerRegisters = 176;
// Gathers in flight per producer, 8 channels of one cell each: in registers, and for float32 apart.
constexpr int kUnits = 4, kAhead = 6;
constexpr int kSlabChannels = 16;  // one wgmma step
constexpr int kMaxDepth = 8;       // slabs of a stage
constexpr int kMaxStages = 8;
constexpr int kTapBytes = 64 * kSlabChannels * 2;  // one packed operand of one tap

struct TileParams {
  const void* source;
  void* target;
  const void* bias;        // null if there is none
  const uint8_t* weights;  // packed: [group][m block][row residue][slab][tap][operand][64 x 16]
  const float* scales;     // float32: what one packed weight unit of each target channel is worth
  int64_t source_batch;    // strides in bytes
  uint32_t source_channel, source_pixel;
  int64_t target_batch, target_channel, target_row, target_column;  // strides in elements
  int source_h, source_w, target_h, target_w;
  int source_step_h, source_step_w, target_step_h, target_step_w;
  int groups, k_per_group, m_per_group, slabs, m_blocks;
  int depth;         // slabs of a stage
  int rows, blocks;  // of a tile: target rows of its residue; blocks of 64 target channels, 1 or 2
  int residues_h, residues_w;
  int tiles;
  // A tile's index, from the fastest part on: channel blocks, row residue, strip, row, group,
  // image.
  Divider by_block, by_residue, by_strip, by_row, by_group;
  int strip, lead;  // targets between two tiles' origins, and how many the first lies before 0
  int granule;      // as StripRow has it
  bool folded, channels_first;
  bool turns;    // whether the warpgroups multiply in turns
  bool vectors;  // a lane's targets of a row are aligned and contiguous
  bool pairs;    // as StripRow has it
  int halo_rows, halo_columns, plane_pitch, cells, planes_w;
  int group_pitch, row_cells;  // between 8 columns of an instruction (bytes), between instructions
  int cell_groups, units_per_warp;  // groups of 32 cells; units of a warp in a stage
  int ahead, chunk_shift;           // units in flight; 2 * depth as a power of two
  int chunk_taps, stages, weight_stages;
  // Byte offsets in shared memory.
  int chunk_pitch, low_at, stage_bytes, weight_bytes, block_bytes, staging_pitch;
  int weights_at, staging_at, table_at, raw_at;
  int plane_h[kMaxPlanes], plane_w[kMaxPlanes];
  int first_row[kMaxResidues];
  int first_column;
  int first_tap[kMaxResidues + 1];
  int residue_begin[kMaxResidues][kMaxResidues + 1];
  int tap_cell[kMaxTileTaps];
};

// Barriers and small exchanges, at the start of shared memory.
struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  uint64_t weight_full[kMaxStages], weight_empty[kMaxStages];
  uint64_t turn[2];  // of a warpgroup, to multiply
  int exponent[kMaxStages];
  uint32_t exchange[2][kProducerWarps];
  uint32_t redo[kProducerWarps];
};
constexpr int kControlBytes = 512;
static_assert(sizeof(Control) <= kControlBytes, "the stages start behind it");

// Where a tile lies.
struct Tile {
  int group, m_block, residue, image;  // the first block
  int row, column;  // first target of its residue class; the column may be negative (lead)
  int strip;
  int taps;
  __device__ Tile(const TileParams& p, int index) {
    m_block = p.by_block.Split(index) * p.blocks;
    residue = p.by_residue.Split(index);
    strip = p.by_strip.Split(index);
    row = p.by_row.Split(index) * p.rows;
    group = p.by_group.Split(index);
    image = index;
    column = strip * p.strip - p.lead;
    taps = p.first_tap[residue + 1] - p.first_tap[residue];
  }
};

// What the producers know of a tile's cells: by loaded cell, its place relative to
// the tile, where it goes in a chunk (bytes, or kNoCell), then two tables of its offset in the
// source. Every table ends with a group of cells that do not exist.
struct CellTables {
  const TileParams& p;
  uint32_t* const places;
  const int warp, lane;

  __device__ int TableCells() const { return (p.cell_groups + 1) * 32; }
  __device__ uint32_t* OffsetsOf(int which) const { return places + (2 + which) * TableCells(); }

  __device__ void BuildPlaces() const {
    for (int n = threadIdx.x; n < TableCells(); n += kProducers) {
      const LoadedCell cell(n, p.halo_rows, p.halo_columns, p.planes_w);
      const int plane = cell.plane_h * p.planes_w + cell.plane_w;
      const bool exists = n < p.cells;
      places[n] = exists ? PackPlace(p.source_step_h * cell.row + p.plane_h[cell.plane_h],
                                     p.source_step_w * cell.column + p.plane_w[cell.plane_w])
                         : kNoCell;
      places[TableCells() + n] =
          exists ? 16 * (plane * p.plane_pitch + cell.row * p.halo_columns + cell.column) : kNoCell;
    }
  }
  __device__ void BuildOffsets(const Tile& tile, int which) const {
    uint32_t* const out = OffsetsOf(which);
    const int y = p.source_step_h * (tile.row + p.first_row[tile.residue]);
    const int x = p.source_step_w * (tile.column + p.first_column);
    for (int cell = threadIdx.x; cell < p.cells; cell += kProducers) {
      out[cell] = OffsetOf(places[cell], y, x, p.source_h, p.source_w, p.source_pixel);
    }
    for (int cell = p.cells + threadIdx.x; cell < TableCells(); cell += kProducers) {
      out[cell] = kNoCell;
    }
  }

  // Unit u of a stage is chunk u % (2 * depth) of the 32 cells of group u / (2 * depth).
  __device__ __forceinline__ int UnitOf(int i) const { return warp + kProducerWarps * i; }
  __device__ __forceinline__ int ChunkOf(int unit) const {
    return unit & ((1 << p.chunk_shift) - 1);
  }
  __device__ __forceinline__ int CellOf(int unit) const {
    return min(unit >> p.chunk_shift, p.cell_groups) * 32 + lane;
  }
  __device__ __forceinline__ int Units() const { return 2 * p.depth * p.cell_groups; }
  __device__ __forceinline__ uint32_t TargetOf(int unit) const {
    return places[TableCells() + CellOf(unit)];
  }

  // The first tile from `index` on that has a source: residues without taps have none.
  __device__ Tile Next(int& index) const {
    Tile tile(p, min(index, p.tiles - 1));
    while (tile.taps == 0 && index < p.tiles) {
      index += gridDim.x;
      tile = Tile(p, min(index, p.tiles - 1));
    }
    return tile;
  }
};

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_KERNELS_SM90_TILE_PARAMS_CUH_
