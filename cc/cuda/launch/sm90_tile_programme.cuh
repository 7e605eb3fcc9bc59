// Which tile a problem gets from the Hopper tile kernel, its shared memory, and what the kernel is
// told. No CUDA runtime, so that a test can run it on a CPU.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_TILE_PROGRAMME_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_TILE_PROGRAMME_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/geometry.h"
#include "core/tile_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_tile.cuh"
#include "cuda/launch/packed_weights.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_tile {

constexpr int kMinStages = 2;
constexpr int kPreferredStages = 5;
constexpr int kPreferredDepthStages = 3;

// Columns up to which folded tiles pay: where whole rows are stored faster, and where a lane stores
// vectors and tiles meet between sectors.
constexpr int kFoldColumns = 64, kFoldSectors = 128;

// One instantiation of the kernel.
struct Shape {
  int n, res, rows, products;
};

// Every shape fills the accumulators that the consumers' registers leave: 128 to 144 a thread,
// partial sums included.
#define TRANSCONV_SM90_TILE_SINGLE(X) \
  X(144, 1, 2, 1)                     \
  X(136, 1, 2, 1)                     \
  X(128, 1, 2, 1)                     \
  X(64, 1, 4, 1)                      \
  X(32, 1, 8, 1)                      \
  X(128, 2, 1, 1) X(64, 2, 2, 1) X(32, 2, 4, 1) X(64, 4, 1, 1) X(32, 4, 2, 1) X(32, 8, 1, 1)
#define TRANSCONV_SM90_TILE_TRIPLE(X) \
  X(144, 1, 1, 3)                     \
  X(136, 1, 1, 3)                     \
  X(128, 1, 1, 3)                     \
  X(64, 1, 2, 3) X(32, 1, 4, 3) X(64, 2, 1, 3) X(32, 2, 2, 3) X(32, 4, 1, 3) X(32, 6, 1, 3)

// How a shape is used.
struct Use {
  int blocks;   // of 64 target channels in a tile, 1 or 2
  bool folded;  // instructions take N / 8 rows of 8 columns
};

// A problem's whole programme.
struct Programme {
  Shape shape;
  Use use;
  TilePlan plan;
  int rows, columns;  // of a tile
  int m_per_group, k_per_group, m_blocks, slabs, depth;
  int strip, lead, granule, tiles_x, tiles_y;
  int64_t tiles;
  int most_taps;  // of a slab whose weights lie in shared memory at a time
  int chunk_taps, stages, chunk_pitch, low_at, stage_bytes, weight_bytes, block_bytes,
      staging_pitch;
  bool pairs;
  int weight_stages;
  int weights_at, staging_at, table_at, raw_at, shared_bytes;
  PackedWeights packed;
  int64_t workspace_bytes;

  // Strips that leave a granule to be cut off, as rows start anywhere in one; or side by side.
  void CutStrips(bool cut, int at) {
    granule = at;
    // Rows start at multiples of their pitch, so only multiples of this divisor occur.
    lead = cut ? granule - static_cast<int>(std::gcd(plan.w.target, int64_t{granule})) : 0;
    strip = lead > 0 ? columns - granule : columns;
    const int64_t behind = plan.max_target_columns() + lead - columns;
    tiles_x = static_cast<int>(std::max<int64_t>(CeilDiv(behind, strip), 0) + 1);
  }
};

// Units of a producer warp in one stage; those in registers come in whole rounds.
inline int UnitsPerWarp(const Programme& g, int element, int depth) {
  const int64_t units = CeilDiv(2 * depth * CeilDiv(g.plan.cells, 32), kProducerWarps);
  const bool rounds = element == 2;
  return static_cast<int>(rounds ? CeilDiv(units, kUnits) * kUnits : units);
}

