// The programme of the Hopper weight-gradient kernel: tiles, shared memory, splits, and what a call
// passes to its kernels.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_PROGRAMME_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_PROGRAMME_CUH_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "core/geometry.h"
#include "core/wgrad_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_wgrad_params.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/pack_cells_call.cuh"
#include "cuda/launch/sm90_limits.h"
#include "cuda/primitives/box.cuh"

namespace transconv::cuda::sm90_wgrad {

constexpr int kMinStages = 2;
constexpr int kPreferredStages = 3;
// Pixels between two additions in float32: truncation stays below 1e-5.
constexpr int kFlushPixels = 8192;

using Taps = Form<3, 1, 3>;    // three warpgroups with their own taps
using Single = Form<3, 1, 1>;  // the same with three products, whose partial sums take registers
using Pair = Form<2, 1, 3>;    // two warpgroups with their own taps
using Halves = Form<2, 2, 4>;  // two warpgroups with two halves of 128 channels, one product
using Thirds = Form<2, 2, 3>;  // the same with three products

struct Programme {
  WgradPlan plan;
  bool cells;  // copies cells, instead of gathering them from the images
  CellsOf x, dy;
  int products;
  int in_blocks, out_blocks, units;
  int rows, columns, tiles_x, tiles_y;
  int64_t tiles;
  int splits, per_split, flush;
  int x_cells, x_groups, cell_groups;
  int x_row_bytes, dy_row_bytes, dy_at, part_bytes, stage_bytes, stages;
  int table_at, raw_at, shared_bytes;
  int64_t slot_bytes, magnitudes_at, x_cells_at, dy_cells_at, workspace_bytes;

