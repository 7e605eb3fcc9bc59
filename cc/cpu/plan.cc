#include "cpu/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/checked_math.h"
#include "cpu/plan_axes.h"

namespace transconv::cpu {
namespace {

// Of the zeros that a row of all source elements needs on either side, how many can be shared.
int64_t Overlap(const AxisView& axis) {
  const int64_t left = -axis.shift_min;
  const int64_t right = axis.count + axis.shift_min + axis.span - axis.src.len;
  return axis.num_src_planes > 1 ? 0 : std::max<int64_t>(0, std::min(left, right));
}

// Products of the axis classes, with the offsets of their taps in the packed tile.
void SetGatherClasses(GatherPlan* plan) {
  GatherView& v = plan->view;
  plan->classes.clear();
  int64_t planes = 0, weights = 0;
  for (int64_t ch = 0; ch < v.h.num_classes; ++ch) {
    for (int64_t cw = 0; cw < v.w.num_classes; ++cw) {
      const AxisClassView& h = v.h.classes[ch];
      const AxisClassView& w = v.w.classes[cw];
      std::vector<int64_t> offsets;
      for (int64_t th = 0; th < h.num_taps; ++th) {
        for (int64_t tw = 0; tw < w.num_taps; ++tw) {
          offsets.push_back(
              (h.planes[th] * v.w.num_src_planes + w.planes[tw]) * v.depth * v.plane_stride +
              (h.shifts[th] - v.h.shift_min) * v.pitch + w.shifts[tw] - v.w.shift_min);
        }
      }
      ClassView c;
      c.h = &h;
      c.w = &w;
      c.num_planes = h.num_residues * w.num_residues;
      c.num_taps = h.num_taps * w.num_taps;
      c.offsets = plan->Keep(std::move(offsets));
      c.first_plane = planes;
      c.first_weight = weights;
      planes += c.num_planes;
      weights += c.num_planes * c.num_taps;
      plan->classes.push_back(c);
    }
  }
  v.num_classes = static_cast<int64_t>(plan->classes.size());
  v.classes = plan->classes.data();
}

int64_t CountPlanes(const AxisView& axis) {
  int64_t planes = 0;
  for (int64_t c = 0; c < axis.num_classes; ++c) planes += axis.classes[c].num_residues;
  return planes;
}

int64_t WholeBlocks(int64_t channels) {
  return channels > kBlockRows ? RoundUp(channels, kBlockRows) : channels;
}

// Of very many source channels and planes only a few positions would fit the L2 cache, and a block
// of positions not the L1 cache. So they are packed some at a time, and the sums of a whole item
// wait in the accumulator tile, which one destination plane leaves room for. The order of a sum
// must not depend on the number of threads, hence neither may the depth.
void SetDepth(int64_t planes, GatherView* view) {
  GatherView& v = *view;
  v.depth = std::max<int64_t>(1, v.reduced);
  if (v.depth * planes > 384 && v.num_planes == 1) {
    const int64_t most = std::max<int64_t>(1, 384 / planes);
    v.depth = CeilDiv(v.depth, CeilDiv(v.depth, most));
  }
  v.num_depths = CeilDiv(std::max<int64_t>(1, v.reduced), v.depth);
}

// Cuts rows of a tile and shares of the produced channels until there are items enough.
void CutByCount(const GatherView& v, int64_t threads, int64_t* tile_h, int64_t* splits) {
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const auto tiles = [&] {
    return CeilDiv(v.batch, v.tile_n) * v.groups * CeilDiv(v.h.count, *tile_h) * v.w.num_tiles;
  };
  // Images that share a tile share the zeros between them, so they must be whole.
  const bool whole = v.tile_n > 1;
  while (!whole && tiles() < wanted && *tile_h > 1 && *tile_h * v.pitch >= 512) {
    *tile_h = CeilDiv(*tile_h, 2);
  }
  if (tiles() < wanted) {
    *splits = std::min(CeilDiv(wanted, tiles()),
                       std::max<int64_t>(1, v.produced * v.num_planes / (2 * kBlockRows)));
    *splits = std::min(*splits, v.produced);
  }
  // As many items as divide evenly among the threads, while there are few of them.
  const int64_t most_splits = std::max<int64_t>(1, v.produced / kBlockRows);
  while (tiles() * *splits % threads != 0 && tiles() * *splits < 8 * threads &&
         *splits < most_splits) {
    ++*splits;
  }
  while (!whole && tiles() * *splits < wanted && *tile_h > 1 && *tile_h * v.pitch >= 192) {
    *tile_h = CeilDiv(*tile_h, 2);
  }
}

struct GatherCut {
  int64_t rows, columns;  // of a tile
  int64_t splits;         // of the produced channels
};

// Roughly the cycles until the last thread is done, or infinity if the sums would not fit.
double CutCost(const GatherView& v, int64_t threads, const GatherCut& cut) {
  constexpr int64_t kDeepSums = 64 * 1024;
  const int64_t pitch = cut.columns + v.w.span - (cut.columns == v.w.count ? Overlap(v.w) : 0);
  const int64_t positions = v.tile_n * cut.rows * pitch;
  const int64_t made = WholeBlocks(CeilDiv(v.produced, cut.splits));
  const int64_t sums = v.num_planes * made * positions;
  if (sums > kDeepSums) return std::numeric_limits<double>::infinity();
  const double planes = static_cast<double>(v.h.num_src_planes * v.w.num_src_planes);
  const double weights = static_cast<double>(v.reduced * v.taps) * static_cast<double>(made);
  const auto item_cost = [&](double rows) {
    const double lines = static_cast<double>(v.tile_n) * (rows + static_cast<double>(v.h.span));
    const double packed =
        static_cast<double>(v.reduced) * planes * lines * static_cast<double>(pitch + 32);
    const double elements = rows * static_cast<double>(v.tile_n * pitch);
    const double vectors = std::ceil(elements / static_cast<double>(kLanes)) + 0.3;
    return weights * vectors + packed + 0.5 * static_cast<double>(v.num_planes * made) * elements +
           2000;
  };
  const double tiles = static_cast<double>(CeilDiv(v.h.count, cut.rows));
  const double items = static_cast<double>(CeilDiv(v.batch, v.tile_n) * v.groups) *
                       static_cast<double>(CeilDiv(v.w.count, cut.columns) * cut.splits) * tiles;
  const double item = item_cost(static_cast<double>(cut.rows));
  const double total = items * item_cost(static_cast<double>(v.h.count) / tiles);
  const double n = static_cast<double>(threads);
  // A thread that comes late leaves the others waiting for a part of its item.
  return std::min(std::ceil(items / n) * item, (total + (n - 1) * item) / n) + 0.2 * item;
}

// The cheapest cut of tiles no larger than `most`: more tiles or more splits of the produced
// channels keep more threads busy, but pack more zeros, or every source element more often.
GatherCut CheapestCut(const GatherView& v, int64_t threads, const GatherCut& most) {
  const auto more = [](int64_t n, int64_t first) { return n < first + 8 ? n + 1 : 2 * n; };
  const bool flat = v.h.count == 1;
  const int64_t count = flat ? v.w.count : v.h.count;
  const int64_t first = CeilDiv(count, flat ? most.columns : most.rows);
  const int64_t most_splits =
      std::max<int64_t>(1, std::min(v.produced, v.produced * v.num_planes / (2 * kBlockRows)));
  GatherCut best = most;
  double least = std::numeric_limits<double>::infinity();
  // Images that share a tile share the zeros between them, so they must be whole.
  const int64_t most_tiles = v.tile_n > 1 ? first : count;
  for (int64_t tiles = first; tiles <= most_tiles; tiles = more(tiles, first)) {
    const int64_t size = CeilDiv(count, tiles);
    if (tiles > first && flat && size < 3 * kLanes) break;
    for (int64_t splits = 1; splits <= most_splits; splits = more(splits, 1)) {
      const GatherCut cut = {flat ? 1 : size, flat ? size : most.columns, splits};
      const double cost = CutCost(v, threads, cut);
      if (cost < least) {
        least = cost;
        best = cut;
      }
    }
  }
  return best;
}

}  // namespace

int64_t GatherWorkspace(const Problem& p) {
  return CheckedProduct({p.in_channels, p.out_per_group(), p.h.kernel, p.w.kernel}).value();
}

void PlanGather(Pass pass, const Problem& p, DType dtype, int64_t threads, GatherPlan* plan) {
  GatherView& v = plan->view;
  const bool forward = pass == Pass::kForward;
  v.batch = p.batch;
  v.groups = p.groups;
  v.reduced = forward ? p.in_per_group() : p.out_per_group();
  v.produced = forward ? p.out_per_group() : p.in_per_group();
  v.channels_last = p.layout == Layout::kNHWC;
  // Enough channels fill a register block by themselves, and need no plane to share shifts with.
  const bool cropped = v.produced >= kBlockRows;
  v.h = forward ? ForwardAxis(p.h, cropped, plan) : GradInputAxis(p.h, plan);
  v.w = forward ? ForwardAxis(p.w, cropped, plan) : GradInputAxis(p.w, plan);
  v.taps = p.taps();
  v.kernel_w = p.w.kernel;
  v.weight_group = p.in_per_group() * p.out_per_group() * p.taps();
  v.weight_reduced = forward ? p.out_per_group() * p.taps() : p.taps();
  v.weight_produced = forward ? p.taps() : p.out_per_group() * p.taps();
  v.num_planes = CountPlanes(v.h) * CountPlanes(v.w);
  if (v.batch == 0 || v.produced == 0 || v.h.count == 0 || v.w.count == 0) return;

  // The packed source of a tile is read once per block of rows, from the L2 cache; the accumulators
  // are written and read once, from what is left of it.
  const int64_t source_budget = 512 * 1024 / ComputeWidth(dtype);
  const int64_t acc_budget = 128 * 1024 / ComputeWidth(dtype);
  const int64_t max_positions = 1024;
  const int64_t planes = v.h.num_src_planes * v.w.num_src_planes;
  SetDepth(planes, &v);
  const int64_t channels = v.depth * planes;

  int64_t tile_w = std::min<int64_t>(v.w.count, 256);
  // A tile much smaller than its halo would spend its time packing, so it may outgrow the L2 cache.
  while (tile_w > std::max<int64_t>(48, 2 * v.w.span) &&
         channels * (1 + v.h.span) * (tile_w + v.w.span) > source_budget) {
    tile_w = RoundUp(tile_w / 2, kLanes);
  }
  SetTile(tile_w, &v.w);
  // Zeros to the right of a row serve as those to the left of the next one; rows between images
  // too.
  v.overlap_w = v.w.num_tiles == 1 ? Overlap(v.w) : 0;
  v.pitch = v.w.tile + v.w.span - v.overlap_w;
  const int64_t rows_by_source = source_budget / (channels * v.pitch) - v.h.span;
  int64_t tile_h = std::min(std::max(rows_by_source, v.h.span), CeilDiv(max_positions, v.pitch));
  tile_h = std::max<int64_t>(1, std::min(tile_h, v.h.count));

  // Images too small for a tile share one, so that the weights are read for all of them at once.
  v.tile_n = 1;
  const int64_t overlap_h = tile_h == v.h.count ? Overlap(v.h) : 0;
  const int64_t image = (v.h.count + v.h.span - overlap_h) * v.pitch;
  if (tile_h == v.h.count && v.w.num_tiles == 1 && image < 256) {
    v.tile_n = std::min({v.batch, CeilDiv(256, image), source_budget / (channels * image)});
    v.tile_n = CeilDiv(v.batch, CeilDiv(v.batch, std::max<int64_t>(1, v.tile_n)));
    // Not if an image alone fills two blocks of vectors and the zeros between images cost more.
    const auto vectors = [&](int64_t images) {
      const int64_t rows = (images - 1) * (v.h.count + v.h.span - overlap_h) + v.h.count - 1;
      const int64_t flat = CeilDiv(rows * v.pitch + v.w.count, kLanes);
      const int64_t by_rows = images * v.h.count * CeilDiv(v.w.count, kLanes);
      return v.produced >= kBlockRows ? std::min(flat, by_rows) : flat;
    };
    if (vectors(1) >= 6 && v.tile_n * vectors(1) < vectors(v.tile_n)) v.tile_n = 1;
  }
  int64_t splits = 1;  // of the produced channels
  if (v.num_depths > 1) {
    const GatherCut cut = CheapestCut(v, threads, {tile_h, v.w.tile, 1});
    tile_h = cut.rows;
    splits = cut.splits;
    SetTile(cut.columns, &v.w);
    v.overlap_w = v.w.num_tiles == 1 ? Overlap(v.w) : 0;
    v.pitch = v.w.tile + v.w.span - v.overlap_w;
  } else {
    CutByCount(v, threads, &tile_h, &splits);
  }
  SetTile(tile_h, &v.h);
  v.num_tiles_n = CeilDiv(v.batch, v.tile_n);
  v.image_rows = v.h.tile + v.h.span - (v.tile_n > 1 ? overlap_h : 0);
  const int64_t packed_rows = (v.tile_n - 1) * v.image_rows + v.h.tile + v.h.span;
  v.plane_stride = OddLines(packed_rows * v.pitch + v.overlap_w);
  v.packed_elements = channels * v.plane_stride + 4 * kLanes;

  const int64_t positions = ((v.tile_n - 1) * v.image_rows + v.h.tile - 1) * v.pitch + v.w.tile;
  // Rows of nearly whole vectors have fewer of them than all rows with their halo laid end to end.
  // Only full register blocks have few enough vectors at a time, hence the channels.
  const int64_t row_positions = v.tile_n * v.h.tile * RoundUp(v.w.tile, kLanes);
  v.by_rows = v.produced >= kBlockRows && row_positions < RoundUp(positions, kLanes);
  v.acc_pitch = OddLines(v.by_rows ? row_positions : positions);
  // Every item gets the same number of chunks, and all but the last chunk whole register blocks.
  const int64_t per_item = WholeBlocks(CeilDiv(v.produced, splits));
  const int64_t chunk = std::max<int64_t>(1, acc_budget / (v.num_planes * v.acc_pitch));
  v.chunks_per_item = v.num_depths > 1 ? 1 : CeilDiv(per_item, chunk);
  v.chunk = std::min(v.produced, WholeBlocks(CeilDiv(per_item, v.chunks_per_item)));
  v.num_chunks = CeilDiv(v.produced, v.chunk);
  v.num_chunk_items = CeilDiv(v.num_chunks, v.chunks_per_item);
  v.acc_elements = v.num_planes * v.chunk * v.acc_pitch + 4 * kLanes;

  SetGatherClasses(plan);
  plan->pack_items = v.groups * v.num_chunks * v.num_depths;
  plan->items = v.num_tiles_n * v.groups * v.h.num_tiles * v.w.num_tiles * v.num_chunk_items;
}

}  // namespace transconv::cpu