// How many slabs make a stage. What is in flight hides the latency of loads, and it is no more than
// one stage; and every stage costs barriers, about as long as some loads.
inline int DepthOf(const Programme& g, int element, int bytes) {
  const double stage_units = 2.0;  // of a warp
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int depth = 1; depth <= kMaxDepth && depth < 2 * g.slabs; depth *= 2) {
    const int64_t stage = int64_t{2} * (g.shape.products == 1 ? 1 : 2) * depth * g.chunk_pitch;
    if (depth > 1 && kPreferredDepthStages * stage > bytes) break;
    const int units = UnitsPerWarp(g, element, depth);
    const bool ahead = element == 4;
    const double missing = ahead ? kAhead - AheadOf(units, kAhead) : 0;
    const double cost = CeilDiv(g.slabs, depth) * (units + missing + stage_units);
    if (cost < least) {
      least = cost;
      best = depth;
    }
  }
  return best;
}

// Whether a lane's targets of a row, two columns with all their residues, are contiguous and, where
// the target's start is, aligned.
inline bool StoresVectors(const Problem& q, const Programme& g) {
  const auto& w = g.plan.w;
  return q.layout == Layout::kNCHW && w.residues == w.target_step && w.residues == g.shape.res &&
         w.target % (2 * g.shape.res) == 0;
}

// Fills the programme for one use of a shape; returns why it does not fit, or null.
inline const char* MakeProgramme(const Problem& q, Pass pass, DType dtype, const Shape& shape,
                                 const Use& use, Programme* result) {
  Programme g;
  g.shape = shape;
  g.use = use;
  g.rows = (use.folded ? shape.n / 8 : shape.rows) * (use.blocks == 2 ? 1 : 2);
  g.columns = use.folded ? 8 * shape.rows : shape.n;
  if (!MakeTilePlan(q, pass, g.rows, g.columns, &g.plan)) {
    return "the kernel or the stride is too large for a tile programme";
  }
  const int element = static_cast<int>(ByteWidth(dtype)), sector = 32 / element;
  if (use.folded && shape.n == 144 && element == 4) return "measured: slower than 136 columns";
  // Neighbouring tiles that write halves of one sector are slow.
  const bool sectors = StoresVectors(q, g) && g.plan.w.target * element % 32 == 0;
  if (use.folded && g.plan.max_target_columns() > (sectors ? kFoldSectors : kFoldColumns)) {
    return "rows are long enough";
  }
  if (!g.plan.PlacesFit()) return "the halo of a tile exceeds shared memory";
  if (g.plan.w.residues > shape.res) return "more column residues than accumulators";
  const bool forward = pass == Pass::kForward;
  g.m_per_group = static_cast<int>(forward ? q.out_per_group() : q.in_per_group());
  g.k_per_group = static_cast<int>(forward ? q.in_per_group() : q.out_per_group());
  g.m_blocks = static_cast<int>(CeilDiv(g.m_per_group, 64));
  g.slabs = static_cast<int>(CeilDiv(g.k_per_group, kSlabChannels));

  const bool staged = q.layout == Layout::kNCHW && !use.folded;
  const bool cut = staged && MayCutStrips(shape.n, shape.res) && g.plan.w.target % sector != 0;
  const bool whole = shape.n % sector == 0;
  if (staged && !cut && !whole) return "a strip is no whole number of sectors";
  // At sectors; at their halves where a strip has no whole number of them, or there is one less.
  g.CutStrips(cut, sector / 2);
  if (const int strips = g.tiles_x; whole) {
    g.CutStrips(cut, sector);
    if (g.tiles_x > strips) g.CutStrips(cut, sector / 2);
  }
  g.tiles_y = static_cast<int>(CeilDiv(g.plan.max_target_rows(), g.rows));
  g.tiles = CeilDiv(g.m_blocks, use.blocks) * g.plan.h.residues * g.tiles_x * g.tiles_y * q.groups *
            q.batch;

  g.most_taps = (shape.products == 1 ? 12 : 4) / use.blocks;
  const int chunks = static_cast<int>(CeilDiv(g.plan.max_taps, g.most_taps));
  g.chunk_taps = static_cast<int>(CeilDiv(g.plan.max_taps, std::max(chunks, 1)));
  g.chunk_pitch = g.plan.planes() * g.plan.plane_pitch * 16;

  g.block_bytes = g.chunk_taps * shape.products * kTapBytes;
  g.weight_bytes = use.blocks * g.block_bytes;
  // Leads and widths of strips are even where rows are.
  g.pairs = shape.res == 1 && g.plan.w.residues == g.plan.w.target_step && g.plan.w.target % 2 == 0;
  g.staging_pitch = StagingPitch(shape.n * static_cast<int>(g.plan.w.target_step), element,
                                 g.pairs && element == 4 ? 24 : 12);
  const int staging = staged ? kConsumerWarps * 8 * g.staging_pitch * element : 0;
  const int raw = element == 4 ? kProducerWarps * kAhead * kCellBytes : 0;
  const int table = 4 * 4 * 32 * static_cast<int>(CeilDiv(g.plan.cells, 32) + 1);
  // Two stages of weights where three leave too little for cells.
  int free = 0;
  for (g.weight_stages = 3; g.weight_stages >= 2; --g.weight_stages) {
    free = kSm90SharedBytes -
           (kControlBytes + g.weight_stages * g.weight_bytes + staging + table + raw + 5 * 128);
    if (free <= 0) continue;
    g.depth = DepthOf(g, element, free);
    g.low_at = g.depth * 2 * g.chunk_pitch;
    g.stage_bytes = (shape.products == 1 ? 1 : 2) * g.low_at;
    g.stages = std::min(free / g.stage_bytes, kPreferredStages);
    if (g.stages >= kPreferredDepthStages || g.weight_stages == 2) break;
  }
  if (free <= 0) return "taps and staging exceed shared memory";
  if (g.stages < kMinStages) return "the halo of a tile exceeds shared memory";
  const auto align = [](int bytes) { return (bytes + 127) / 128 * 128; };
  g.weights_at = align(kControlBytes + g.stages * g.stage_bytes);
  g.staging_at = align(g.weights_at + g.weight_stages * g.weight_bytes);
  g.table_at = align(g.staging_at + staging);
  g.raw_at = align(g.table_at + table);
  g.shared_bytes = g.raw_at + raw;

  g.packed = PackedWeights(q, pass, dtype, g.plan.taps, shape.products);
  g.workspace_bytes = g.packed.bytes + g.packed.scales_bytes;
  *result = g;
  return nullptr;
}

