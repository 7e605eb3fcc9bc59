// The rolling weight gradient on the CPU: producers, shared memory, matrix operands and sums as the
// kernel has them, against the definition.
#include "core/rolling_plan.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/geometry.h"

namespace {

using transconv::Axis;
using transconv::Problem;
using transconv::RollingWalk;

void Fail(const char* what) {
  std::printf("rolling_plan_test: %s\n", what);
  std::exit(1);
}

struct Images {
  std::vector<double> x, dy;
};

double X(const Problem& q, const Images& m, int64_t n, int64_t c, int64_t y, int64_t x) {
  return m.x[static_cast<size_t>(((n * q.in_channels + c) * q.h.in + y) * q.w.in + x)];
}
double Dy(const Problem& q, const Images& m, int64_t n, int64_t c, int64_t y, int64_t x) {
  if (y < 0 || x < 0 || y >= q.h.out || x >= q.w.out) return 0.0;
  return m.dy[static_cast<size_t>(((n * q.out_channels + c) * q.h.out + y) * q.w.out + x)];
}

// Adds one block's share to sum[tap row][tap column][64][64].
template <int COLUMNS, int IN_HALVES, int OUT_HALVES>
void RunBlock(const Problem& q, const Images& m, int strip, int first_tap_row, int first_tap_column,
              int first_step, int steps, std::vector<double>* sum) {
  using Ring = transconv::RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES>;
  // By 16-bit element; what is never written must never matter.
  std::vector<double> shared(Ring::kBytes / 2, std::numeric_limits<double>::quiet_NaN());
  const int channels_in = static_cast<int>(q.in_channels);
  const int channels_out = static_cast<int>(q.out_channels);
  const auto store = [&](const RollingWalk& walk, int slot, bool is_dy, int row, int chunk,
                         int column) {
    const int64_t y = 2 * walk.item + row + (is_dy ? first_tap_row - q.h.crop_lo : 0);
    const int64_t x = strip * COLUMNS + column + (is_dy ? first_tap_column - q.w.crop_lo : 0);
    const int at =
        is_dy ? Ring::DyCell(slot, row, chunk, column) : Ring::XCell(slot, row, chunk, column);
    if (at + 16 > Ring::kBytes) Fail("a cell lies outside shared memory");
    for (int k = 0; k < 8; ++k) {
      double v = 0.0;
      if (is_dy) {
        v = Dy(q, m, walk.image, transconv::RollingChannel(channels_out, chunk) + k, y, x);
      } else if (walk.steps() && y < q.h.in && x < q.w.in) {
        v = X(q, m, walk.image, transconv::RollingChannel(channels_in, chunk) + k, y, x);
      }
      shared[static_cast<size_t>(at / 2 + k)] = v;
      if (is_dy && slot == 0) {
        shared[static_cast<size_t>(Ring::DyCell(transconv::kRollingSlots, row, chunk, column) / 2 +
                                   k)] = v;
      }
    }
  };
  const auto produce = [&](const RollingWalk& walk, int slot) {
    for (int warp = 0; warp < 4; ++warp) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < Ring::kRounds; ++r) {
          const auto round = Ring::RoundOf(r);
          for (int i = 0; i < Ring::kUnits; ++i) {
            store(walk, slot, round.is_dy, round.row + Ring::UnitRow(i), warp + 4 * round.half,
                  (round.group + Ring::UnitGroup(i)) * 32 + lane);
          }
        }
        if (lane < 4 * OUT_HALVES) {
          store(walk, slot, true, Ring::TailRow(lane), warp + 4 * Ring::TailHalf(lane),
                Ring::TailColumn(lane));
        }
      }
    }
  };
  // Element (r, k) of an MN-major operand, as in primitives/wgmma.cuh.
  const auto element = [&](int start, int stride, int r, int k) {
    const int at = start + r % 8 * 2 + r / 8 * stride + k % 8 * 16 + k / 8 * 128;
    if (at + 2 > Ring::kBytes) Fail("an operand lies outside shared memory");
    return shared[static_cast<size_t>(at / 2)];
  };
  int done = 0, slot = 0;
  const int pairs = static_cast<int>((q.h.in + 1) / 2);
  for (RollingWalk walk(pairs, first_step, steps); walk.more;) {
    const RollingWalk now = walk;
    produce(now, slot);
    walk.Next(pairs);
    const int next = (slot + 1) % transconv::kRollingSlots;
    if (now.steps()) {
      if (!walk.more || walk.first) Fail("a step lacks its second item");
      produce(walk, next);
      ++done;
      for (int column = 0; column < 3; ++column) {
        for (int r = 0; r < 2; ++r) {
          for (int step = 0; step < COLUMNS / 16; ++step) {
            const int a = Ring::kXAt + slot * Ring::kXItem + r * Ring::kXRow + step * 16 * 16;
            const int b = slot * Ring::kDyItem + r * Ring::kDyRow + (column + step * 16) * 16;
            for (int i = 0; i < 64; ++i) {
              for (int j = 0; j < 96 * OUT_HALVES; ++j) {
                double& to = (*sum)[static_cast<size_t>(
                    ((j / (32 * OUT_HALVES) * 3 + column) * 64 + i) * 64 + j % (32 * OUT_HALVES))];
                for (int k = 0; k < 16; ++k) {
                  to += element(a, Ring::kXChunk, i, k) * element(b, Ring::kDyChunk, j, k);
                }
              }
            }
          }
        }
      }
    } else if (walk.more && !walk.first) {
      Fail("a segment goes on behind its end");
    }
    slot = next;
  }
  if (done != steps) Fail("steps are missing");
}