  int producer_warps() const { return kThreads / 32 - 4 * plan.form.warpgroups; }
  int ahead() const { return plan.form.warpgroups == 3 ? Taps::kAhead : Halves::kAhead; }
};

struct TileSize {
  int rows, columns;
};
// 8 columns: 16 pixels are taken from two rows.
constexpr TileSize kTileSizes[] = {
    {4, 128}, {2, 128}, {1, 128}, {8, 64}, {4, 64}, {2, 64}, {1, 64}, {8, 32}, {4, 32}, {2, 32},
    {1, 32},  {16, 16}, {8, 16},  {4, 16}, {2, 16}, {1, 16}, {16, 8}, {8, 8},  {4, 8},  {2, 8}};

// Fills in what follows from the plan and the tile; returns why it does not fit, or null.
inline const char* SetTile(const Problem& q, DType dtype, TileSize size, Programme* programme) {
  Programme& g = *programme;
  g.rows = size.rows;
  g.columns = size.columns;
  g.plan.SetTile(size.rows, size.columns);
  const TilePlan& tile = g.plan.tile;
  const WgradForm& form = g.plan.form;
  if (!tile.PlacesFit()) return "the halo of a tile exceeds shared memory";
  const int64_t box_rows = (tile.halo_rows - 1) * tile.h.source_step + 1;
  if (g.plan.boxes && std::max<int64_t>(2 * tile.halo_columns, box_rows) > kMostBox) {
    return "the halo of a tile exceeds a copy";
  }
  g.in_blocks = static_cast<int>(CeilDiv(q.in_per_group(), 64 * form.halves));
  g.out_blocks = static_cast<int>(CeilDiv(q.out_per_group(), 64));
  const int64_t units = q.groups * g.in_blocks * g.out_blocks * g.plan.passes;
  g.tiles_x = static_cast<int>(CeilDiv(q.w.in, size.columns));
  g.tiles_y = static_cast<int>(CeilDiv(q.h.in, size.rows));
  g.tiles = q.batch * g.tiles_x * g.tiles_y;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (g.tiles > kMax - 1 || units > kMax / kSm90Blocks) return "more than 2^31 tiles";
  g.units = static_cast<int>(units);
  const int64_t splits = std::clamp<int64_t>(kSm90Blocks / units, 1, g.tiles);
  g.per_split = static_cast<int>(CeilDiv(g.tiles, splits));
  g.splits = static_cast<int>(CeilDiv(g.tiles, g.per_split));
  g.flush = std::max(kFlushPixels / (size.rows * size.columns), 1);

  g.x_cells = size.rows * size.columns;
  g.x_groups = static_cast<int>(CeilDiv(g.x_cells, 32));
  const int dy_groups = static_cast<int>(CeilDiv(g.plan.dy_cells(), 32));
  g.cell_groups = form.halves * g.x_groups + dy_groups;
  g.x_row_bytes = 8 * form.halves * size.columns * 16;
  g.dy_row_bytes = 16 * g.plan.row_pitch();
  g.dy_at = size.rows * g.x_row_bytes;
  g.part_bytes = g.dy_at + 16 * g.plan.planes_h * g.plan.planes_w * g.plan.plane_pitch();
  g.stage_bytes = g.part_bytes * (g.products == 3 ? 2 : 1);
  const int table = 4 * 32 * (g.x_groups + dy_groups + 1);
  const int raw =
      dtype == DType::kF32 && !g.cells ? g.producer_warps() * g.ahead() * kCellBytes : 0;
  const int fixed = kControlBytes + 4 * table + raw + 3 * 128;
  if (fixed >= kSm90SharedBytes || g.stage_bytes > kSm90SharedBytes) {
    return "the halo of a tile exceeds shared memory";
  }
  g.stages = std::min((kSm90SharedBytes - fixed) / g.stage_bytes, kPreferredStages);
  if (g.stages < kMinStages) return "the halo of a tile exceeds shared memory";
  g.table_at = (kControlBytes + g.stages * g.stage_bytes + 127) / 128 * 128;
  g.raw_at = (g.table_at + 4 * table + 127) / 128 * 128;
  g.shared_bytes = g.raw_at + raw;
  g.slot_bytes = int64_t{4} * kSlotFloats * form.warpgroups * form.slots * g.units;
  g.workspace_bytes = g.slot_bytes * g.splits;
  if (g.cells) {
    g.magnitudes_at = g.workspace_bytes;
    g.x_cells_at = g.magnitudes_at + 256;
    g.dy_cells_at = g.x_cells_at + g.x.bytes();
    g.workspace_bytes = g.dy_cells_at + g.dy.bytes();
  }
  return nullptr;
}

// Cycles of a launch, roughly, on a card of a fixed size: results are the same everywhere.
inline double Cost(const Programme& g) {
  const WgradForm& form = g.plan.form;
  // A unit of 32 cells of 8 channels, by all producers. Gathering waits for memory, so twice as
  // many warps bring more, if not twice as much (fitted to 125 problems); what is ready comes as
  // fast as the second-level cache gives it.
  const double unit = g.cells ? 20 : g.producer_warps() == 8 ? 85 : 120;
  // Where a pass leaves out planes of a row, it uses half of every sector, or less; unless the row
  // is packed plane by plane.
  const bool holes = g.plan.planes_w < g.plan.tile.w.planes && (!g.cells || g.dy.direct);
  const int x_groups = form.halves * g.x_groups;
  const double groups = x_groups + (g.cell_groups - x_groups) * (holes ? g.cells ? 2 : 1.4 : 1);
  const double loads = 8 * groups * unit * (g.products == 3 ? 1.5 : 1);
  const double steps = g.x_cells / 16.0 * g.products;
  const double products = steps * form.warpgroups * form.slots * 32;
  constexpr double kTile = 600;  // barriers and tables
  const double waves = static_cast<double>(CeilDiv(int64_t{g.units} * g.splits, kSm90Blocks));
  // Slots are written, and read again.
  constexpr double kBytes = 1500;  // a cycle
  const double slots = 2.0 * static_cast<double>(g.slot_bytes) * g.splits / kBytes;
  return waves * g.per_split * (std::max(loads, products) + kTile) + slots;
}

inline const char* Choose(const Problem& q, Pass pass, DType dtype, bool cells, Programme* best) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (const char* reason = TooLarge(q, dtype)) return reason;
  Programme g{};
  g.cells = cells;
  g.products = ProductsOf(q, dtype);
  if (cells) {
    g.x = CellsOf(q, dtype, true, 1);
    g.dy = CellsOf(q, dtype, false, q.w.stride);
    if (const char* reason = g.x.TooLarge()) return reason;
    if (const char* reason = g.dy.TooLarge()) return reason;
    if (!g.dy.direct && q.h.stride > kMostBoxStep) return "a copy has no rows so far apart";
  }
  // Two warpgroups leave twice as many warps to gather; what is packed comes as fast as it can.
  constexpr WgradForm kOne[] = {Taps::kForm, Halves::kForm, Pair::kForm};
  constexpr WgradForm kThree[] = {Single::kForm, Pair::kForm, Thirds::kForm};
  const WgradForm* const forms = g.products == 3 ? kThree : kOne;
  const char* reason = "the kernel or the stride is too large for a tile programme";
  double least = std::numeric_limits<double>::infinity();
  const size_t count = g.products == 1 && cells ? 2 : 3;
  for (size_t i = 0; i < count; ++i) {
    if (forms[i].halves == 2 && q.in_per_group() <= 64) continue;
    for (const WgradPlanes planes : {WgradPlanes::kAll, WgradPlanes::kRow, WgradPlanes::kOne}) {
      if (!MakeWgradPlan(q, forms[i], planes, &g.plan)) continue;
      g.plan.boxes = cells && !(g.x.direct && g.dy.direct);
      const TilePlan& tile = g.plan.tile;
      if (planes == WgradPlanes::kRow && tile.h.planes == 1) continue;
      if (planes == WgradPlanes::kOne && tile.w.planes == 1) continue;
      TileSize size{0, 0};
      for (const TileSize& other : kTileSizes) {
        if (const char* why = SetTile(q, dtype, other, &g)) {
          reason = why;
        } else if (const double cost = Cost(g); cost < least) {
          least = cost;
          size = other;
        }
      }
      if (size.rows == 0) continue;
      SetTile(q, dtype, size, &g);
      *best = g;
    }
  }
  return least < std::numeric_limits<double>::infinity() ? nullptr : reason;
}

