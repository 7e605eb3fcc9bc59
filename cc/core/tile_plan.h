// The tile programme of the dense forward and grad_input kernels: pure C++, tested without a GPU.
//
// Both passes read one image ("source") and write another ("target"). Per axis, the target is a set
// of residue classes, target = rs * t + r, and the source a set of planes, source = ps * i + p:
//
//     forward      source x, one plane (ps 1);   target y, residues r = m_k (rs = stride)
//     grad_input   source dy, a plane for each m_k (ps = stride);   target dx, one residue (rs 1)
//
// Tap k joins target t of its residue to source i = t + shift of its plane, where shift is -tau_k
// in the forward pass and +tau_k in grad_input (core/geometry.h). A tile is `rows` x `columns`
// targets of one row residue and all column residues; its source is, per plane, a halo of halo_rows
// x halo_columns cells. A tap is then a single offset into the tile's cells.
//
// Cells are kept by plane, but loaded in the order of the source's memory, so that neighbouring
// lanes load neighbouring columns whatever their planes (LoadedCell).
#ifndef TRANSCONV_CORE_TILE_PLAN_H_
#define TRANSCONV_CORE_TILE_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"

namespace transconv {

constexpr int kMaxTileTaps = 256;
constexpr int kMaxResidues = 8;  // of one axis
constexpr int kMaxPlanes = 16;   // of one axis

// One axis of a pass in the words above.
struct TileAxis {
  int64_t source = 0, target = 0;  // extents
  int64_t source_step = 1, target_step = 1;
  int kernel = 0;
  int residues = 1, planes = 1;
  int64_t plane[kMaxPlanes] = {};  // source position of plane i's cell 0
  int tap_plane[kMaxTileTaps] = {}, tap_residue[kMaxTileTaps] = {};
  int64_t tap_shift[kMaxTileTaps] = {};
};

// False if the axis has more taps, residues or planes than a tile programme can hold.
inline bool MakeTileAxis(const Axis& axis, Pass pass, TileAxis* result) {
  const bool forward = pass == Pass::kForward;
  TileAxis a;
  a.source = forward ? axis.in : axis.out;
  a.target = forward ? axis.out : axis.in;
  (forward ? a.target_step : a.source_step) = axis.stride;
  if (axis.kernel > kMaxTileTaps) return false;
  a.kernel = static_cast<int>(axis.kernel);
  if (forward) {
    if (axis.stride > kMaxResidues) return false;
    a.residues = static_cast<int>(axis.stride);
    a.plane[0] = 0;
  } else {
    a.planes = 0;
  }
  for (int k = 0; k < a.kernel; ++k) {
    const Tap tap = axis.TapOf(k);
    a.tap_shift[k] = forward ? -tap.shift : tap.shift;
    if (forward) {
      a.tap_residue[k] = static_cast<int>(tap.residue);
      continue;
    }
    int p = 0;
    while (p < a.planes && a.plane[p] != tap.residue) ++p;
    if (p == a.planes) {
      if (p == kMaxPlanes) return false;
      a.plane[a.planes++] = tap.residue;
    }
    a.tap_plane[k] = p;
  }
  // A plane begins where its first tap does, so that halos reach no further than they must. What
  // all planes share stays in the shifts.
  int64_t first[kMaxPlanes], least = INT64_MAX;
  for (int p = 0; p < a.planes; ++p) first[p] = INT64_MAX;
  for (int k = 0; k < a.kernel; ++k) {
    first[a.tap_plane[k]] = std::min(first[a.tap_plane[k]], a.tap_shift[k]);
    least = std::min(least, a.tap_shift[k]);
  }
  for (int k = 0; k < a.kernel && !forward; ++k) a.tap_shift[k] -= first[a.tap_plane[k]] - least;
  for (int p = 0; p < a.planes && !forward; ++p) a.plane[p] += a.source_step * (first[p] - least);
  *result = a;
  return true;
}

// Shape of a tile and where its taps lie. Taps are ordered by row residue, column residue, kernel
// row, kernel column; the packed weights follow the same order.
struct TilePlan {
  TileAxis h, w;
  int rows = 0, columns = 0;            // targets of one residue class
  int halo_rows = 0, halo_columns = 0;  // source cells of one plane
  int plane_pitch = 0;                  // cells from one plane to the next
  int cells = 0;                        // that are loaded, of all planes
  int taps = 0;
  int max_taps = 0;                                        // of one row residue
  int first_tap[kMaxResidues + 1] = {};                    // by row residue
  int residue_begin[kMaxResidues][kMaxResidues + 1] = {};  // taps of a column residue
  int64_t first_row[kMaxResidues] = {};                    // shift of halo row 0, by row residue
  int64_t first_column = 0;                                // shift of halo column 0
  // Plane and halo position of a tap's cell for the tile's first target.
  int tap_plane[kMaxTileTaps] = {}, tap_row[kMaxTileTaps] = {}, tap_column[kMaxTileTaps] = {};
  int tap_kernel[kMaxTileTaps] = {};  // index into the kernel, row-major

