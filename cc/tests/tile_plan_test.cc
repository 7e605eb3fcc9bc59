// The tile programme against the definition: every target of every tile, over random problems.
#include "core/tile_plan.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "core/divider.h"
#include "core/geometry.h"
#include "definition.h"

namespace {

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

// (source position, kernel index) pairs that a target must sum.
using Terms = std::map<std::pair<size_t, size_t>, int>;

// Of every target of one plane, by the definition.
std::vector<Terms> Expected(const Problem& q, Pass pass) {
  const bool forward = pass == Pass::kForward;
  std::vector<Terms> terms(transconv::definition::Size(q, !forward));
  transconv::definition::ForAll(
      q, [&](size_t x, size_t w, size_t y) { ++(forward ? terms[y][{x, w}] : terms[x][{y, w}]); });
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
  const std::vector<Terms> expected = Expected(q, pass);
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
              Terms terms;
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
              CHECK(terms == expected[static_cast<size_t>(y * p.w.target + x)], "target (%ld, %ld)",
                    static_cast<long>(y), static_cast<long>(x));
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
    q.batch = q.in_channels = q.out_channels = 1;
    q.h = transconv::definition::DrawAxis(draw, 9, 5, 5, 4);
    q.w = transconv::definition::DrawAxis(draw, 9, 5, 5, 4);
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