// Cycles that a warpgroup's instructions for one slab of a tile take; narrow ones read more of
// shared memory than it gives.
inline double SlabCycles(const Programme& g) {
  const double taps = static_cast<double>(g.plan.taps) / g.plan.h.residues;
  const double each = g.shape.n == 32 ? 33 : g.shape.n == 64 ? 40 : 0.45 * g.shape.n;
  return taps * g.shape.rows * g.shape.products * each;
}

// Cycles that the busiest block takes, for comparing programmes. Fitted to 3947 measured programmes
// of 175 passes (H200), before stores became cheaper: what it chose was 2% slower than the fastest
// on average.
inline double Cost(const Problem& q, DType dtype, const Programme& g) {
  const Shape& shape = g.shape;
  const int element = static_cast<int>(ByteWidth(dtype)), residues = g.plan.w.residues;
  const double unit = 460 * (element == 2 ? 0.85 : 1.0) * (shape.products == 3 ? 1.3 : 1.0);
  const double produce = static_cast<double>(CeilDiv(g.slabs, g.depth)) *
                         (UnitsPerWarp(g, element, g.depth) * unit + 200);
  const double chunks = static_cast<double>(std::max<int64_t>(
      CeilDiv(int64_t{g.plan.taps}, int64_t{g.plan.h.residues} * g.most_taps), 1));
  const double multiply = 2 * g.slabs * (SlabCycles(g) + 200 * chunks);
  const double value = q.layout == Layout::kNHWC              ? 65
                       : !g.use.folded                        ? 6
                       : StoresVectors(q, g) || residues == 1 ? 0
                                                              : 60;
  const double store = 4000 + value * std::min(shape.res, residues) * shape.rows * shape.n / 2;
  const double consume = multiply + store;
  double tile = std::max(produce, consume) + 0.8 * std::min(produce, consume);
  if (g.use.folded) tile *= g.columns == 8 ? 1.2 : 1.11;
  // Accumulators of residues that are not there.
  if (shape.res == 8 && residues <= 2) tile *= 1.3;
  return static_cast<double>(CeilDiv(g.tiles, int64_t{kSm90Blocks})) * tile;
}

