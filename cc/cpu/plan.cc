#include "cpu/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/checked_math.h"

namespace transconv::cpu {
namespace {

// Elements are padded for the widest vectors, so that a plan does not depend on the processor.
constexpr int64_t kLanes = 16;
constexpr int64_t kBlockRows = 8;  // rows of the largest register block

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A stride, in elements, that is a whole and odd number of cache lines: channels next to each other
// then never compete for the same cache sets, which a power of two would make them do.
int64_t OddLines(int64_t elements) {
  const int64_t lines = CeilDiv(elements, kLanes);
  return (lines | 1) * kLanes;
}

// The y side of an axis as `stride` planes: position o is element q of plane a with
// o = stride*q + a - lo; tap k joins x element i with element i + Shift(k) of Plane(k).
struct PlaneAxis {
  // `cropped`: planes as geometry.h counts them, from the cropped result. No element is computed in
  // vain then, but the planes have different shifts.
  PlaneAxis(const Axis& axis, bool cropped)
      : axis(axis),
        crop(cropped ? axis.crop_lo : 0),
        origin(cropped ? 0 : FloorDiv(axis.crop_lo, axis.stride)),
        lo(cropped ? 0 : axis.crop_lo - axis.stride * origin),
        count(axis.out > 0 ? (axis.out - 1 + lo) / axis.stride + 1 : 0) {}

  int64_t Shift(int64_t k) const {
    return FloorDiv(axis.dilation * k - crop, axis.stride) - origin;
  }
  int64_t Plane(int64_t k) const {
    return axis.dilation * k - crop - axis.stride * (Shift(k) + origin);
  }
  SideView YSide() const { return {axis.stride, lo, axis.out}; }
  SideView XSide() const { return {1, 0, axis.in}; }

