// The geometry and the CPU plans against the definition, without a kernel: every tap of every
// element must be found exactly once, and every size must fit where the plan puts it.
#include "core/geometry.h"

#include <cstdint>
#include <cstdio>
#include <set>
#include <tuple>

#include "core/checked_math.h"
#include "cpu/plan.h"
#include "cpu/plan_axes.h"

namespace {

using transconv::Axis;
using transconv::CeilDiv;
using transconv::DType;
using transconv::FloorDiv;
using transconv::Pass;
using transconv::Problem;

int failures = 0;

void Check(bool ok, const char* what, int line) {
  if (ok) return;
  std::fprintf(stderr, "geometry_test.cc:%d: %s\n", line, what);
  ++failures;
}
#define CHECK(condition) Check(condition, #condition, __LINE__)

void Division() {
  for (int64_t a = -20; a <= 20; ++a) {
    for (int64_t b = 1; b <= 6; ++b) {
      CHECK(FloorDiv(a, b) * b <= a && a < (FloorDiv(a, b) + 1) * b);
      CHECK(CeilDiv(a, b) == -FloorDiv(-a, b));
    }
  }
}

void Overflow() {
  using transconv::CheckedProduct;
  using transconv::CheckedSize;
  CHECK(CheckedProduct({1 << 30, 1 << 30}).value() == int64_t{1} << 60);
  CHECK(CheckedProduct({1 << 30, 1 << 30, 1 << 4}).value() == -1);
  CHECK(CheckedProduct({0, INT64_MAX, 2}).value() == 0);
  CHECK((CheckedSize(INT64_MAX) + CheckedSize(1)).value() == -1);
  CHECK((CheckedSize(-1) * CheckedSize(0)).value() == -1);
  CHECK(AlignUp64(CheckedSize(65)).value() == 128);
}

// (input position, tap, output position) of an axis, from the definition.
using Triples = std::multiset<std::tuple<int64_t, int64_t, int64_t>>;

Triples Definition(const Axis& axis) {
  Triples all;
  for (int64_t i = 0; i < axis.in; ++i) {
    for (int64_t k = 0; k < axis.kernel; ++k) {
      const int64_t o = axis.stride * i + axis.dilation * k - axis.crop_lo;
      if (o >= 0 && o < axis.out) all.insert({i, k, o});
    }
  }
  return all;
}

Triples ByResidues(const Axis& axis) {
  Triples all;
  for (int64_t k = 0; k < axis.kernel; ++k) {
    const auto tap = axis.TapOf(k);
    CHECK(tap.residue >= 0 && tap.residue < axis.stride);
    for (int64_t v = 0; v < axis.ResidueExtent(tap.residue); ++v) {
      const int64_t i = v - tap.shift;
      if (i >= 0 && i < axis.in) all.insert({i, k, axis.stride * v + tap.residue});
    }
  }
  return all;
}

// What the tiles of a plan compute along one axis.
Triples ByPlan(const transconv::cpu::AxisView& view, bool forward) {
  Triples all;
  for (int64_t c = 0; c < view.num_classes; ++c) {
    const auto& cls = view.classes[c];
    for (int64_t r = 0; r < cls.num_residues; ++r) {
      for (int64_t tile = 0; tile < view.num_tiles; ++tile) {
        for (int64_t q = tile * view.tile; q < (tile + 1) * view.tile && q < view.count; ++q) {
          const int64_t to = view.dst.split * q + cls.residues[r] - view.dst.lo;
          if (to < 0 || to >= view.dst.len) continue;
          for (int64_t t = 0; t < cls.num_taps; ++t) {
            const int64_t shift = cls.shifts[t];
            CHECK(shift >= view.shift_min && shift <= view.shift_min + view.span);
            const int64_t from =
                view.src.split * (q + shift) + view.src_planes[cls.planes[t]] - view.src.lo;
            if (from < 0 || from >= view.src.len) continue;
            const int64_t k = cls.kernel[r * cls.num_taps + t];
            forward ? all.insert({from, k, to}) : all.insert({to, k, from});
          }
        }
      }
    }
  }
  return all;
}

Triples ByPhases(const transconv::cpu::PhasesView& view, bool forward) {
  Triples all;
  for (int64_t p = 0; p < view.num_phases; ++p) {
    const auto& phase = view.phases[p];
    for (int64_t e = 0; e < phase.count; ++e) {
      const int64_t to = phase.first + phase.step * e;
      CHECK(to >= 0 && to < view.destination_len);
      for (int64_t t = 0; t < phase.num_taps; ++t) {
        const int64_t from = e * phase.source_step + phase.offsets[t];
        const bool inside = from >= 0 && from < view.source_len;
        CHECK(inside || e < phase.safe_begin || e >= phase.safe_end);
        if (!inside) continue;
        forward ? all.insert({from, phase.kernel[t], to}) : all.insert({to, phase.kernel[t], from});
      }
    }
  }
  return all;
}

// Along w, by the places of taps in a split source row.
Triples BySplitRows(const transconv::cpu::DepthwiseRowsView& v, bool forward) {
  Triples all;
  const int64_t count = (v.destination_len + v.num_phases - 1) / v.num_phases;
  for (int64_t p = 0; p < v.num_phases; ++p) {
    const auto& phase = v.phases[p];
    for (int64_t t = 0; t < phase.num_taps; ++t) {
      const int64_t plane = phase.offsets[t] / v.plane_stride;
      const int64_t first = phase.offsets[t] % v.plane_stride - v.zeros;
      CHECK(phase.offsets[t] >= 0 && plane < v.split);
      CHECK(phase.first + t < v.num_taps && v.num_taps <= v.kernel_w);
      // Whole vectors of 16 stay within the plane.
      CHECK(v.zeros + first + (count + 15) / 16 * 16 <= v.plane_stride);
      CHECK(first + count <= v.elements);
      for (int64_t e = 0; e < count && e * v.num_phases + p < v.destination_len; ++e) {
        const int64_t from = (first + e) * v.split + plane, to = e * v.num_phases + p;
        if (first + e < 0 || from >= v.source_len) continue;
        const int64_t k = v.kernel[phase.first + t];
        forward ? all.insert({from, k, to}) : all.insert({to, k, from});
      }
    }
  }
  return all;
}

// All rows that some destination rows next to each other read have places of their own.
void KeptRows(const transconv::cpu::DepthwiseRowsView& v) {
  CHECK(v.split * v.plane_stride <= v.row_stride);
  CHECK(v.num_rows > 0 && (v.num_rows & (v.num_rows - 1)) == 0);
  for (int64_t p = 0; p < v.h.num_phases; ++p) {
    const auto& phase = v.h.phases[p];
    for (int64_t a = 0; a < phase.num_taps; ++a) {
      for (int64_t b = 0; b < phase.num_taps; ++b) {
        const int64_t apart = (v.rows_at_once - 1) * phase.source_step;
        CHECK(phase.offsets[a] + apart - phase.offsets[b] < v.num_rows);
      }
    }
  }
}

void Plans(const Axis& axis, int64_t channels) {
  const Triples expected = Definition(axis);
  CHECK(ByResidues(axis) == expected);
  Problem p;
  p.batch = 3;
  p.in_channels = p.out_channels = channels;
  p.h = p.w = axis;
  for (Pass pass : {Pass::kForward, Pass::kGradInput}) {
    const bool forward = pass == Pass::kForward;
    for (int64_t threads : {1, 8}) {
      transconv::cpu::GatherPlan plan;
      PlanGather(pass, p, DType::kF32, threads, &plan);
      const auto& v = plan.view;
      CHECK(ByPlan(v.h, forward) == expected);
      CHECK(ByPlan(v.w, forward) == expected);
      CHECK(v.num_tiles_n * v.tile_n >= p.batch && (v.num_tiles_n - 1) * v.tile_n < p.batch);
      CHECK(v.num_chunks * v.chunk >= v.produced && (v.num_chunks - 1) * v.chunk < v.produced);
      CHECK(v.num_chunk_items * v.chunks_per_item >= v.num_chunks);
      CHECK(v.tile_n == 1 || (v.h.num_tiles == 1 && v.w.num_tiles == 1));
      // All rows that are packed, with the zeros behind the last one, lie in their channel.
      CHECK(((v.tile_n - 1) * v.image_rows + v.h.tile + v.h.span) * v.pitch + v.overlap_w <=
            v.plane_stride);
      // And all vectors of one in the accumulator tile.
      CHECK(!v.by_rows ||
            v.tile_n * v.h.tile * transconv::cpu::RoundUp(v.w.tile, transconv::cpu::kLanes) <=
                v.acc_pitch);
      // The farthest element that a tap reads of the last channel lies in the packed tile.
      for (int64_t c = 0; c < v.num_classes; ++c) {
        for (int64_t t = 0; t < v.classes[c].num_taps; ++t) {
          const int64_t last_row =
              v.by_rows ? transconv::cpu::RoundUp(v.w.tile, transconv::cpu::kLanes) : v.w.tile;
          const int64_t positions =
              ((v.tile_n - 1) * v.image_rows + v.h.tile - 1) * v.pitch + last_row;
          CHECK(v.classes[c].offsets[t] >= 0);
          CHECK(v.classes[c].offsets[t] + (v.depth - 1) * v.plane_stride + positions <=
                v.packed_elements);
        }
      }
      transconv::cpu::DepthwisePlan depthwise;
      PlanDepthwise(pass, p, threads, &depthwise);
      CHECK(ByPhases(depthwise.view.h, forward) == expected);
      CHECK(ByPhases(depthwise.view.w, forward) == expected);
      Problem one = p;
      one.groups = channels;
      transconv::cpu::DepthwiseRowsPlan rows;
      if (!PlanDepthwiseRows(pass, one, threads, &rows)) continue;
      CHECK(ByPhases(rows.view.h, forward) == expected);
      CHECK(BySplitRows(rows.view, forward) == expected);
      CHECK(rows.view.items_per_image * rows.view.elements_per_item >= rows.view.h.phases[0].count);
      CHECK(rows.items * rows.view.images_per_item >= p.batch * channels);
      KeptRows(rows.view);
    }
  }
  transconv::cpu::WeightGradPlan plan;
  PlanWeightGrad(p, DType::kF32, &plan);
  CHECK(ByPlan(plan.view.h, false) == expected);
  CHECK(ByPlan(plan.view.w, false) == expected);
  CHECK(plan.view.slices >= 1 && plan.view.slices <= plan.view.units);
}

}  // namespace

int main() {
  Division();
  Overflow();
  for (int64_t in : {1, 2, 7, 12, 40}) {
    for (int64_t kernel : {1, 2, 3, 5}) {
      for (int64_t stride = 1; stride <= 5; ++stride) {
        for (int64_t dilation : {1, 2, 3, 30}) {
          const int64_t full = (in - 1) * stride + dilation * (kernel - 1) + 1;
          for (int64_t lo = -2 * stride; lo <= 3; ++lo) {
            for (int64_t hi : {-3, 0, 2}) {
              if (full - lo - hi < 1) continue;
              Plans({in, full - lo - hi, kernel, stride, dilation, lo}, lo % 2 == 0 ? 1 : 24);
            }
          }
        }
      }
    }
  }
  if (failures == 0) std::puts("ok");
  return failures == 0 ? 0 : 1;
}