inline void FillParams(const Call& call, const Programme& g, WgradParams* p) {
  const Problem& q = call.problem;
  const TilePlan& tile = g.plan.tile;
  const bool first = q.layout == Layout::kNCHW;
  *p = WgradParams{};
  p->x = call.x;
  p->dy = call.y;
  p->slots = static_cast<float*>(call.workspace);
  const int64_t x_size = q.h.in * q.w.in, dy_size = q.h.out * q.w.out;
  const int64_t element = static_cast<int64_t>(ByteWidth(call.dtype));
  p->x_batch = q.in_channels * x_size * element;
  p->x_channel = static_cast<uint32_t>((first ? x_size : 1) * element);
  p->x_pixel = static_cast<uint32_t>((first ? 1 : q.in_channels) * element);
  p->dy_batch = q.out_channels * dy_size * element;
  p->dy_channel = static_cast<uint32_t>((first ? dy_size : 1) * element);
  p->dy_pixel = static_cast<uint32_t>((first ? 1 : q.out_channels) * element);
  if (g.cells) {
    const uint8_t* const workspace = static_cast<const uint8_t*>(call.workspace);
    if (!g.x.direct) p->x = workspace + g.x_cells_at;
    if (!g.dy.direct) p->dy = workspace + g.dy_cells_at;
    p->magnitudes = reinterpret_cast<const Magnitudes*>(workspace + g.magnitudes_at);
    p->x_batch = g.x.image();
    p->dy_batch = g.dy.image();
    p->x_pixel = static_cast<uint32_t>(g.x.pixel());
    p->dy_pixel = static_cast<uint32_t>(g.dy.pixel());
    p->x_packed = !g.x.direct;
    p->dy_packed = !g.dy.direct;
    p->tables = g.x.direct || g.dy.direct;
    const int parts = g.products == 3 ? 2 : 1;
    if (p->x_packed) p->box_bytes += static_cast<uint32_t>(parts * g.dy_at);
    if (p->dy_packed) p->box_bytes += static_cast<uint32_t>(parts * (g.part_bytes - g.dy_at));
    p->x_group = g.x.group();
    p->dy_group = g.dy.group();
    p->x_chunk = g.x.chunk();
    p->dy_chunk = g.dy.chunk();
  }
  p->x_h = static_cast<int>(q.h.in);
  p->x_w = static_cast<int>(q.w.in);
  p->dy_h = static_cast<int>(q.h.out);
  p->dy_w = static_cast<int>(q.w.out);
  p->step_h = static_cast<int>(tile.h.source_step);
  p->step_w = static_cast<int>(tile.w.source_step);
  p->in_per_group = static_cast<int>(q.in_per_group());
  p->out_per_group = static_cast<int>(q.out_per_group());
  p->in_blocks = g.in_blocks;
  p->out_blocks = g.out_blocks;
  p->passes = g.plan.passes;
  p->units = g.units;
  p->by_strip = Divider(g.tiles_x);
  p->by_row = Divider(g.tiles_y);
  p->tiles = static_cast<int>(g.tiles);
  p->per_split = g.per_split;
  p->flush = g.flush;
  p->rows = g.rows;
  p->columns = g.columns;
  p->halo_rows = tile.halo_rows;
  p->halo_columns = tile.halo_columns;
  p->planes_w = g.plan.planes_w;
  p->groups = static_cast<int>(q.groups);
  p->image_groups = static_cast<int>(q.batch * q.groups);
  p->pass_planes = g.plan.planes_h * g.plan.planes_w;
  p->by_plane_w = Divider(g.plan.planes_w);
  p->by_step = Divider(q.w.stride);
  p->x_cells = g.x_cells;
  p->dy_cells = g.plan.dy_cells();
  p->x_groups = g.x_groups;
  p->dy_groups = g.cell_groups - g.plan.form.halves * g.x_groups;
  const int units = 8 / g.producer_warps() * g.cell_groups;
  const bool rounds = element == 2 && !g.cells;  // in registers
  const int round = g.plan.form.warpgroups == 3 ? Taps::kUnits : Halves::kUnits;
  p->units_per_warp = rounds ? static_cast<int>(CeilDiv(units, round) * round) : units;
  p->ahead = AheadOf(units, g.ahead());
  p->stages = g.stages;
  p->stage_bytes = g.stage_bytes;
  p->part_bytes = g.part_bytes;
  p->dy_at = g.dy_at;
  p->x_row_bytes = g.x_row_bytes;
  p->x_chunk_bytes = 16 * g.columns;
  p->dy_row_bytes = g.dy_row_bytes;
  p->dy_chunk_bytes = g.dy_row_bytes / 8;
  p->dy_plane_bytes = 16 * g.plan.plane_pitch();
  p->pixel_groups = g.columns == 8 ? 1 : 0;
  p->table_at = g.table_at;
  p->raw_at = g.raw_at;
  for (int i = 0; i < kMaxPlanes; ++i) {
    p->plane_h[i] = static_cast<int>(tile.h.plane[i]);
    p->plane_w[i] = static_cast<int>(tile.w.plane[i]);
  }
  p->first_row = static_cast<int>(tile.first_row[0]);
  p->first_column = static_cast<int>(tile.first_column);
  std::copy_n(g.plan.plane_h, g.plan.passes, p->pass_plane_h);
  std::copy_n(g.plan.plane_w, g.plan.passes, p->pass_plane_w);
  const int places = g.plan.form.taps();  // of a pass
  for (int i = 0; i < g.plan.places(); ++i) {
    // A slot without a tap repeats another one's work, the first of the pass; its sums are never
    // read.
    const int pass = i / places, first = g.plan.tap[pass * places];
    const int tap = g.plan.tap[i] < 0 ? first : g.plan.tap[i];
    p->start[i] = static_cast<uint16_t>(g.dy_at / 16 + g.plan.start(pass, tap));
  }
}

