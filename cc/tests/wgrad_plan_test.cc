// The weight-gradient programme against the definition: every tap once, every pixel pair in place.
#include "core/wgrad_plan.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/tile_plan.h"

namespace {

using transconv::Axis;
using transconv::LoadedCell;
using transconv::Problem;
using transconv::TilePlan;
using transconv::WgradPlan;

void Fail(const char* what) {
  std::printf("wgrad_plan_test: %s\n", what);
  std::exit(1);
}

void CheckProblem(const Problem& q, int rows, int columns, int slots) {
  WgradPlan p;
  if (!transconv::MakeWgradPlan(q, rows, columns, slots, &p)) Fail("no plan");
  // Chunk 0 of every cell in shared memory, as the producers put it.
  std::map<int, LoadedCell> stored;
  for (int n = 0; n < p.tile.cells; ++n) {
    const LoadedCell from(n, p.tile.halo_rows, p.tile.halo_columns, p.tile.w.planes);
    const int plane = from.plane_h * p.tile.w.planes + from.plane_w;
    if (!stored.emplace(p.cell(plane, from.row, from.column), from).second) {
      Fail("two cells share a place");
    }
  }
  std::vector<int> seen(static_cast<size_t>(q.taps()), 0);
  for (int lane = 0; lane < p.passes * transconv::kWgradGroups; ++lane) {
    for (int s = 0; s < slots; ++s) {
      const int tap = p.tap[lane * slots + s];
      if (tap < 0) continue;
      ++seen[static_cast<size_t>(p.tile.tap_kernel[tap])];
      if (p.run && p.start(tap) != p.start(p.tap[lane * slots]) + s * p.row_pitch()) {
        Fail("a run is not one");
      }
      const int64_t k = p.tile.tap_kernel[tap] / q.w.kernel,
                    l = p.tile.tap_kernel[tap] % q.w.kernel;
      for (int64_t y0 = 0; y0 < q.h.in; y0 += rows) {
        for (int64_t x0 = 0; x0 < q.w.in; x0 += columns) {
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < columns; ++c) {
              const auto cell = stored.find(p.start(tap) + r * p.row_pitch() + c);
              if (cell == stored.end()) Fail("nobody stored a tap's cell");
              const LoadedCell& from = cell->second;
              const TilePlan& t = p.tile;
              const int64_t sy =
                  t.h.source_step * (y0 + t.first_row[0] + from.row) + t.h.plane[from.plane_h];
              const int64_t sx =
                  t.w.source_step * (x0 + t.first_column + from.column) + t.w.plane[from.plane_w];
              if (sy != q.h.stride * (y0 + r) + q.h.dilation * k - q.h.crop_lo ||
                  sx != q.w.stride * (x0 + c) + q.w.dilation * l - q.w.crop_lo) {
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