  Axis axis;
  int64_t crop;
  int64_t origin;
  int64_t lo;
  int64_t count;
};

void SetClasses(std::vector<AxisClassView> classes, PlanStorage* plan, AxisView* view) {
  view->shift_min = 0;
  int64_t shift_max = 0;
  bool first = true;
  for (const AxisClassView& c : classes) {
    for (int64_t t = 0; t < c.num_taps; ++t) {
      view->shift_min = first ? c.shifts[t] : std::min(view->shift_min, c.shifts[t]);
      shift_max = first ? c.shifts[t] : std::max(shift_max, c.shifts[t]);
      first = false;
    }
  }
  view->span = shift_max - view->shift_min;
  view->num_classes = static_cast<int64_t>(classes.size());
  plan->axis_classes.push_back(std::move(classes));
  view->classes = plan->axis_classes.back().data();
}

// Destination y: planes grouped by the shifts of their taps.
AxisView ForwardAxis(const Axis& axis, bool cropped, PlanStorage* plan) {
  const PlaneAxis planes(axis, cropped);
  std::map<int64_t, std::pair<std::vector<int64_t>, std::vector<int64_t>>> taps;  // (shift, k)
  for (int64_t k = 0; k < axis.kernel; ++k) {
    auto& [shifts, kernel] = taps[planes.Plane(k)];
    shifts.push_back(-planes.Shift(k));
    kernel.push_back(k);
  }
  std::map<std::vector<int64_t>, std::pair<std::vector<int64_t>, std::vector<int64_t>>> groups;
  for (auto& [plane, lists] : taps) {
    auto& [residues, kernel] = groups[lists.first];
    residues.push_back(plane);
    kernel.insert(kernel.end(), lists.second.begin(), lists.second.end());
  }
  std::vector<AxisClassView> classes;
  for (auto& [shifts, lists] : groups) {
    AxisClassView c;
    c.num_residues = static_cast<int64_t>(lists.first.size());
    c.residues = plan->Keep(lists.first);
    c.num_taps = static_cast<int64_t>(shifts.size());
    c.shifts = plan->Keep(shifts);
    c.planes = plan->Keep(std::vector<int64_t>(shifts.size(), 0));
    c.kernel = plan->Keep(lists.second);
    classes.push_back(c);
  }
  AxisView view{};
  view.src = planes.XSide();
  view.dst = planes.YSide();
  view.count = planes.count;
  view.num_src_planes = 1;
  view.src_planes = plan->Keep({0});
  SetClasses(std::move(classes), plan, &view);
  return view;
}

// Destination x: one class with all taps, which read several planes of dy.
AxisView GradInputAxis(const Axis& axis, PlanStorage* plan) {
  const PlaneAxis planes(axis, false);
  std::vector<int64_t> used, shifts, indices, kernel;
  for (int64_t k = 0; k < axis.kernel; ++k) used.push_back(planes.Plane(k));
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (int64_t k = 0; k < axis.kernel; ++k) {
    shifts.push_back(planes.Shift(k));
    indices.push_back(std::lower_bound(used.begin(), used.end(), planes.Plane(k)) - used.begin());
    kernel.push_back(k);
  }
  AxisClassView c;
  c.num_residues = 1;
  c.residues = plan->Keep({0});
  c.num_taps = axis.kernel;
  c.shifts = plan->Keep(std::move(shifts));
  c.planes = plan->Keep(std::move(indices));
  c.kernel = plan->Keep(std::move(kernel));
  AxisView view{};
  view.src = planes.YSide();
  view.dst = planes.XSide();
  view.count = axis.in;
  view.num_src_planes = static_cast<int64_t>(used.size());
  view.src_planes = plan->Keep(std::move(used));
  SetClasses({c}, plan, &view);
  return view;
}

void SetTile(int64_t tile, AxisView* view) {
  view->tile = std::max<int64_t>(1, std::min(tile, view->count));
  view->num_tiles = CeilDiv(view->count, view->tile);
  // Tiles of nearly one size, rather than full ones and a sliver.
  if (view->num_tiles > 0) view->tile = CeilDiv(view->count, view->num_tiles);
}

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
              (h.planes[th] * v.w.num_src_planes + w.planes[tw]) * v.reduced * v.plane_stride +
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

// Whether tensors hold what is computed with.
bool IsComputeType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

int64_t ComputeWidth(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

// Positions innermost.
void CutNarrow(DType dtype, WeightGradView* view) {
  WeightGradView& v = *view;
  const int64_t budget = 256 * 1024 / ComputeWidth(dtype);
  const int64_t planes = v.h.num_src_planes * v.w.num_src_planes;
  v.chunk_out =
      std::min<int64_t>({std::max<int64_t>(1, v.out), 16, std::max<int64_t>(1, 64 / planes)});
  // Chunks of nearly one size, and of whole register blocks.
  v.chunk_in = std::max<int64_t>(1, CeilDiv(v.in, std::max<int64_t>(1, CeilDiv(v.in, 32))));
  v.chunk_in = std::min(std::max<int64_t>(1, v.in), RoundUp(v.chunk_in, 4));
  v.num_chunks_out = CeilDiv(v.out, v.chunk_out);
  v.num_chunks_in = CeilDiv(v.in, v.chunk_in);
  const int64_t lanes = v.chunk_in * v.chunk_out * v.taps * kLanes;
  v.keep_lanes = lanes <= budget;
  v.acc_elements = v.keep_lanes ? lanes : 64 * kLanes;
  v.wide_positions = 4 * 1024 / ComputeWidth(dtype);

  // A tile narrower than the tensor is a whole number of vectors: only the last one has a tail.
  SetTile(512, &v.w);
  if (v.w.num_tiles > 1) {
    v.w.tile = RoundUp(v.w.tile, kLanes);
    v.w.num_tiles = CeilDiv(v.w.count, v.w.tile);
  }
  v.x_pitch = RoundUp(v.w.tile, kLanes);
  v.y_pitch = v.w.tile + v.w.span;
  const int64_t rows_by_y = budget / (planes * v.chunk_out * v.y_pitch) - v.h.span;
  const int64_t rows_by_x = budget / (v.chunk_in * v.x_pitch);
  SetTile(std::max(std::min(rows_by_y, rows_by_x), v.h.span), &v.h);
  v.tile_n = 1;
  if (v.h.num_tiles == 1 && v.w.num_tiles == 1 && v.batch > 0) {
    v.tile_n =
        std::min({v.batch, budget / (planes * v.chunk_out * v.y_pitch * (v.h.tile + v.h.span)),
                  budget / (v.chunk_in * v.x_pitch * v.h.tile)});
    v.tile_n = CeilDiv(v.batch, CeilDiv(v.batch, std::max<int64_t>(1, v.tile_n)));
  }
  v.x_stride = OddLines(v.tile_n * v.h.tile * v.x_pitch);
  v.y_stride = OddLines(v.tile_n * (v.h.tile + v.h.span) * v.y_pitch);
  v.x_elements = v.chunk_in * v.x_stride + 4 * kLanes;
  v.y_elements = planes * v.chunk_out * v.y_stride + 4 * kLanes;
  v.x_in_place = !v.channels_last && v.w.count % kLanes == 0 && IsComputeType(dtype);
  if (v.x_in_place) {
    v.x_pitch = v.w.count;
    v.x_stride = v.h.count * v.w.count;
    v.x_elements = 0;
  }
}

// Channels innermost.
void CutWide(DType dtype, WeightGradView* view) {
  WeightGradView& v = *view;
  const int64_t width = ComputeWidth(dtype);
  const int64_t acc_budget = 256 * 1024 / width;
  const int64_t x_budget = 128 * 1024 / width;
  const int64_t y_budget = 352 * 1024 / width;
  const int64_t planes = v.h.num_src_planes * v.w.num_src_planes;
  const auto even = [](int64_t total, int64_t most, int64_t multiple) {
    const int64_t chunk = CeilDiv(total, CeilDiv(total, most));
    return chunk < multiple ? chunk : std::min(total, RoundUp(chunk, multiple));
  };
  v.panel_in = even(v.in, 64, kLanes);
  v.x_pitch = RoundUp(v.panel_in, kLanes);
  // An element of y meets taps / planes weights per input channel, which must repay packing it.
  const int64_t worth = CeilDiv(256 * planes, v.taps * v.x_pitch);
  const int64_t panels = std::min(CeilDiv(v.in, v.panel_in), worth);
  v.num_chunks_in = CeilDiv(CeilDiv(v.in, v.panel_in), panels);
  v.chunk_in = CeilDiv(CeilDiv(v.in, v.panel_in), v.num_chunks_in) * v.panel_in;
  const int64_t chunk_panels = v.chunk_in / v.panel_in;
  v.chunk_in = std::min(v.chunk_in, v.in);
  int64_t most_out = std::max<int64_t>(1, acc_budget / (v.taps * v.x_pitch * chunk_panels));
  most_out = std::max(most_out, std::min(kLanes, acc_budget / (v.taps * v.x_pitch)));
  // At least 64 positions of y must fit, or the packing outweighs the product.
  most_out = std::min(most_out, std::max<int64_t>(1, y_budget / (planes * 64)));
  v.chunk_out = even(std::max<int64_t>(1, v.out), std::min<int64_t>(64, most_out), kLanes);
  v.y_pitch = v.chunk_out < kLanes / 2 ? v.chunk_out : RoundUp(v.chunk_out, kLanes);
  v.num_chunks_out = CeilDiv(v.out, v.chunk_out);

  SetTile(256, &v.w);
  const auto y_size = [&](int64_t rows) {
    return planes * v.y_pitch * (v.w.tile + v.w.span) * (rows + v.h.span);
  };
  const int64_t x_size = v.x_pitch * v.w.tile;  // of a row
  int64_t rows = std::max<int64_t>(1, std::min(v.h.count, x_budget / x_size));
  while (rows > std::max<int64_t>(1, v.h.span) && y_size(rows) > y_budget) --rows;
  SetTile(rows, &v.h);
  v.tile_n = 1;
  if (v.h.num_tiles == 1 && v.w.num_tiles == 1) {
    v.tile_n = std::min({v.batch, x_budget / (x_size * v.h.tile), y_budget / y_size(v.h.tile)});
    v.tile_n = std::max<int64_t>(1, v.tile_n);
  }
  v.wide_positions = std::max<int64_t>(64, 16 * 1024 / width / v.x_pitch);
  v.x_elements = v.tile_n * v.h.tile * x_size + kLanes;
  v.y_elements = RoundUp(v.tile_n * y_size(v.h.tile), kLanes) + kLanes;
  v.acc_elements = v.taps * v.chunk_out * v.x_pitch * chunk_panels;
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
  const int64_t channels =
      std::max<int64_t>(1, v.reduced) * v.h.num_src_planes * v.w.num_src_planes;

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
  }
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const auto tiles = [&](int64_t rows) {
    return CeilDiv(v.batch, v.tile_n) * v.groups * CeilDiv(v.h.count, rows) * v.w.num_tiles;
  };
  // Images that share a tile share the zeros between them, so they must be whole.
  const bool whole = v.tile_n > 1;
  while (!whole && tiles(tile_h) < wanted && tile_h > 1 && tile_h * v.pitch >= 512) {
    tile_h = CeilDiv(tile_h, 2);
  }
  int64_t splits = 1;  // of the produced channels
  if (tiles(tile_h) < wanted) {
    splits = std::min(CeilDiv(wanted, tiles(tile_h)),
                      std::max<int64_t>(1, v.produced * v.num_planes / (2 * kBlockRows)));
    splits = std::min(splits, v.produced);
  }
  // As many items as divide evenly among the threads, while there are few of them.
  const int64_t most_splits = std::max<int64_t>(1, v.produced / kBlockRows);
  while (tiles(tile_h) * splits % threads != 0 && tiles(tile_h) * splits < 8 * threads &&
         splits < most_splits) {
    ++splits;
  }
  while (!whole && tiles(tile_h) * splits < wanted && tile_h > 1 && tile_h * v.pitch >= 192) {
    tile_h = CeilDiv(tile_h, 2);
  }
  SetTile(tile_h, &v.h);
  v.num_tiles_n = CeilDiv(v.batch, v.tile_n);
  v.image_rows = v.h.tile + v.h.span - (v.tile_n > 1 ? overlap_h : 0);
  const int64_t packed_rows = (v.tile_n - 1) * v.image_rows + v.h.tile + v.h.span;
  v.plane_stride = OddLines(packed_rows * v.pitch + v.overlap_w);
  v.packed_elements = channels * v.plane_stride + 4 * kLanes;

  const int64_t positions = ((v.tile_n - 1) * v.image_rows + v.h.tile - 1) * v.pitch + v.w.tile;
  v.acc_pitch = OddLines(positions);
  const int64_t chunk = std::max<int64_t>(1, acc_budget / (v.num_planes * v.acc_pitch));
  // Every item gets the same number of chunks, and all but the last chunk whole register blocks.
  const auto blocks = [](int64_t channels) {
    return channels > kBlockRows ? RoundUp(channels, kBlockRows) : channels;
  };
  const int64_t per_item = blocks(CeilDiv(v.produced, splits));
  v.chunks_per_item = CeilDiv(per_item, chunk);
  v.chunk = std::min(v.produced, blocks(CeilDiv(per_item, v.chunks_per_item)));
  v.num_chunks = CeilDiv(v.produced, v.chunk);
  v.num_chunk_items = CeilDiv(v.num_chunks, v.chunks_per_item);
  v.acc_elements = v.num_planes * v.chunk * v.acc_pitch + 4 * kLanes;

  SetGatherClasses(plan);
  plan->pack_items = v.groups * v.num_chunks;
  plan->items = v.num_tiles_n * v.groups * v.h.num_tiles * v.w.num_tiles * v.num_chunk_items;
}

void PlanWeightGrad(const Problem& p, DType dtype, WeightGradPlan* plan) {
  WeightGradView& v = plan->view;
  v.batch = p.batch;
  v.groups = p.groups;
  v.in = p.in_per_group();
  v.out = p.out_per_group();
  v.channels_last = p.layout == Layout::kNHWC;
  v.h = GradInputAxis(p.h, plan);
  v.w = GradInputAxis(p.w, plan);
  v.taps = p.taps();
  v.kernel_w = p.w.kernel;
  for (AxisView* axis : {&v.x_h, &v.x_w}) {
    const AxisView& like = axis == &v.x_h ? v.h : v.w;
    axis->src = like.dst;
    axis->dst = like.dst;
    axis->num_src_planes = 1;
    axis->src_planes = plan->Keep({0});
  }

  v.wide = (v.in >= 16 && v.out >= 8) || (v.in >= 8 && v.out >= 16);
  v.wide ? CutWide(dtype, &v) : CutNarrow(dtype, &v);
  v.units = CeilDiv(v.batch, v.tile_n) * v.h.num_tiles * v.w.num_tiles;

  const int64_t blocks = std::max<int64_t>(1, v.groups * v.num_chunks_in * v.num_chunks_out);
  v.slices = std::max<int64_t>(1, std::min(CeilDiv(16, blocks), v.units));
  plan->items = v.slices * v.groups * v.num_chunks_in * v.num_chunks_out;
  plan->reduce_items = CeilDiv(v.groups * v.in * v.out * v.taps, 16384);
  v.bias_chunk = v.channels_last ? 64 : 4;
  plan->bias_items = CeilDiv(p.out_channels, v.bias_chunk);
}

int64_t WeightGradWorkspace(const Problem& p, DType dtype) {
  WeightGradPlan plan;
  PlanWeightGrad(p, dtype, &plan);
  return CheckedProduct(
             {p.in_channels, p.out_per_group(), p.h.kernel, p.w.kernel, plan.view.slices})
      .value();
}

}  // namespace transconv::cpu