// The packed cells of an image as a tensor: columns of a remainder of the step, chunks, rows,
// remainders, groups of all images and of their low parts. A cell is two elements.
inline BoxTensor BoxesOf(const CellsOf& of, const void* cells, int chunks, int rows, int columns,
                         int row_step) {
  const uint64_t run = static_cast<uint64_t>(of.row_cells() / of.step);
  BoxTensor tensor;
  tensor.base = cells;
  const uint64_t size[] = {2 * run, static_cast<uint64_t>(of.chunks),
                           static_cast<uint64_t>(of.rows), static_cast<uint64_t>(of.step),
                           static_cast<uint64_t>(of.parts * of.batch * of.groups)};
  const uint64_t stride[] = {static_cast<uint64_t>(of.chunk()),
                             static_cast<uint64_t>(16 * of.row_cells()), 16 * run,
                             static_cast<uint64_t>(of.group())};
  std::copy(std::begin(size), std::end(size), tensor.size);
  std::copy(std::begin(stride), std::end(stride), tensor.stride);
  tensor.box[0] = static_cast<uint32_t>(2 * columns);
  tensor.box[1] = static_cast<uint32_t>(chunks);
  tensor.box[2] = static_cast<uint32_t>((rows - 1) * row_step + 1);
  tensor.step[2] = static_cast<uint32_t>(row_step);
  return tensor;
}
inline BoxTensor BoxesOfX(const WgradParams& p, const Programme& g) {
  return BoxesOf(g.x, p.x, 8 * g.plan.form.halves, g.rows, g.columns, 1);
}
inline BoxTensor BoxesOfDy(const WgradParams& p, const Programme& g) {
  const TilePlan& tile = g.plan.tile;
  return BoxesOf(g.dy, p.dy, 8, tile.halo_rows, tile.halo_columns,
                 static_cast<int>(tile.h.source_step));
}

