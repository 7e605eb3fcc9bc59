// Hopper's dense kernel for the forward pass and the gradient of x: halo tiles and wgmma.
//
// A block walks over tiles (core/tile_plan.h). For each, two warpgroups compute 64 target channels
// x ROWS rows x N columns x RES column residues, the weights being the M operand and the pixels the
// N operand, so that targets are contiguous along a row. They share the channels and split the
// rows, or share the rows and take 64 channels each, and then a source cell is converted half as
// often. The sum runs over slabs of 16 source channels, and within a slab over the kernel's taps.
//
// Where rows are short, the N operand is folded: N / 8 rows of 8 columns, which lie a halo row
// apart, and the ROWS instructions are neighbours along the row.
//
//     7 producer warps   gather a stage, the halo of a few slabs, from the source in any layout,
//                        convert it to 16 bits and store it as blocked-8 cells [chunk of 8
//                        channels][cell][8]; a cell is loaded and converted once for every tap
//     1 weight warp      brings the packed weights of a few taps at a time by bulk copies
//     8 consumer warps   two warpgroups: for every tap, one wgmma per row, whose pixel operand
//                        starts at the tap's cell; then the epilogue
//
// float32 is multiplied in float16 with a power-of-two scale that follows the data ("block
// exponent"), which keeps TF32's 11-bit significands at twice its rate. The scale is kept while the
// largest magnitude of every slab stays inside a window of 19 binades; else the slab is gathered
// again with the right one. With PRODUCTS = 3 the low parts of both operands are multiplied too
// (Ootomo and Yokota, arXiv:2203.03341), and partial sums leave the truncating tensor-core
// accumulators after every chunk of taps: as accurate as float32 multiply-adds.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/divider.h"
#include "core/tile_plan.h"
#include "cuda/kernels/cells_ahead.cuh"
#include "cuda/kernels/store_rows.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/wgmma.cuh"

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
  bool folded, channels_first;
  bool vectors;  // a lane's targets of a row are aligned and contiguous
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

// ---- Producers ----

template <typename T, int ROWS, int PRODUCTS>
struct Producer {
  using Raw = typename Element<T>::Raw;
  static constexpr bool kScaled = sizeof(T) == 4, kAsync = sizeof(T) == 4;

  const TileParams& p;
  Control& control;
  const uint32_t stages, raw;  // shared addresses of stage 0 and of this lane's cells in flight
  // By loaded cell: its place relative to the tile, where it goes in a chunk (bytes, or kNoCell),
  // then two tables of its offset in the source.
  uint32_t* const places;
  const int warp, lane;
  int exponent = kMinExponent;
  float scale = ScaleOf(kMinExponent);

  // What a stage's gathers start from.
  struct Source {
    const char* base;
    const uint32_t* offsets;
    int channels;  // that exist; 0 if there is no such stage
  };

  // Every table ends with a group of cells that do not exist.
  __device__ int TableCells() const { return (p.cell_groups + 1) * 32; }
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

  __device__ uint32_t* OffsetsOf(int which) const { return places + (2 + which) * TableCells(); }

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

  __device__ Source SourceOf(const Tile& tile, int which) const {
    return {static_cast<const char*>(p.source) + tile.image * p.source_batch +
                static_cast<int64_t>(tile.group) * p.k_per_group * p.source_channel,
            OffsetsOf(which), p.k_per_group};
  }

  __device__ __forceinline__ int Units() const { return 2 * p.depth * p.cell_groups; }

  // Unit u of a stage is chunk u % (2 * depth) of the 32 cells of group u / (2 * depth).
  __device__ __forceinline__ int UnitOf(int i) const { return warp + kProducerWarps * i; }
  __device__ __forceinline__ int ChunkOf(int unit) const {
    return unit & ((1 << p.chunk_shift) - 1);
  }
  __device__ __forceinline__ int CellOf(int unit) const {
    return min(unit >> p.chunk_shift, p.cell_groups) * 32 + lane;
  }