// Whether the warpgroups multiply in turns, so that one stores or waits while the other has the
// tensor cores. Measured: 2 to 10% faster where a slab takes long, slower where it does not.
inline bool TakesTurns(const Programme& g) { return g.shape.res <= 2 && SlabCycles(g) >= 500; }

// The best programme of a problem; returns why there is none, or null.
inline const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* best) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (dtype == DType::kF64) return "has no float64 instructions";
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (const char* reason = TooLarge(q, dtype)) return reason;
  const int products = ProductsOf(q, dtype);
  const char* reason = "no tile shape has enough column residues";
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](Shape shape) {
    if (shape.products != products) return;
    for (const Use& use : {Use{1, false}, Use{2, false}, Use{1, true}, Use{2, true}}) {
      Programme g;
      const char* why = MakeProgramme(q, pass, dtype, shape, use, &g);
      if (why == nullptr && g.tiles > kMax - 65536) why = "more than 2^31 tiles";
      if (why != nullptr) {
        if (least == std::numeric_limits<double>::infinity() && !use.folded) reason = why;
      } else if (const double cost = Cost(q, dtype, g); cost < least) {
        least = cost;
        *best = g;
      }
    }
  };
#define TRANSCONV_CONSIDER(n, res, rows, products) consider({n, res, rows, products});
  TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_CONSIDER)
  TRANSCONV_SM90_TILE_TRIPLE(TRANSCONV_CONSIDER)
#undef TRANSCONV_CONSIDER
  return least < std::numeric_limits<double>::infinity() ? nullptr : reason;
}