// How the images of a call are packed.
inline PackBothParams PackParamsOf(const Call& call, const Programme& g) {
  uint8_t* const workspace = static_cast<uint8_t*>(call.workspace);
  Magnitudes* const magnitudes = reinterpret_cast<Magnitudes*>(workspace + g.magnitudes_at);
  const Layout layout = call.problem.layout;
  return {{PackParamsOf(g.x, layout, call.x, workspace + g.x_cells_at, magnitudes),
           PackParamsOf(g.dy, layout, call.y, workspace + g.dy_cells_at, magnitudes + 1)}};
}

inline SumParams SumParamsOf(const Call& call, const Programme& g) {
  const Problem& q = call.problem;
  SumParams s{};
  s.slots = static_cast<const float*>(call.workspace);
  s.dw = call.w;
  s.in_per_group = static_cast<int>(q.in_per_group());
  s.out_per_group = static_cast<int>(q.out_per_group());
  s.in_blocks = g.in_blocks;
  s.out_blocks = g.out_blocks;
  s.passes = g.plan.passes;
  s.splits = g.splits;
  s.form = g.plan.form;
  s.taps = static_cast<int>(q.taps());
  s.count = g.slot_bytes / 16;
  for (int i = 0; i < g.plan.places(); ++i) {
    const int tap = g.plan.tap[i];
    if (tap >= 0) s.place[g.plan.tile.tap_kernel[tap]] = static_cast<int16_t>(i);
  }
  DealSums(q.groups * g.in_blocks * g.out_blocks * int64_t{g.plan.form.halves}, &s);
  return s;
}

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_PROGRAMME_CUH_