  // Where a unit's loads start, and how many channels exist from there on.
  struct Place {
    const char* base;
    uint32_t offset;
    int channels;
  };
  __device__ __forceinline__ Place PlaceOf(const Source& from, int unit) const {
    const int chunk = ChunkOf(unit);
    return {from.base + chunk * (8 * int64_t{p.source_channel}), from.offsets[CellOf(unit)],
            from.channels - chunk * 8};
  }
  __device__ __forceinline__ void Gather(Raw (&v)[8], const Source& from, int unit) const {
    const Place place = PlaceOf(from, unit);
    GatherCell(v, place.base, p.source_channel, place.offset, place.channels);
  }

  __device__ __forceinline__ void Start(CellsAhead<kAhead>& cells, const Source& from,
                                        int unit) const {
    const Place place = PlaceOf(from, unit);
    cells.Start(place.base, p.source_channel, place.offset, place.channels);
  }

  // Converts one unit and stores its cells; returns the largest scaled magnitudes, two halves.
  __device__ __forceinline__ uint32_t Put(const Raw (&v)[8], uint32_t stage, int unit,
                                          uint32_t largest) const {
    const uint32_t to = places[TableCells() + CellOf(unit)];
    uint32_t packed[4], low[4];
    largest = ConvertCell<T, PRODUCTS, 2048>(v, scale, packed, low, largest);
    const bool exists = to != kNoCell;
    const uint32_t at = stage + ChunkOf(unit) * p.chunk_pitch + to;
    ptx::StoreShared128If(at, make_uint4(packed[0], packed[1], packed[2], packed[3]), exists);
    if constexpr (PRODUCTS == 3) {
      ptx::StoreShared128If(at + p.low_at, make_uint4(low[0], low[1], low[2], low[3]), exists);
    }
    return largest;
  }

  // Largest of a value over all producer warps.
  __device__ uint32_t MaxOfAll(uint32_t value, uint32_t* slots) const {
    value = __reduce_max_sync(0xffffffffu, value);
    if (lane == 0) slots[warp] = value;
    ptx::NamedBarrier<1, kProducers>();
    return __reduce_max_sync(0xffffffffu, slots[lane % kProducerWarps]);
  }

  // A stage left the window: finds the scale that it needs and, if that is another one, gathers it
  // again. Within a tile the exponent never falls, since sums of earlier stages already carry it.
  // Rare, so a call; by value, so that the caller's state stays in registers.
  static __device__ __noinline__ int Redo(const TileParams& p, Control& control, uint32_t* places,
                                          Source source, uint32_t stage, int exponent, bool first) {
    Producer self{p,
                  control,
                  0,
                  0,
                  places,
                  static_cast<int>(threadIdx.x) / 32,
                  static_cast<int>(threadIdx.x) % 32,
                  exponent,
                  0.f};
    uint32_t largest = 0;
    for (int u = self.warp; u < self.Units(); u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, source, u);
      largest = LargestBits(v, largest);
    }
    largest = self.MaxOfAll(largest, control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    const int needed = NeededExponent(largest, exponent, first);
    if (needed == exponent) return exponent;
    self.scale = ScaleOf(needed);
    for (int u = self.warp; u < self.Units(); u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, source, u);
      self.Put(v, stage, u, 0);
    }
    return needed;
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

  __device__ void Run() {
    int index = blockIdx.x, which = 0;
    const Tile first = Next(index);
    if (index >= p.tiles) return;
    BuildPlaces();
    ptx::NamedBarrier<1, kProducers>();
    BuildOffsets(first, 0);
    ptx::NamedBarrier<1, kProducers>();
    Source current = SourceOf(first, 0);
    CellsAhead<kAhead> cells{raw, p.ahead};
    Raw v[kAsync ? 1 : kUnits][8];
    if constexpr (kAsync) {
      for (int i = 0; i < p.ahead; ++i) Start(cells, current, UnitOf(i));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) Gather(v[i], current, UnitOf(i));
    }

