// The programme of the dense weight gradient: pure C++, tested without a GPU.
//
// A block sums dw for 64 channels of x a half, 64 channels of dy and the taps of one pass, over its
// share of the tiles of x. Its warpgroups take different taps or the two halves (WgradForm). A tile
// is `rows` x `columns` positions of x and, per plane of dy (see tile_plan.h), the halo that its
// taps reach. Shared memory holds both as cells of 8 channels:
//
//     [row][chunk of 8 channels][column][8]
//
// so that with one more row, the channels of the next plane row follow at a fixed distance, and
// vertically neighbouring taps can be read as more columns of one matrix operand ("run"). Where the
// taps take several passes, each may keep to one plane of dy, or to one row of planes, and does not
// load the others.
#ifndef TRANSCONV_CORE_WGRAD_PLAN_H_
#define TRANSCONV_CORE_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "core/tile_plan.h"

namespace transconv {

constexpr int kWgradMaxPlaces = 768;  // of taps: pass, group of warps, slot
constexpr int kWgradMaxPasses = 256;

// What the warpgroups of a block do.
struct WgradForm {
  int warpgroups = 3;
  int halves = 1;  // of 128 channels of x, each of its own warpgroup; else warpgroups share taps
  int slots = 3;   // taps of a warpgroup
  constexpr int tap_groups() const { return warpgroups / halves; }
  constexpr int taps() const { return tap_groups() * slots; }
};

// Which planes of dy a pass loads.
enum class WgradPlanes { kAll, kRow, kOne };

struct WgradPlan {
  TilePlan tile;  // of the gradient of x: its source planes and halo are dy's
  WgradForm form;
  bool boxes = false;  // a plane of dy is one copy: it begins at 128 bytes of shared memory
  bool run = false;    // a warpgroup's slots are vertical neighbours, one instruction covers them
  int passes = 0;      // blocks that share a tile's data, each with other taps
  int planes_h = 1, planes_w = 1;         // that a pass loads
  uint8_t plane_h[kWgradMaxPasses] = {};  // the first, by pass
  uint8_t plane_w[kWgradMaxPasses] = {};
  // By (pass * tap_groups + tap group) * slots + slot: the tap (index into tile.tap_*), or -1.
  int16_t tap[kWgradMaxPlaces] = {};

  constexpr int places() const { return passes * form.taps(); }
  constexpr int dy_cells() const {
    return tile.halo_rows * tile.halo_columns * planes_h * planes_w;
  }
  // Distances of dy's cells in shared memory.
  constexpr int row_pitch() const { return 8 * tile.halo_columns; }
  constexpr int plane_pitch() const {
    const int cells = tile.halo_rows * row_pitch();
    return boxes ? cells : PlanePitch(cells, planes_w);
  }
  constexpr int cell(int plane, int row, int column) const {
    return plane * plane_pitch() + row * row_pitch() + column;
  }
  // Where the data of a tap (index into tile.tap_*) starts in a pass that loads its plane.
  constexpr int start(int pass, int tap_index) const {
    const int plane = tile.tap_plane[tap_index];
    const int h = plane / tile.w.planes - plane_h[pass];
    const int w = plane % tile.w.planes - plane_w[pass];
    return cell(h * planes_w + w, tile.tap_row[tap_index], tile.tap_column[tap_index]);
  }
  // Another size of the tile; nothing else depends on it.
  void SetTile(int rows, int columns) {
    tile.halo_rows += rows - tile.rows;
    tile.halo_columns += columns - tile.columns;
    tile.rows = rows;
    tile.columns = columns;
  }
};

namespace wgrad {

// Adds passes for these taps, spread evenly; false if there are too many.
inline bool AddPasses(const int16_t* taps, int count, int plane_h, int plane_w, WgradPlan* plan) {
  const WgradForm& form = plan->form;
  const int passes = static_cast<int>(CeilDiv(count, form.taps()));
  const int end = plan->passes + passes;
  if (end > kWgradMaxPasses || end * form.taps() > kWgradMaxPlaces) return false;
  const int lanes = passes * form.tap_groups();
  for (int t = 0; t < count; ++t) {
    plan->tap[(plan->passes * form.tap_groups() + t % lanes) * form.slots + t / lanes] = taps[t];
  }
  for (; plan->passes < end; ++plan->passes) {
    plan->plane_h[plan->passes] = static_cast<uint8_t>(plane_h);
    plan->plane_w[plan->passes] = static_cast<uint8_t>(plane_w);
  }
  return true;
}

}  // namespace wgrad

// Fills the plan, with a tile of one position (SetTile has others); false if the problem does not
// fit the programme.
inline bool MakeWgradPlan(const Problem& problem, const WgradForm& form, WgradPlanes planes,
                          WgradPlan* plan) {
  WgradPlan& p = *plan;
  p = WgradPlan{};
  if (!MakeTilePlan(problem, Pass::kGradInput, 1, 1, &p.tile)) return false;
  p.form = form;
  std::fill(p.tap, p.tap + kWgradMaxPlaces, int16_t{-1});
  const int kernel_h = p.tile.h.kernel, kernel_w = p.tile.w.kernel;
  // Taps come row-major here: grad_input has a single residue.
  const auto index = [&](int k, int l) { return static_cast<int16_t>(k * kernel_w + l); };
  p.run = form.slots == 3 && form.halves == 1 && kernel_h % 3 == 0;
  for (int k = 0; p.run && k < kernel_h; ++k) {
    if (k % 3 == 0) continue;
    p.run = p.tile.h.tap_plane[k] == p.tile.h.tap_plane[k - 1] &&
            p.tile.h.tap_shift[k] == p.tile.h.tap_shift[k - 1] + 1;
  }
  p.planes_h = planes == WgradPlanes::kAll ? p.tile.h.planes : 1;
  p.planes_w = planes == WgradPlanes::kOne ? 1 : p.tile.w.planes;
  if (p.run && planes == WgradPlanes::kAll) {
    int lanes = 0;
    for (int k = 0; k < kernel_h; k += 3) {
      for (int l = 0; l < kernel_w; ++l, ++lanes) {
        if ((lanes + 1) * 3 > kWgradMaxPlaces) return false;
        for (int s = 0; s < 3; ++s) p.tap[lanes * 3 + s] = index(k + s, l);
      }
    }
    p.passes = static_cast<int>(CeilDiv(lanes, form.warpgroups));
    return p.passes <= kWgradMaxPasses && p.places() <= kWgradMaxPlaces;
  }
  p.run = false;
  // As evenly as possible over as few passes as possible.
  for (int h = 0; h < p.tile.h.planes; h += p.planes_h) {
    for (int w = 0; w < p.tile.w.planes; w += p.planes_w) {
      int16_t taps[kMaxTileTaps];
      int count = 0;
      for (int k = 0; k < kernel_h; ++k) {
        for (int l = 0; l < kernel_w; ++l) {
          const int at_h = p.tile.h.tap_plane[k], at_w = p.tile.w.tap_plane[l];
          const bool here =
              at_h >= h && at_h < h + p.planes_h && at_w >= w && at_w < w + p.planes_w;
          if (here) taps[count++] = index(k, l);
        }
      }
      if (!wgrad::AddPasses(taps, count, h, w, &p)) return false;
    }
  }
  return true;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_WGRAD_PLAN_H_
