#include <algorithm>
#include <utility>
#include <vector>

#include "core/checked_math.h"
#include "cpu/plan.h"

namespace transconv::cpu {
namespace {

void SetSafe(int64_t source_len, PhaseView* phase) {
  phase->safe_begin = 0;
  phase->safe_end = phase->count;
  for (int64_t t = 0; t < phase->num_taps; ++t) {
    const int64_t first = CeilDiv(-phase->offsets[t], phase->source_step);
    const int64_t last = FloorDiv(source_len - 1 - phase->offsets[t], phase->source_step);
    phase->safe_begin = std::max(phase->safe_begin, first);
    phase->safe_end = std::min(phase->safe_end, last + 1);
  }
  phase->safe_begin = std::min(phase->safe_begin, phase->count);
  phase->safe_end = std::max(phase->safe_begin, phase->safe_end);
}

// Residues as geometry.h counts them; those without taps are phases as well, of bias alone.
PhasesView ForwardPhases(const Axis& axis, PlanStorage* plan, std::vector<PhaseView>* phases) {
  for (int64_t m = 0; m < std::min(axis.stride, std::max<int64_t>(1, axis.out)); ++m) {
    std::vector<int64_t> kernel, offsets;
    for (int64_t k = 0; k < axis.kernel; ++k) {
      const Tap tap = axis.TapOf(k);
      if (tap.residue != m) continue;
      kernel.push_back(k);
      offsets.push_back(-tap.shift);
    }
    PhaseView phase{m, axis.stride, axis.ResidueExtent(m), 1, 0, nullptr, nullptr, 0, 0};
    phase.num_taps = static_cast<int64_t>(kernel.size());
    phase.kernel = plan->Keep(std::move(kernel));
    phase.offsets = plan->Keep(std::move(offsets));
    SetSafe(axis.in, &phase);
    phases->push_back(phase);
  }
  return {axis.in, axis.out, static_cast<int64_t>(phases->size()), phases->data()};
}

PhasesView GradInputPhases(const Axis& axis, PlanStorage* plan, std::vector<PhaseView>* phases) {
  std::vector<int64_t> kernel, offsets;
  for (int64_t k = 0; k < axis.kernel; ++k) {
    kernel.push_back(k);
    offsets.push_back(axis.dilation * k - axis.crop_lo);
  }
  PhaseView phase{0, 1, axis.in, axis.stride, axis.kernel, nullptr, nullptr, 0, 0};
  phase.kernel = plan->Keep(std::move(kernel));
  phase.offsets = plan->Keep(std::move(offsets));
  SetSafe(axis.out, &phase);
  phases->push_back(phase);
  return {axis.out, axis.in, 1, phases->data()};
}

// The widest vectors: a plan does not depend on the processor.
constexpr int64_t kLanes = 16;

int64_t RoundUp(int64_t value, int64_t multiple) { return CeilDiv(value, multiple) * multiple; }

// Taps along w, as places in a split source row, and the layout of that row.
void SetRowTaps(Pass pass, const Axis& axis, DepthwiseRowsPlan* plan) {
  DepthwiseRowsView& v = plan->view;
  std::vector<PhaseView> phases;
  const bool forward = pass == Pass::kForward;
  const PhasesView w =
      forward ? ForwardPhases(axis, plan, &phases) : GradInputPhases(axis, plan, &phases);
  v.source_len = w.source_len;
  v.destination_len = w.destination_len;
  v.num_phases = w.num_phases;
  v.split = forward ? 1 : axis.stride;
  int64_t lowest = 0, highest = 0;
  for (const PhaseView& phase : phases) {
    for (int64_t t = 0; t < phase.num_taps; ++t) {
      lowest = std::min(lowest, FloorDiv(phase.offsets[t], v.split));
      highest = std::max(highest, FloorDiv(phase.offsets[t], v.split));
    }
  }
  const int64_t count = CeilDiv(v.destination_len, std::max<int64_t>(1, v.num_phases));
  // Whole vectors, so that element 0 is aligned.
  v.zeros = RoundUp(-lowest, kLanes);
  v.elements = count + highest;
  v.plane_stride = v.zeros + RoundUp(count, kLanes) + RoundUp(highest, kLanes);
  // An odd number of cache lines: rows never compete for the same cache sets.
  v.row_stride = (CeilDiv(v.split * v.plane_stride, kLanes) | 1) * kLanes;

  std::vector<int64_t> kernel;
  for (const PhaseView& phase : phases) {
    std::vector<int64_t> offsets;
    RowTapsView taps{static_cast<int64_t>(kernel.size()), phase.num_taps, nullptr};
    for (int64_t t = 0; t < phase.num_taps; ++t) {
      const int64_t element = FloorDiv(phase.offsets[t], v.split);
      const int64_t plane = phase.offsets[t] - v.split * element;
      offsets.push_back(plane * v.plane_stride + v.zeros + element);
      kernel.push_back(phase.kernel[t]);
    }
    taps.offsets = plan->Keep(std::move(offsets));
    plan->phases_w.push_back(taps);
  }
  v.phases = plan->phases_w.data();
  v.num_taps = static_cast<int64_t>(kernel.size());
  v.kernel = plan->Keep(std::move(kernel));
}

// Source rows between the first and the last that some destination rows next to each other read.
int64_t RowWindow(const PhasesView& h) {
  int64_t lowest = 0, highest = 0;
  bool first = true;
  for (int64_t p = 0; p < h.num_phases; ++p) {
    for (int64_t t = 0; t < h.phases[p].num_taps; ++t) {
      lowest = first ? h.phases[p].offsets[t] : std::min(lowest, h.phases[p].offsets[t]);
      highest = first ? h.phases[p].offsets[t] : std::max(highest, h.phases[p].offsets[t]);
      first = false;
    }
  }
  return highest - lowest + 1;
}

}  // namespace

bool IsChannelsLastDepthwise(const Problem& p) {
  // The kernel lists the source rows of an output row in a small array, and residues one by one.
  constexpr int64_t kMost = 64;
  return p.layout == Layout::kNHWC && p.in_per_group() == 1 && p.out_per_group() == 1 &&
         p.h.kernel <= kMost && p.h.stride <= kMost && p.w.stride <= kMost;
}

int64_t DepthwiseSlices(const Problem& p) {
  return std::max<int64_t>(1, std::min<int64_t>(16, p.batch * p.h.in));
}

void PlanDepthwise(Pass pass, const Problem& p, int64_t threads, DepthwisePlan* plan) {
  DepthwiseView& v = plan->view;
  v.batch = p.batch;
  v.channels = p.in_channels;
  v.taps = p.taps();
  v.kernel_w = p.w.kernel;
  if (pass == Pass::kForward) {
    v.h = ForwardPhases(p.h, plan, &plan->phases_h);
    v.w = ForwardPhases(p.w, plan, &plan->phases_w);
  } else {
    v.h = GradInputPhases(p.h, plan, &plan->phases_h);
    v.w = GradInputPhases(p.w, plan, &plan->phases_w);
  }
  v.slices = DepthwiseSlices(p);
  // Rows of an item share source rows in the cache: many, as long as every thread has four items.
  const int64_t rows = v.h.destination_len;
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const int64_t most = std::max<int64_t>(1, v.batch * rows / wanted);
  v.rows_per_item = std::max<int64_t>(1, std::min<int64_t>({most, rows, 32}));
  v.items_per_image = CeilDiv(rows, v.rows_per_item);
  plan->pack_items = CeilDiv(v.taps, 16);
  const bool any = v.channels > 0 && v.batch > 0 && v.w.destination_len > 0;
  plan->items = any ? v.batch * v.items_per_image : 0;
}

bool PlanDepthwiseRows(Pass pass, const Problem& p, int64_t threads, DepthwiseRowsPlan* plan) {
  // The kernel lists the source rows of an output row in a small array, and remembers which rows it
  // keeps in another; both have this size. Splits are unrolled.
  constexpr int64_t kMostRows = 64, kMostSplit = 8;
  constexpr int64_t kMostElements = 32 * 1024;  // of the rows that are kept
  if (pass == Pass::kGradWeight || p.layout != Layout::kNCHW || p.in_per_group() != 1 ||
      p.out_per_group() != 1 || p.h.kernel > kMostRows || p.h.stride > kMostRows ||
      p.w.stride > kMostSplit) {
    return false;
  }
  DepthwiseRowsView& v = plan->view;
  v.images = p.batch * p.in_channels;
  v.channels = p.in_channels;
  v.taps = p.taps();
  v.kernel_w = p.w.kernel;
  v.h = pass == Pass::kForward ? ForwardPhases(p.h, plan, &plan->phases_h)
                               : GradInputPhases(p.h, plan, &plan->phases_h);
  constexpr int64_t kFewRows = 16;
  if (v.h.num_phases == 0 || v.images * v.h.destination_len < kFewRows) return false;
  SetRowTaps(pass, p.w, plan);
  if (v.num_phases == 0 || v.row_stride > kMostElements) return false;
  const int64_t window = RowWindow(v.h), most = std::min(kMostRows, kMostElements / v.row_stride);
  const auto kept = [&](int64_t at_once) {
    int64_t rows = 1;
    while (rows < window + (at_once - 1) * v.h.phases[0].source_step) rows *= 2;
    return rows;
  };
  if (kept(1) > most) return false;
  for (v.rows_at_once = 4; kept(v.rows_at_once) > most;) v.rows_at_once /= 2;
  v.num_rows = kept(v.rows_at_once);

  // Items of many elements, as long as every thread has four of them.
  constexpr int64_t kItem = 64 * 1024;
  const int64_t wanted = threads > 1 ? 4 * threads : 1;
  const int64_t image = v.h.source_len * v.source_len + v.h.destination_len * v.destination_len;
  v.images_per_item = std::min(CeilDiv(kItem, std::max<int64_t>(1, image)), v.images / wanted);
  v.images_per_item = std::max<int64_t>(1, v.images_per_item);
  const int64_t parts = v.images >= wanted ? 1 : CeilDiv(wanted, std::max<int64_t>(1, v.images));
  const int64_t count = v.h.phases[0].count;
  v.elements_per_item = std::max<int64_t>(1, CeilDiv(count, parts));
  v.items_per_image = CeilDiv(count, v.elements_per_item);
  plan->items = CeilDiv(v.images, v.images_per_item) * v.items_per_image;
  return true;
}

}  // namespace transconv::cpu