    int stage = 0;
    uint32_t parity = 1, turn = 0;
    while (index < p.tiles) {
      int next_index = index + gridDim.x;
      const Tile next_tile = Next(next_index);
      const bool more = next_index < p.tiles;
      ptx::NamedBarrier<1, kProducers>();  // nobody gathers by the table that is overwritten now
      if (more) BuildOffsets(next_tile, which ^ 1);
      ptx::NamedBarrier<1, kProducers>();
      for (int slab = 0; slab < p.slabs; slab += p.depth) {
        Source next = current;
        next.base += p.depth * kSlabChannels * int64_t{p.source_channel};
        next.channels -= p.depth * kSlabChannels;
        if (slab + p.depth >= p.slabs) {
          next = SourceOf(next_tile, which ^ 1);
          if (!more) next.channels = 0;
        }
        ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
        const uint32_t at = stages + stage * p.stage_bytes;
        uint32_t largest = 0;
        if constexpr (kAsync) {
          int i = 0;
          for (; i < p.units_per_warp - p.ahead; ++i) {
            cells.Take(v[0]);
            largest = Put(v[0], at, UnitOf(i), largest);
            Start(cells, current, UnitOf(i + p.ahead));
          }
          for (; i < p.units_per_warp; ++i) {
            cells.Take(v[0]);
            largest = Put(v[0], at, UnitOf(i), largest);
            Start(cells, next, UnitOf(i + p.ahead - p.units_per_warp));
          }
        } else {
          for (int j = 0; j < p.units_per_warp; j += kUnits) {
            const bool last = j + kUnits >= p.units_per_warp;
#pragma unroll
            for (int i = 0; i < kUnits; ++i) {
              largest = Put(v[i], at, UnitOf(j + i), largest);
              const Source from{last ? next.base : current.base,
                                last ? next.offsets : current.offsets,
                                last ? next.channels : current.channels};
              Gather(v[i], from, UnitOf(last ? i : j + i + kUnits));
            }
          }
        }
        if constexpr (kScaled) {
          largest = max(largest & 0xffffu, largest >> 16);
          largest = MaxOfAll(largest, control.exchange[turn]);
          turn ^= 1;
          if (LeavesWindow(largest, slab == 0)) {
            exponent = Redo(p, control, places, current, at, exponent, slab == 0);
            scale = ScaleOf(exponent);
          }
          if (threadIdx.x == 0) control.exponent[stage] = exponent;
        }
        ptx::FenceAsync();
        __syncwarp();
        if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
        current = next;
      }
      index = next_index;
      which ^= 1;
    }
    ptx::CopyAsyncWait<0>();
  }
};

// ---- Weights ----

