// What the parts of the Hopper weight-gradient kernel share: parameters, control words, a block's
// work, and the tables of a tile's cells.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/wgrad_plan.h"
#include "cuda/primitives/box.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::sm90_wgrad {

constexpr int kThreads = 512;
constexpr int kMaxStages = 4;
constexpr int kPromote = 4;           // steps of 16 pixels between promotions, with three products
constexpr int kSlotFloats = 64 * 64;  // of one tap
constexpr int kMostProducerWarps = 8;

// The forms of a block: three warpgroups multiply and one brings the data, or two of each.
template <int WARPGROUPS, int HALVES, int SLOTS>
struct Form {
  static constexpr int kWarpgroups = WARPGROUPS, kHalves = HALVES, kSlots = SLOTS;
  static constexpr WgradForm kForm{WARPGROUPS, HALVES, SLOTS};
  static constexpr int kTapGroups = kForm.tap_groups();
  static constexpr int kConsumerWarps = 4 * WARPGROUPS;
  static constexpr int kProducers = kThreads - 32 * kConsumerWarps;
  static constexpr int kProducerWarps = kProducers / 32;
  static constexpr int kConsumerRegisters = WARPGROUPS == 3 ? 136 : 184;
  static constexpr int kProducerRegisters = WARPGROUPS == 3 ? 104 : 72;
  // Gathers in flight per producer, 8 channels of one cell each: in registers, and for float32
  // apart.
  static constexpr int kUnits = WARPGROUPS == 3 ? 5 : 4, kAhead = WARPGROUPS == 3 ? 8 : 6;
  static_assert(kProducerWarps <= kMostProducerWarps, "they exchange exponents");
  static_assert(kProducers * kProducerRegisters + 32 * kConsumerWarps * kConsumerRegisters <= 65536,
                "registers of a multiprocessor");
};

struct WgradParams {
  const void* x;  // the images, or their cells (kernels/pack_cells.cuh)
  const void* dy;
  float* slots;               // [split][unit][warpgroup][slot][64 x 64 in register order]
  int64_t x_batch, dy_batch;  // strides in bytes
  uint32_t x_channel, dy_channel, x_pixel, dy_pixel;
  // Cells: of a group, of 8 channels, and the magnitudes of float32.
  int64_t x_group, dy_group, x_chunk, dy_chunk;
  const Magnitudes* magnitudes;
  int x_h, x_w, dy_h, dy_w;
  BoxMap x_boxes, dy_boxes;          // cells that kernels/pack_cells.cuh made
  bool x_packed, dy_packed, tables;  // whether there are such, and others
  int groups, image_groups;          // of all images
  int pass_planes;                   // of dy, that a pass loads
  uint32_t box_bytes;                // of a stage
  Divider by_plane_w, by_step;
  int step_h, step_w;  // from one cell to the next of a plane of dy
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, units;
  int tiles, per_split, flush;
  Divider by_strip, by_row;  // a tile's index: strip, row, image
  int rows, columns, halo_rows, halo_columns, planes_w;
  int x_cells, dy_cells, x_groups, dy_groups;  // groups of 32 cells
  int units_per_warp;
  int stages, stage_bytes, part_bytes, dy_at;  // of a stage: high part, then low part; x, then dy
  int x_row_bytes, x_chunk_bytes, dy_row_bytes, dy_chunk_bytes, dy_plane_bytes;
  int pixel_groups;  // 1: the halves of 16 pixels are in two rows, of 8 columns; else 0
  int table_at, raw_at;
  int ahead;  // units in flight
  int plane_h[kMaxPlanes], plane_w[kMaxPlanes];
  int first_row, first_column;
  uint8_t pass_plane_h[kWgradMaxPasses], pass_plane_w[kWgradMaxPasses];  // the first it loads
  uint16_t start[kWgradMaxPlaces];  // of each tap's dy, in cells of a stage
};

struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  int exponent[kMaxStages];  // of x and dy together
  uint32_t exchange[2][2][kMostProducerWarps];
  uint32_t redo[2][kMostProducerWarps];
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
// table ends with a group of cells that do not exist. Both halves of x share its part of a table.
template <typename Form>
struct CellTables {
  static constexpr int kProducers = Form::kProducers, kProducerWarps = Form::kProducerWarps;

  const WgradParams& p;
  const Work work;
  const uint32_t table;  // shared address
  const int warp, lane;

  __device__ int TableCells() const { return (p.x_groups + p.dy_groups + 1) * 32; }
  __device__ __forceinline__ uint32_t At(int part, int cell) const {
    return table + 4 * (part * TableCells() + cell);
  }

  __device__ __forceinline__ uint32_t* Words(int part) const {
    return reinterpret_cast<uint32_t*>(SharedMemory() + p.table_at) + part * TableCells();
  }

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
        place =
            PackPlace(p.step_h * from.row + p.plane_h[p.pass_plane_h[work.pass] + from.plane_h],
                      p.step_w * from.column + p.plane_w[p.pass_plane_w[work.pass] + from.plane_w]);
      }
      Words(0)[cell] = target;
      Words(1)[cell] = place;
    }
  }

  // Fills a table for a tile and returns the tile's image.
  __device__ int BuildOffsets(int tile, int which) const {
    const int x_at = p.by_strip.Split(tile) * p.columns, y = p.by_row.Split(tile) * p.rows;
    for (int cell = threadIdx.x; cell < TableCells(); cell += kProducers) {
      const uint32_t place = ptx::LoadSharedWord(At(1, cell));
      uint32_t offset = kNoCell;
      if (ptx::LoadSharedWord(At(0, cell)) != kNoCell) {
        offset = cell < p.x_groups * 32
                     ? OffsetOf(place, y, x_at, p.x_h, p.x_w, p.x_pixel)
                     : OffsetOf(place, p.step_h * (y + p.first_row),
                                p.step_w * (x_at + p.first_column), p.dy_h, p.dy_w, p.dy_pixel);
      }
      Words(2 + which)[cell] = offset;
    }
    return tile;
  }

  // This lane's entry for the first group of cells.
  __device__ __forceinline__ uint32_t Entry(int part) const { return At(part, lane); }
};

// A producer's way through the units of a tile, which are 32 cells of one chunk of eight channels:
// for each of its chunks the groups of cells of x, one half after the other, then those of dy.
template <typename Form>
struct Walk {
  const WgradParams& p;
  int chunk = 0;       // of its 64 channels
  int part = 0;        // the half of x, or behind them dy
  int left = 0;        // groups
  uint32_t entry = 0;  // shared address of this lane's entry for the present group

  __device__ __forceinline__ bool IsX() const { return part < Form::kHalves; }
  // Goes on, and returns whether another part begins, which is to be entered.
  __device__ __forceinline__ bool Next() {
    if (chunk >= 8) return false;  // behind the end there are only cells that do not exist
    entry += 128;
    if (--left > 0) return false;
    if (++part > Form::kHalves) {
      part = 0;
      chunk += Form::kProducerWarps;
    }
    return true;
  }
  // `first` is the entry for the first group of its table.
  __device__ __forceinline__ void Enter(uint32_t first) {
    left = IsX() ? p.x_groups : p.dy_groups;
    entry = first + 128 * (chunk >= 8 ? p.x_groups + p.dy_groups : IsX() ? 0 : p.x_groups);
  }
};

// The part of an image that a walk is in: where its chunk's channels start, and how many exist.
struct Source {
  const char* base;
  int channels;
};

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_PARAMS_CUH_