template <int COLUMNS, int IN_HALVES, int OUT_HALVES>
void CheckProblem(Problem q, int shares, std::mt19937* random) {
  std::uniform_real_distribution<double> draw(-1.0, 1.0);
  if (q.h.out < 1 || q.w.out < 1) return;
  Images m;
  m.x.resize(static_cast<size_t>(q.batch * q.in_channels * q.h.in * q.w.in));
  m.dy.resize(static_cast<size_t>(q.batch * q.out_channels * q.h.out * q.w.out));
  for (double& v : m.x) v = draw(*random);
  for (double& v : m.dy) v = draw(*random);
  const int64_t steps = q.batch * ((q.h.in + 1) / 2);
  shares = static_cast<int>(std::min<int64_t>(shares, steps));
  const int strips = static_cast<int>((q.w.in + COLUMNS - 1) / COLUMNS);
  for (int k0 = 0; k0 < q.h.kernel; k0 += 3) {
    for (int l0 = 0; l0 < q.w.kernel; l0 += 3) {
      std::vector<double> sum(9 * 64 * 64, 0.0);
      for (int strip = 0; strip < strips; ++strip) {
        for (int share = 0; share < shares; ++share) {
          const int first = transconv::RollingShare(steps, shares, share);
          RunBlock<COLUMNS, IN_HALVES, OUT_HALVES>(
              q, m, strip, k0, l0, first, transconv::RollingShare(steps, shares, share + 1) - first,
              &sum);
        }
      }
      for (int tap = 0; tap < 9; ++tap) {
        const int64_t k = k0 + tap / 3, l = l0 + tap % 3;
        if (k >= q.h.kernel || l >= q.w.kernel) continue;
        std::vector<int> seen(static_cast<size_t>(q.in_channels * q.out_channels), 0);
        for (int i = 0; i < 32 * IN_HALVES; ++i) {
          for (int j = 0; j < 32 * OUT_HALVES; ++j) {
            const int chunk_i = i / 8 * 8, chunk_j = j / 8 * 8;
            const int64_t c =
                transconv::RollingChannel(static_cast<int>(q.in_channels), i / 8) + i % 8;
            const int64_t o =
                transconv::RollingChannel(static_cast<int>(q.out_channels), j / 8) + j % 8;
            if (chunk_i >= q.in_channels || chunk_j >= q.out_channels || c < chunk_i ||
                o < chunk_j) {
              continue;
            }
            ++seen[static_cast<size_t>(c * q.out_channels + o)];
            double want = 0.0;
            for (int64_t n = 0; n < q.batch; ++n) {
              for (int64_t y = 0; y < q.h.in; ++y) {
                for (int64_t x = 0; x < q.w.in; ++x) {
                  want += X(q, m, n, c, y, x) *
                          Dy(q, m, n, o, y + k - q.h.crop_lo, x + l - q.w.crop_lo);
                }
              }
            }
            const double got = sum[static_cast<size_t>((tap * 64 + i) * 64 + j)];
            if (!(std::fabs(got - want) < 1e-9)) Fail("a sum is wrong");
          }
        }
        for (const int n : seen) {
          if (n != 1) Fail("a weight is not written once");
        }
      }
    }
  }
}

Axis MakeAxis(int64_t in, int64_t kernel, int64_t lo, int64_t hi) {
  Axis a;
  a.in = in;
  a.kernel = kernel;
  a.stride = 1;
  a.dilation = 1;
  a.crop_lo = lo;
  a.out = in - 1 + kernel - lo - hi;
  return a;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  int checked = 0;
  for (; checked < 16; ++checked) {
    Problem q;
    q.batch = pick(1, 3);
    const int halves = checked % 4;
    q.in_channels = halves & 1 ? pick(33, 64) : pick(8, 32);
    q.out_channels = halves & 2 ? pick(33, 64) : pick(8, 32);
    q.h = MakeAxis(pick(1, 7), pick(1, 4), pick(-1, 1), pick(-1, 1));
    q.w = MakeAxis(pick(1, 80), pick(1, 5), pick(-1, 2), pick(-1, 2));
    const int shares = pick(1, 4);
    if (halves == 0) CheckProblem<64, 1, 1>(q, shares, &random);
    if (halves == 1) CheckProblem<64, 2, 1>(q, shares, &random);
    if (halves == 2) CheckProblem<128, 1, 2>(q, shares, &random);
    if (halves == 3) CheckProblem<64, 2, 2>(q, shares, &random);
  }
  std::printf("rolling_plan_test: %d problems\n", checked);
  return 0;
}