inline void FillParams(const Call& call, const Programme& g, TileParams* p) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const bool first = q.layout == Layout::kNCHW;
  const TilePlan& plan = g.plan;
  *p = TileParams{};
  p->source = forward ? call.x : call.y;
  p->target = forward ? call.y : call.x;
  p->bias = call.vector;
  p->weights = static_cast<const uint8_t*>(call.workspace);
  p->scales = reinterpret_cast<const float*>(p->weights + g.packed.bytes);
  const int64_t source_channels = forward ? q.in_channels : q.out_channels;
  const int64_t target_channels = forward ? q.out_channels : q.in_channels;
  const int64_t source_size = plan.h.source * plan.w.source;
  const int64_t target_size = plan.h.target * plan.w.target;
  const int64_t element = static_cast<int64_t>(ByteWidth(call.dtype));
  p->source_batch = source_channels * source_size * element;
  p->source_channel = static_cast<uint32_t>((first ? source_size : 1) * element);
  p->source_pixel = static_cast<uint32_t>((first ? 1 : source_channels) * element);
  p->target_batch = target_channels * target_size;
  p->target_channel = first ? target_size : 1;
  p->target_column = first ? 1 : target_channels;
  p->target_row = plan.w.target * p->target_column;
  p->source_h = static_cast<int>(plan.h.source);
  p->source_w = static_cast<int>(plan.w.source);
  p->target_h = static_cast<int>(plan.h.target);
  p->target_w = static_cast<int>(plan.w.target);
  p->source_step_h = static_cast<int>(plan.h.source_step);
  p->source_step_w = static_cast<int>(plan.w.source_step);
  p->target_step_h = static_cast<int>(plan.h.target_step);
  p->target_step_w = static_cast<int>(plan.w.target_step);
  p->groups = static_cast<int>(q.groups);
  p->k_per_group = g.k_per_group;
  p->m_per_group = g.m_per_group;
  p->slabs = g.slabs;
  p->m_blocks = g.m_blocks;
  p->rows = g.rows;
  p->blocks = g.use.blocks;
  p->by_block = Divider(static_cast<int>(CeilDiv(g.m_blocks, g.use.blocks)));
  p->by_residue = Divider(plan.h.residues);
  p->by_strip = Divider(g.tiles_x);
  p->by_row = Divider(g.tiles_y);
  p->by_group = Divider(q.groups);
  p->residues_h = plan.h.residues;
  p->residues_w = plan.w.residues;
  p->tiles = static_cast<int>(g.tiles);
  p->strip = g.strip;
  p->lead = g.lead;
  p->granule = g.granule;
  p->folded = g.use.folded;
  p->channels_first = first;
  p->turns = TakesTurns(g);
  const int vector = std::min(2 * g.shape.res * static_cast<int>(element), 16);
  p->vectors = g.lead == 0 && StoresVectors(q, g) && Aligned(p->target, vector) == vector;
  p->group_pitch = g.use.folded ? 16 * plan.halo_columns : 128;
  p->row_cells = g.use.folded ? 8 : plan.halo_columns;
  p->halo_rows = plan.halo_rows;
  p->halo_columns = plan.halo_columns;
  p->plane_pitch = plan.plane_pitch;
  p->cells = plan.cells;
  p->planes_w = plan.w.planes;
  p->cell_groups = static_cast<int>(CeilDiv(plan.cells, 32));
  p->depth = g.depth;
  while ((1 << p->chunk_shift) < 2 * g.depth) ++p->chunk_shift;
  p->units_per_warp = UnitsPerWarp(g, static_cast<int>(element), g.depth);
  p->ahead = AheadOf(p->units_per_warp, kAhead);
  p->chunk_taps = g.chunk_taps;
  p->stages = g.stages;
  p->weight_stages = g.weight_stages;
  p->chunk_pitch = g.chunk_pitch;
  p->low_at = g.low_at;
  p->stage_bytes = g.stage_bytes;
  p->weight_bytes = g.weight_bytes;
  p->block_bytes = g.block_bytes;
  p->staging_pitch = g.staging_pitch;
  const int pair = 2 * static_cast<int>(element);
  p->pairs = g.pairs && Aligned(p->target, pair) == pair;
  p->weights_at = g.weights_at;
  p->staging_at = g.staging_at;
  p->table_at = g.table_at;
  p->raw_at = g.raw_at;
  for (int i = 0; i < kMaxPlanes; ++i) {
    p->plane_h[i] = static_cast<int>(plan.h.plane[i]);
    p->plane_w[i] = static_cast<int>(plan.w.plane[i]);
  }
  for (int i = 0; i < kMaxResidues; ++i) p->first_row[i] = static_cast<int>(plan.first_row[i]);
  p->first_column = static_cast<int>(plan.first_column);
  std::copy_n(plan.first_tap, kMaxResidues + 1, p->first_tap);
  for (int r = 0; r < kMaxResidues; ++r) {
    std::copy_n(plan.residue_begin[r], kMaxResidues + 1, p->residue_begin[r]);
  }
  // Column residues that a shape holds but the problem lacks have no taps.
  for (int r = 0; r < plan.h.residues; ++r) {
    for (int c = plan.w.residues; c <= kMaxResidues; ++c) {
      p->residue_begin[r][c] = plan.first_tap[r + 1];
    }
  }
  for (int t = 0; t < plan.taps; ++t) p->tap_cell[t] = plan.tap_cell(t);
}

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_TILE_PROGRAMME_CUH_
