// Plans of grad_weight.
#include <algorithm>
#include <cstdint>

#include "core/checked_math.h"
#include "cpu/plan.h"
#include "cpu/plan_axes.h"

namespace transconv::cpu {
namespace {

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
  const int64_t room = std::max<int64_t>(1, acc_budget / (v.taps * v.x_pitch * kLanes));
  const int64_t panels = std::min({CeilDiv(v.in, v.panel_in), worth, room});
  v.num_chunks_in = CeilDiv(CeilDiv(v.in, v.panel_in), panels);
  v.chunk_in = CeilDiv(CeilDiv(v.in, v.panel_in), v.num_chunks_in) * v.panel_in;
  const int64_t chunk_panels = v.chunk_in / v.panel_in;
  v.chunk_in = std::min(v.chunk_in, v.in);
  int64_t most_out = std::max<int64_t>(1, acc_budget / (v.taps * v.x_pitch * chunk_panels));
  // At least 64 positions of y must fit, or the packing outweighs the product.
  most_out = std::min(most_out, std::max<int64_t>(1, y_budget / (planes * 64)));
  v.chunk_out = even(std::max<int64_t>(1, v.out), std::min<int64_t>(64, most_out), kLanes);
  v.y_pitch = v.chunk_out < kLanes / 2 ? v.chunk_out : RoundUp(v.chunk_out, kLanes);
  v.num_chunks_out = CeilDiv(v.out, v.chunk_out);
  v.wide_positions = std::max<int64_t>(64, 32 * 1024 / width / v.x_pitch);

  SetTile(256, &v.w);
  const auto y_size = [&](int64_t rows) {
    return planes * v.y_pitch * (v.w.tile + v.w.span) * (rows + v.h.span);
  };
  const int64_t x_size = v.x_pitch * v.w.tile;  // of a row
  int64_t rows = std::max<int64_t>(1, std::min(v.h.count, x_budget / x_size));
  while (rows > std::max<int64_t>(1, v.h.span) && y_size(rows) > y_budget) --rows;
  SetTile(rows, &v.h);
  v.tile_n = 1;
  if (v.h.num_tiles == 1 && v.w.num_tiles == 1 && v.batch > 0) {
    v.tile_n = std::min({v.batch, x_budget / (x_size * v.h.tile), y_budget / y_size(v.h.tile)});
    // Tiles enough for a few threads, though not of fewer positions than are multiplied at a time,
    // and of nearly one size.
    const int64_t wanted = CeilDiv(8, v.groups * v.num_chunks_in * v.num_chunks_out);
    const int64_t least = CeilDiv(v.wide_positions, v.h.tile * v.w.tile);
    v.tile_n = std::min(v.tile_n, std::max(least, v.batch / wanted));
    v.tile_n = CeilDiv(v.batch, CeilDiv(v.batch, std::max<int64_t>(1, v.tile_n)));
  }
  v.x_elements = v.tile_n * v.h.tile * x_size + kLanes;
  v.y_elements = RoundUp(v.tile_n * y_size(v.h.tile), kLanes) + kLanes;
  v.acc_elements = v.taps * v.chunk_out * v.x_pitch * chunk_panels;
}

// Of few output channels x is best read in place, by positions; but rows of 10 or 33 fill vectors
// badly, and then it pays to bring x into vectors of channels.
bool ChannelsWasteLess(const WeightGradView& v) {
  const auto filled = [](int64_t n) {
    return static_cast<double>(n) / static_cast<double>(std::max(kLanes, RoundUp(n, kLanes)));
  };
  return v.in >= 32 && filled(v.in) >= 1.3 * filled(v.w.count);
}

}  // namespace

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

  v.wide = (v.in >= 16 && v.out >= 8) || (v.in >= 8 && v.out >= 16) || ChannelsWasteLess(v);
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