// One thread; the order is that of the consumers: tile, slab, chunk of taps.
template <int ROWS, int PRODUCTS>
__device__ void FeedWeights(const TileParams& p, Control& control, uint32_t ring) {
  constexpr int kTap = PRODUCTS * kTapBytes;
  int slot = 0;
  uint32_t parity = 1;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const Tile tile(p, index);
    const int64_t block = (static_cast<int64_t>(tile.group) * p.m_blocks + tile.m_block) * p.slabs;
    const uint8_t* from = p.weights + (block * p.first_tap[p.residues_h] +
                                       static_cast<int64_t>(p.slabs) * p.first_tap[tile.residue]) *
                                          kTap;
    const int64_t to_second = int64_t{p.slabs} * p.first_tap[p.residues_h] * kTap;
    const bool second = p.blocks == 2 && tile.m_block + 1 < p.m_blocks;
    for (int slab = 0; slab < p.slabs; ++slab) {
      for (int tap = 0; tap < tile.taps; tap += p.chunk_taps) {
        const uint32_t bytes = min(p.chunk_taps, tile.taps - tap) * kTap;
        const uint32_t full = ptx::SharedAddress(&control.weight_full[slot]);
        ptx::BarrierWait(ptx::SharedAddress(&control.weight_empty[slot]), parity);
        ptx::BarrierArriveExpect(full, second ? 2 * bytes : bytes);
        ptx::BulkLoad(ring + slot * p.weight_bytes, from, bytes, full);
        if (second) {
          ptx::BulkLoad(ring + slot * p.weight_bytes + p.block_bytes, from + to_second, bytes,
                        full);
        }
        from += bytes;
        if (++slot == p.weight_stages) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }
}

// ---- Consumers ----

template <typename T, int N, int RES, int ROWS, int PRODUCTS>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  static constexpr bool kScaled = sizeof(T) == 4;
  static constexpr int kRegisters = N / 2;

  const TileParams& p;
  Control& control;
  const uint32_t stages, ring;
  T* const staging;            // this warp's: 8 channels
  const int block, first_row;  // this warpgroup's, of the tile
  const int warp, lane;

  template <typename Value>
  __device__ __forceinline__ void StoreRows(const Value& value, const Tile& tile, int tile_row) {
    const int row = (tile.row + tile_row) * p.target_step_h + tile.residue;
    if (row >= p.target_h) return;
    const int m = (tile.m_block + block) * 64 + warp * 16;
    const StripRow strip{
        tile.image * p.target_batch +
            (static_cast<int64_t>(tile.group) * p.m_per_group + m) * p.target_channel +
            row * p.target_row,
        p.target_channel,
        p.m_per_group - m,
        p.target_w,
        tile.column * p.target_step_w,
        p.target_step_w,
        p.residues_w,
        tile.strip,
        static_cast<int>(p.by_strip.divisor),
        p.strip,
        p.lead};
    StoreStripRow<T, N, RES>(value, strip, static_cast<T*>(p.target), staging, p.staging_pitch,
                             lane);
  }

  // From registers: in NHWC the eight lanes of one pixel write eight consecutive channels, and in
  // folded tiles four lanes write what eight columns become.
  template <typename Value>
  __device__ __forceinline__ void StoreDirect(const Value& value, const Tile& tile, int y) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = (tile.m_block + block) * 64 + warp * 16 + half * 8 + lane / 4;
      if (m >= p.m_per_group) continue;
      T* const channel = static_cast<T*>(p.target) + tile.image * p.target_batch +
                         (static_cast<int64_t>(tile.group) * p.m_per_group + m) * p.target_channel;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const int row =
            (tile.row + first_row + (p.folded ? j : y)) * p.target_step_h + tile.residue;
        const int column = tile.column + 8 * (p.folded ? y : j) + 2 * (lane % 4);
        if (row >= p.target_h) continue;
        T* const to = channel + row * p.target_row;
        if constexpr (RES <= 2) {
          if (p.vectors) {
            struct alignas(2 * RES * sizeof(T)) Vector {
              T value[2 * RES];
            } vector;
#pragma unroll
            for (int i = 0; i < 2 * RES; ++i) {
              vector.value[i] = Round<T>(value(i % RES, half, 4 * j + 2 * half + i / RES));
            }
            if (column * RES < p.target_w) *reinterpret_cast<Vector*>(to + column * RES) = vector;
            continue;
          }
        }
#pragma unroll
        for (int r = 0; r < RES; ++r) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int x = (column + e) * p.target_step_w + r;
            if (r < p.residues_w && x >= 0 && x < p.target_w) {
              to[x * p.target_column] = Round<T>(value(r, half, 4 * j + 2 * half + e));
            }
          }
        }
      }
    }
  }

  __device__ void Run() {
    float sum[RES][ROWS][kRegisters];
    int stage = 0, slot = 0;
    uint32_t parity = 0, weight_parity = 0;
    const uint64_t weights = wgmma::Descriptor(1024, 128) | ((ring + block * p.block_bytes) >> 4);
    const uint64_t pixels = wgmma::Descriptor(p.chunk_pitch, p.group_pitch) | (stages >> 4);

    for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
      const Tile tile(p, index);
      const int first_tap = p.first_tap[tile.residue];
      int exponent = 0;
#pragma unroll
      for (int r = 0; r < RES; ++r) {
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
#pragma unroll
          for (int i = 0; i < kRegisters; ++i) sum[r][y][i] = 0.f;
        }
      }
      const int slabs = tile.taps > 0 ? p.slabs : 0;
      for (int slab = 0; slab < slabs; slab += p.depth) {
        ptx::BarrierWait(ptx::SharedAddress(&control.full[stage]), parity);
        if constexpr (kScaled) {
          // Sums so far carry the exponent of the stage before. Not conditional: a branch here
          // would make the compiler serialise the matrix instructions.
          const int now = control.exponent[stage];
          const float factor = slab == 0 ? 1.f : PowerOfTwo(max(exponent - now, -126));
          exponent = now;
#pragma unroll
          for (int r = 0; r < RES; ++r) {
#pragma unroll
            for (int y = 0; y < ROWS; ++y) {
#pragma unroll
              for (int i = 0; i < kRegisters; ++i) sum[r][y][i] *= factor;
            }
          }
        }
        const uint64_t row_cells = pixels + static_cast<uint32_t>(stage * (p.stage_bytes >> 4) +
                                                                  first_row * p.halo_columns);
        const int depth = min(p.depth, slabs - slab);
        for (int d = 0; d < depth; ++d) {
          const uint64_t cells = row_cells + static_cast<uint32_t>(d * (p.chunk_pitch >> 3));
          for (int tap = 0; tap < tile.taps; tap += p.chunk_taps) {
            ptx::BarrierWait(ptx::SharedAddress(&control.weight_full[slot]), weight_parity);
            Accumulate(sum, tile.residue, first_tap + tap,
                       first_tap + min(tap + p.chunk_taps, tile.taps),
                       weights + static_cast<uint32_t>(slot * (p.weight_bytes >> 4)), cells);
            if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.weight_empty[slot]));
            if (++slot == p.weight_stages) {
              slot = 0;
              weight_parity ^= 1;
            }
          }
        }
        if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      Store(sum, tile, exponent);
    }
    if (lane < 8) ptx::BulkWait<0>();
  }

  // Adds the products of taps [begin, end) of one slab.
  __device__ __forceinline__ void Accumulate(float (&sum)[RES][ROWS][kRegisters], int residue,
                                             int begin, int end, uint64_t weights,
                                             uint64_t row_cells) const {
    if constexpr (PRODUCTS == 1) {
      Products(sum, residue, begin, end, weights, row_cells);
    } else {
      float part[RES][ROWS][kRegisters];
#pragma unroll
      for (int r = 0; r < RES; ++r) {
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
#pragma unroll
          for (int i = 0; i < kRegisters; ++i) part[r][y][i] = 0.f;
        }
      }
      Products(part, residue, begin, end, weights, row_cells);
#pragma unroll
      for (int r = 0; r < RES; ++r) {
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
#pragma unroll
          for (int i = 0; i < kRegisters; ++i) sum[r][y][i] += part[r][y][i];
        }
      }
    }
  }

  __device__ __forceinline__ void Products(float (&d)[RES][ROWS][kRegisters], int residue,
                                           int begin, int end, uint64_t weights,
                                           uint64_t row_cells) const {
    constexpr uint32_t kTap = PRODUCTS * kTapBytes >> 4;
#pragma unroll
    for (int r = 0; r < RES; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) wgmma::Pin(d[r][y]);
    }
    wgmma::Fence();
