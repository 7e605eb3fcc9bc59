// The tile programme against the definition: every target of every tile, over random problems.
#include "core/tile_plan.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "core/divider.h"
#include "core/geometry.h"

namespace {

using transconv::Axis;
using transconv::LoadedCell;
using transconv::Pass;
using transconv::Problem;
using transconv::TilePlan;

#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
      std::exit(1);                                               \
    }                                                             \
  } while (false)

// (source position, kernel index) pairs that one target must sum, by the definition.
std::map<std::pair<int64_t, int>, int> Expected(const Problem& q, Pass pass, int64_t y, int64_t x) {
  std::map<std::pair<int64_t, int>, int> terms;
  const bool forward = pass == Pass::kForward;
  const int64_t width = forward ? q.w.in : q.w.out;
  for (int64_t a = 0; a < q.h.kernel; ++a) {
    for (int64_t b = 0; b < q.w.kernel; ++b) {
      int64_t sy, sx;
      if (forward) {
        const int64_t ty = y + q.h.crop_lo - q.h.dilation * a;
        const int64_t tx = x + q.w.crop_lo - q.w.dilation * b;
        if (ty < 0 || tx < 0 || ty % q.h.stride != 0 || tx % q.w.stride != 0) continue;
        sy = ty / q.h.stride;
        sx = tx / q.w.stride;
        if (sy >= q.h.in || sx >= q.w.in) continue;
      } else {
        sy = q.h.stride * y + q.h.dilation * a - q.h.crop_lo;
        sx = q.w.stride * x + q.w.dilation * b - q.w.crop_lo;
        if (sy < 0 || sx < 0 || sy >= q.h.out || sx >= q.w.out) continue;
      }
      ++terms[{sy * width + sx, static_cast<int>(a * q.w.kernel + b)}];
    }
  }
  return terms;
}

void CheckProblem(const Problem& q, Pass pass, int rows, int columns) {
  TilePlan p;
  CHECK(transconv::MakeTilePlan(q, pass, rows, columns, &p), "no plan");
  CHECK(p.taps == q.taps(), "taps %d", p.taps);
  // Where every cell in shared memory comes from: plane and halo position, as the producers put it.
  std::map<int, LoadedCell> stored;
  for (int n = 0; n < p.cells; ++n) {
    const LoadedCell from(n, p.halo_rows, p.halo_columns, p.w.planes);
    const int plane = from.plane_h * p.w.planes + from.plane_w;
    const int cell = plane * p.plane_pitch + from.row * p.halo_columns + from.column;
    CHECK(cell < p.planes() * p.plane_pitch, "cell %d", cell);
    CHECK(stored.emplace(cell, from).second, "cell %d is stored twice", cell);
  }
  std::vector<int> written(static_cast<size_t>(p.h.target * p.w.target), 0);
  for (int r = 0; r < p.h.residues; ++r) {
    for (int64_t v0 = 0; v0 < p.target_rows(r); v0 += rows) {
      for (int64_t u0 = 0; u0 < p.max_target_columns(); u0 += columns) {
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < columns; ++column) {
            for (int c = 0; c < p.w.residues; ++c) {
              const int64_t y = (v0 + row) * p.h.target_step + r;
              const int64_t x = (u0 + column) * p.w.target_step + c;
              if (y >= p.h.target || x >= p.w.target) continue;
              ++written[static_cast<size_t>(y * p.w.target + x)];
              std::map<std::pair<int64_t, int>, int> terms;
              for (int t = p.residue_begin[r][c]; t < p.residue_begin[r][c + 1]; ++t) {
                const auto cell = stored.find(row * p.halo_columns + column + p.tap_cell(t));
                CHECK(cell != stored.end(), "tap %d reads what nobody stored", t);
                const LoadedCell& from = cell->second;
                const int64_t sy =
                    p.h.source_step * (v0 + p.first_row[r] + from.row) + p.h.plane[from.plane_h];
                const int64_t sx =
                    p.w.source_step * (u0 + p.first_column + from.column) + p.w.plane[from.plane_w];
                if (sy < 0 || sy >= p.h.source || sx < 0 || sx >= p.w.source) continue;
                ++terms[{sy * p.w.source + sx, p.tap_kernel[t]}];
              }
              CHECK(terms == Expected(q, pass, y, x), "target (%ld, %ld)", static_cast<long>(y),
                    static_cast<long>(x));
            }
          }
        }
      }
    }
  }
  for (int n : written) CHECK(n == 1, "a target was written %d times", n);
}

}  // namespace

int main() {
  std::mt19937 random(7);
  auto draw = [&](int lo, int hi) { return lo + static_cast<int>(random() % (hi - lo + 1)); };
  int done = 0;
  while (done < 600) {
    Problem q;
    auto axis = [&] {
      Axis a;
      a.in = draw(1, 9);
      a.kernel = draw(1, 5);
      a.stride = draw(1, 5);
      a.dilation = draw(1, 4);
      a.crop_lo = draw(-3, 5);
      a.out = (a.in - 1) * a.stride + a.dilation * (a.kernel - 1) + 1 - a.crop_lo - draw(-3, 5);
      return a;
    };
    q.h = axis();
    q.w = axis();
    if (q.h.out < 1 || q.w.out < 1) continue;
    for (Pass pass : {Pass::kForward, Pass::kGradInput}) CheckProblem(q, pass, draw(1, 4), 8);
    ++done;
  }
  for (int i = 0; i < 200000; ++i) {
    const int d = 1 + static_cast<int>(random() % (i % 2 ? 2147483647u : 2000u));
    const int values[] = {0, d - 1, d, static_cast<int>(random() >> 1), 2147483647};
    for (const int value : values) {
      int n = value;
      const int rest = transconv::Divider(d).Split(n);
      CHECK(n == value / d && rest == value % d, "%d / %d", value, d);
    }
  }
  std::printf("tile_plan_test: %d problems\n", done);
  return 0;
}
