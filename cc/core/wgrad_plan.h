// The programme of the dense weight gradient: pure C++, tested without a GPU.
//
// A block sums dw for 64 channels of x, 64 channels of dy and up to 3 * slots taps, over its share
// of the tiles of x. A tile is `rows` x `columns` positions of x and, per plane of dy (see
// tile_plan.h), the halo that its taps reach. Shared memory holds both as cells of 8 channels:
//
//     [row][chunk of 8 channels][column][8]
//
// so that with one more row, the channels of the next plane row follow at a fixed distance, and
// vertically neighbouring taps can be read as more columns of one matrix operand ("run").
#ifndef TRANSCONV_CORE_WGRAD_PLAN_H_
#define TRANSCONV_CORE_WGRAD_PLAN_H_

#include <cstdint>

#include "core/geometry.h"
#include "core/tile_plan.h"

namespace transconv {

constexpr int kWgradGroups = 3;      // consumer warpgroups of a block
constexpr int kWgradMaxSlots = 3;    // taps of one warpgroup
constexpr int kWgradMaxLanes = 256;  // (pass, warpgroup) pairs, the taps of each being one run

struct WgradPlan {
  TilePlan tile;  // of the gradient of x: its source planes and halo are dy's
  int slots = 0;
  bool run = false;  // a warpgroup's slots are vertical neighbours, one instruction covers them
  int passes = 0;    // blocks that share a tile's data, each with other taps
  // By (pass * kWgradGroups + group) * slots + slot: the tap (index into tile.tap_*), or -1.
  int16_t tap[kWgradMaxLanes * kWgradMaxSlots] = {};
  // Distances of dy's cells in shared memory.
  constexpr int row_pitch() const { return 8 * tile.halo_columns; }
  constexpr int plane_pitch() const {
    return PlanePitch(tile.halo_rows * row_pitch(), tile.w.planes);
  }
  constexpr int cell(int plane, int row, int column) const {
    return plane * plane_pitch() + row * row_pitch() + column;
  }
  // Where the data of a tap (index into tile.tap_*) starts.
  constexpr int start(int tap_index) const {
    return cell(tile.tap_plane[tap_index], tile.tap_row[tap_index], tile.tap_column[tap_index]);
  }
};

// False if the problem does not fit the programme.
inline bool MakeWgradPlan(const Problem& problem, int rows, int columns, int slots,
                          WgradPlan* plan) {
  WgradPlan p;
  if (!MakeTilePlan(problem, Pass::kGradInput, rows, columns, &p.tile)) return false;
  p.slots = slots;
  for (int16_t& t : p.tap) t = -1;
  const int kernel_h = p.tile.h.kernel, kernel_w = p.tile.w.kernel;
  // Taps come row-major here: grad_input has a single residue.
  const auto index = [&](int k, int l) { return k * kernel_w + l; };
  p.run = slots == 3 && kernel_h % 3 == 0;
  for (int k = 0; p.run && k < kernel_h; ++k) {
    if (k % 3 == 0) continue;
    p.run = p.tile.h.tap_plane[k] == p.tile.h.tap_plane[k - 1] &&
            p.tile.h.tap_shift[k] == p.tile.h.tap_shift[k - 1] + 1;
  }
  int lanes = 0;
  if (p.run) {
    for (int k = 0; k < kernel_h; k += 3) {
      for (int l = 0; l < kernel_w; ++l) {
        if (lanes == kWgradMaxLanes) return false;
        for (int s = 0; s < 3; ++s) p.tap[lanes * 3 + s] = static_cast<int16_t>(index(k + s, l));
        ++lanes;
      }
    }
  } else {
    // As evenly as possible over as few passes as possible.
    const int taps = kernel_h * kernel_w;
    const int passes = static_cast<int>(CeilDiv(taps, kWgradGroups * slots));
    lanes = passes * kWgradGroups;
    if (lanes > kWgradMaxLanes) return false;
    for (int t = 0; t < taps; ++t) {
      p.tap[t % lanes * slots + t / lanes] = static_cast<int16_t>(t);
    }
  }
  p.passes = static_cast<int>(CeilDiv(lanes, kWgradGroups));
  *plan = p;
  return true;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_WGRAD_PLAN_H_
