// The weight-gradient programme against the definition: every tap once, every pixel pair in place.
#include "core/wgrad_plan.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/tile_plan.h"
#include "definition.h"

namespace {

using transconv::LoadedCell;
using transconv::Pass;
using transconv::Problem;
using transconv::TilePlan;
using transconv::WgradForm;
using transconv::WgradPlan;
using transconv::WgradPlanes;

void Fail(const char* what) {
  std::printf("wgrad_plan_test: %s\n", what);
  std::exit(1);
}

void CheckProblem(const Problem& q, int rows, int columns, const WgradForm& form,
                  WgradPlanes planes) {
  WgradPlan p;
  if (!transconv::MakeWgradPlan(q, form, planes, &p)) Fail("no plan");
  p.SetTile(rows, columns);
  TilePlan tile;
  if (!transconv::MakeTilePlan(q, Pass::kGradInput, rows, columns, &tile)) Fail("no tile");
  if (tile.halo_rows != p.tile.halo_rows || tile.halo_columns != p.tile.halo_columns) {
    Fail("another size is not the tile's");
  }
  std::vector<int> seen(static_cast<size_t>(q.taps()), 0);
  for (int pass = 0; pass < p.passes; ++pass) {
    // Chunk 0 of every cell in shared memory, as the producers put it.
    std::map<int, LoadedCell> stored;
    for (int n = 0; n < p.dy_cells(); ++n) {
      LoadedCell from(n, p.tile.halo_rows, p.tile.halo_columns, p.planes_w);
      const int plane = from.plane_h * p.planes_w + from.plane_w;
      const int at = p.cell(plane, from.row, from.column);
      from.plane_h += p.plane_h[pass];
      from.plane_w += p.plane_w[pass];
      if (!stored.emplace(at, from).second) Fail("two cells share a place");
    }
    for (int place = 0; place < form.taps(); ++place) {
      const int tap = p.tap[pass * form.taps() + place];
      if (tap < 0) {
        if (place == 0) Fail("a pass has no first tap");
        continue;
      }
      ++seen[static_cast<size_t>(p.tile.tap_kernel[tap])];
      const int first = p.tap[pass * form.taps() + place / form.slots * form.slots];
      if (p.run &&
          p.start(pass, tap) != p.start(pass, first) + place % form.slots * p.row_pitch()) {
        Fail("a run is not one");
      }
      const int64_t k = p.tile.tap_kernel[tap] / q.w.kernel,
                    l = p.tile.tap_kernel[tap] % q.w.kernel;
      for (int64_t y0 = 0; y0 < q.h.in; y0 += rows) {
        for (int64_t x0 = 0; x0 < q.w.in; x0 += columns) {
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < columns; ++c) {
              const auto cell = stored.find(p.start(pass, tap) + r * p.row_pitch() + c);
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
    q.h = transconv::definition::DrawAxis(draw, 9, 7, 4, 3);
    q.w = transconv::definition::DrawAxis(draw, 9, 7, 4, 3);
    for (const WgradForm& form : {WgradForm{3, 1, 3}, WgradForm{3, 1, 1}, WgradForm{2, 1, 3},
                                  WgradForm{2, 2, 4}, WgradForm{2, 2, 3}}) {
      for (const WgradPlanes planes : {WgradPlanes::kAll, WgradPlanes::kRow, WgradPlanes::kOne}) {
        CheckProblem(q, draw(1, 4), 8, form, planes);
      }
    }
    WgradPlan p;
    runs += transconv::MakeWgradPlan(q, {3, 1, 3}, WgradPlanes::kAll, &p) && p.run;
    ++done;
  }
  if (runs == 0) Fail("no problem had runs");
  std::printf("wgrad_plan_test: %d problems, %d with runs\n", done, runs);
  return 0;
}
