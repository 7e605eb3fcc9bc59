// Axes of a plan, and what both kinds of plans share; see plan.h.
#ifndef TRANSCONV_CPU_PLAN_AXES_H_
#define TRANSCONV_CPU_PLAN_AXES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/checked_math.h"
#include "core/dtypes.h"
#include "core/geometry.h"
#include "cpu/plan.h"
#include "cpu/views.h"

namespace transconv::cpu {

// Elements are padded for the widest vectors, so that a plan does not depend on the processor.
inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kBlockRows = 8;  // rows of the largest register block

inline int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A stride, in elements, that is a whole and odd number of cache lines: channels next to each other
// then never compete for the same cache sets, which a power of two would make them do.
inline int64_t OddLines(int64_t elements) {
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

inline void SetClasses(std::vector<AxisClassView> classes, PlanStorage* plan, AxisView* view) {
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
inline AxisView ForwardAxis(const Axis& axis, bool cropped, PlanStorage* plan) {
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
inline AxisView GradInputAxis(const Axis& axis, PlanStorage* plan) {
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

inline void SetTile(int64_t tile, AxisView* view) {
  view->tile = std::max<int64_t>(1, std::min(tile, view->count));
  view->num_tiles = CeilDiv(view->count, view->tile);
  // Tiles of nearly one size, rather than full ones and a sliver.
  if (view->num_tiles > 0) view->tile = CeilDiv(view->count, view->num_tiles);
}

// Whether tensors hold what is computed with.
inline bool IsComputeType(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF64; }

inline int64_t ComputeWidth(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_PLAN_AXES_H_