  constexpr int planes() const { return h.planes * w.planes; }
  // Whether places inside a tile's source fit 16 bits.
  bool PlacesFit() const {
    const auto reach = [](const TileAxis& a, int halo) {
      return *std::max_element(a.plane, a.plane + a.planes) + (halo + 1) * a.source_step;
    };
    return reach(h, halo_rows) <= 65535 && reach(w, halo_columns) <= 65535;
  }
  // Distance of a tap's cell from its target's place.
  constexpr int tap_cell(int tap) const {
    return tap_plane[tap] * plane_pitch + tap_row[tap] * halo_columns + tap_column[tap];
  }
  constexpr int64_t target_rows(int residue) const {
    return h.target > residue ? CeilDiv(h.target - residue, h.target_step) : 0;
  }
  constexpr int64_t max_target_columns() const { return CeilDiv(w.target, w.target_step); }
  constexpr int64_t max_target_rows() const { return CeilDiv(h.target, h.target_step); }
};

// Cells from one plane to the next. Eight lanes store eight cells at a time, and those of different
// column planes should not meet in shared memory's banks, which repeat after eight cells.
constexpr int PlanePitch(int plane_cells, int planes_w) {
  if (planes_w == 1) return plane_cells;
  const int apart = static_cast<int>(CeilDiv(8, planes_w)) % 8;
  return plane_cells + (apart - plane_cells % 8 + 8) % 8;
}

// Fills the plan for tiles of rows x columns targets; false if the problem does not fit one.
inline bool MakeTilePlan(const Problem& problem, Pass pass, int rows, int columns, TilePlan* plan) {
  TilePlan p;
  if (!MakeTileAxis(problem.h, pass, &p.h) || !MakeTileAxis(problem.w, pass, &p.w)) return false;
  if (p.h.kernel * p.w.kernel > kMaxTileTaps) return false;
  p.rows = rows;
  p.columns = columns;

  int64_t low_w = INT64_MAX, high_w = INT64_MIN, height = 0;
  for (int k = 0; k < p.w.kernel; ++k) {
    low_w = p.w.tap_shift[k] < low_w ? p.w.tap_shift[k] : low_w;
    high_w = p.w.tap_shift[k] > high_w ? p.w.tap_shift[k] : high_w;
  }
  for (int r = 0; r < p.h.residues; ++r) {
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int k = 0; k < p.h.kernel; ++k) {
      if (p.h.tap_residue[k] != r) continue;
      low = p.h.tap_shift[k] < low ? p.h.tap_shift[k] : low;
      high = p.h.tap_shift[k] > high ? p.h.tap_shift[k] : high;
    }
    p.first_row[r] = low == INT64_MAX ? 0 : low;
    const int64_t span = low == INT64_MAX ? 0 : high - low;
    height = span > height ? span : height;
  }
  // A halo larger than this could not be held on chip anyway.
  if (height > 4096 || high_w - low_w > 4096) return false;
  p.first_column = low_w;
  p.halo_rows = rows + static_cast<int>(height);
  p.halo_columns = columns + static_cast<int>(high_w - low_w);
  p.plane_pitch = PlanePitch(p.halo_rows * p.halo_columns, p.w.planes);
  p.cells = p.halo_rows * p.halo_columns * p.planes();

  for (int r = 0; r < p.h.residues; ++r) {
    p.first_tap[r] = p.taps;
    for (int c = 0; c < p.w.residues; ++c) {
      p.residue_begin[r][c] = p.taps;
      for (int k = 0; k < p.h.kernel; ++k) {
        if (p.h.tap_residue[k] != r) continue;
        for (int l = 0; l < p.w.kernel; ++l) {
          if (p.w.tap_residue[l] != c) continue;
          p.tap_plane[p.taps] = p.h.tap_plane[k] * p.w.planes + p.w.tap_plane[l];
          p.tap_row[p.taps] = static_cast<int>(p.h.tap_shift[k] - p.first_row[r]);
          p.tap_column[p.taps] = static_cast<int>(p.w.tap_shift[l] - p.first_column);
          p.tap_kernel[p.taps] = k * p.w.kernel + l;
          ++p.taps;
        }
      }
    }
    p.residue_begin[r][p.w.residues] = p.taps;
    const int count = p.taps - p.first_tap[r];
    p.max_taps = count > p.max_taps ? count : p.max_taps;
  }
  p.first_tap[p.h.residues] = p.taps;
  *plan = p;
  return true;
}

// The n-th cell that is loaded, of halos of the given size: in the order of the source's memory.
struct LoadedCell {
  int plane_h, plane_w, row, column;
  TRANSCONV_HOST_DEVICE LoadedCell(int n, int halo_rows, int halo_columns, int planes_w) {
    const int width = halo_columns * planes_w;
    row = n / width;
    column = n - row * width;
    plane_h = row / halo_rows;
    row -= plane_h * halo_rows;
    plane_w = column;
    column /= planes_w;
    plane_w -= column * planes_w;
  }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_TILE_PLAN_H_
