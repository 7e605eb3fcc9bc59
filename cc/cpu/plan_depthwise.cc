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

}  // namespace transconv::cpu