#pragma unroll
    for (int r = 0; r < RES; ++r) {
      const int from = max(begin, p.residue_begin[residue][r]);
      const int to = RES == 1 ? end : min(end, p.residue_begin[residue][r + 1]);
      for (int t = from; t < to; ++t) {
        const uint64_t a = weights + static_cast<uint32_t>(t - begin) * kTap;
        const uint64_t b = row_cells + static_cast<uint32_t>(p.tap_cell[t]);
        wgmma::Fence();
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
          const uint64_t c = b + static_cast<uint32_t>(y * p.row_cells);
          if constexpr (PRODUCTS == 3) {
            // The small products first: less is cut off when the large one joins.
            const uint64_t c_low = c + static_cast<uint32_t>(p.low_at >> 4);
            wgmma::Multiply<Operand, N>::Run(d[r][y], a + 2 * (kTapBytes >> 4), c_low, 1);
            wgmma::Multiply<Operand, N>::Run(d[r][y], a + (kTapBytes >> 4), c, 1);
          }
          wgmma::Multiply<Operand, N>::Run(d[r][y], a, c, 1);
        }
      }
    }
    wgmma::Commit();
    wgmma::Wait<0>();
#pragma unroll
    for (int r = 0; r < RES; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) wgmma::Pin(d[r][y]);
    }
  }

  __device__ __forceinline__ void Store(float (&sum)[RES][ROWS][kRegisters], const Tile& tile,
                                        int exponent) {
    float factor[2], bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = (tile.m_block + block) * 64 + warp * 16 + half * 8 + lane / 4;
      const int64_t channel = static_cast<int64_t>(tile.group) * p.m_per_group + m;
      const bool exists = m < p.m_per_group;
      bias[half] = exists && p.bias != nullptr
                       ? static_cast<float>(static_cast<const T*>(p.bias)[channel])
                       : 0.f;
      factor[half] = 1.f;
      if constexpr (kScaled) {
        factor[half] = exists ? p.scales[channel] : 0.f;
      }
    }
    // Two factors: their product may leave float32's range.
    const float power = kScaled ? PowerOfTwo(exponent - kTargetExponent) : 1.f;
