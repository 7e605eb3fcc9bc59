// The weight-gradient programme against the definition: every tap once, every pixel pair in place.
#include "core/wgrad_plan.h"

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/tile_plan.h"

namespace {

using transconv::Axis;
using transconv::CellPlace;
using transconv::Problem;
using transconv::WgradPlan;

void Fail(const char* what) {
  std::printf("wgrad_plan_test: %s\n", what);
  std::exit(1);
}

void CheckProblem(const Problem& q, int rows, int columns, int slots) {
  WgradPlan p;
  if (!transconv::MakeWgradPlan(q, rows, columns, slots, &p)) Fail("no plan");
  std::vector<int> seen(static_cast<size_t>(q.taps()), 0);
  for (int lane = 0; lane < p.passes * transconv::kWgradGroups; ++lane) {
    for (int s = 0; s < slots; ++s) {
      const int tap = p.tap[lane * slots + s];
      if (tap < 0) continue;
      ++seen[static_cast<size_t>(p.tile.tap_kernel[tap])];
      if (p.run && (p.row_of(tap) != p.row_of(p.tap[lane * slots]) + s ||
                    p.column_of(tap) != p.column_of(p.tap[lane * slots]))) {
        Fail("a run is not one");
      }
      const int64_t k = p.tile.tap_kernel[tap] / q.w.kernel,
                    l = p.tile.tap_kernel[tap] % q.w.kernel;
      for (int64_t y0 = 0; y0 < q.h.in; y0 += rows) {
        for (int64_t x0 = 0; x0 < q.w.in; x0 += columns) {
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < columns; ++c) {
              const int row = p.row_of(tap) + r, column = p.column_of(tap) + c;
              const int planes = p.tile.h.planes * p.tile.w.planes;
              if (row >= p.tile.halo_rows * planes || column >= p.tile.halo_columns) {
                Fail("a cell lies outside");
              }
              const CellPlace at = transconv::PlaceOfCell(
                  row * p.tile.halo_columns + column, p.tile.halo_rows, p.tile.halo_columns,
                  p.tile.w.planes, p.tile.h.plane, p.tile.w.plane, p.tile.h.source_step,
                  p.tile.w.source_step, y0 + p.tile.first_row[0], x0 + p.tile.first_column);
              if (at.y != q.h.stride * (y0 + r) + q.h.dilation * k - q.h.crop_lo ||
                  at.x != q.w.stride * (x0 + c) + q.w.dilation * l - q.w.crop_lo) {
                Fail("a pair of pixels is not one of the tap's");
              }
            }
          }
        }
      }
    }
  }
  for (int n : seen) {
    if (n != 1) Fail("a tap is not summed once");
  }
}

}  // namespace

int main() {
  std::mt19937 random(11);
  auto draw = [&](int lo, int hi) { return lo + static_cast<int>(random() % (hi - lo + 1)); };
  int done = 0, runs = 0;
  while (done < 400) {
    Problem q;
    auto axis = [&] {
      Axis a;
      a.in = draw(1, 9);
      a.kernel = draw(1, 7);
      a.stride = draw(1, 4);
      a.dilation = draw(1, 3);
      a.crop_lo = draw(-3, 5);
      a.out = (a.in - 1) * a.stride + a.dilation * (a.kernel - 1) + 1 - a.crop_lo - draw(-3, 5);
      return a;
    };
    q.h = axis();
    q.w = axis();
    if (q.h.out < 1 || q.w.out < 1) continue;
    CheckProblem(q, draw(1, 4), 8, 3);
    CheckProblem(q, draw(1, 4), 8, 1);
    WgradPlan p;
    runs += transconv::MakeWgradPlan(q, 2, 8, 3, &p) && p.run;
    ++done;
  }
  if (runs == 0) Fail("no problem had runs");
  std::printf("wgrad_plan_test: %d problems, %d with runs\n", done, runs);
  return 0;
}