#pragma unroll
    for (int y = 0; y < ROWS; ++y) {
      const auto value = [&](int r, int half, int i) {
        return kScaled ? fmaf(sum[r][y][i] * factor[half], power, bias[half])
                       : sum[r][y][i] + bias[half];
      };
      if (p.channels_first && !p.folded) {
        StoreRows(value, tile, first_row + y);
      } else {
        StoreDirect(value, tile, y);
      }
    }
  }
};

template <typename T, int N, int RES, int ROWS, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, 1) TileKernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t base = ptx::SharedAddress(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.weight_full[i]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control.weight_empty[i]), kConsumerWarps);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    ptx::RegistersDown<kProducerRegisters>();
    Producer<T, ROWS, PRODUCTS>{
        p,
        control,
        base + kControlBytes,
        base + static_cast<uint32_t>(p.raw_at + warp * kAhead * kCellBytes + 4 * lane),
        reinterpret_cast<uint32_t*>(shared + p.table_at),
        warp,
        lane}
        .Run();
  } else if (warp == kProducerWarps) {
    ptx::RegistersDown<kProducerRegisters>();
    if (lane == 0) {
      FeedWeights<ROWS, PRODUCTS>(p, control, base + static_cast<uint32_t>(p.weights_at));
    }
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    const int consumer = warp - kProducerWarps - 1, group = consumer / 4;
    const int block = p.blocks == 2 ? group : 0;
    const int first_row = p.blocks == 2 ? 0 : group * (p.folded ? N / 8 : ROWS);
    T* staging = reinterpret_cast<T*>(shared + p.staging_at) + consumer * 8 * p.staging_pitch;
    Consumer<T, N, RES, ROWS, PRODUCTS>{p,
                                        control,
                                        base + kControlBytes,
                                        base + static_cast<uint32_t>(p.weights_at),
                                        staging,
                                        block,
                                        first_row,
                                        consumer % 4,
                                        lane}
        .Run();
  }
}

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_
