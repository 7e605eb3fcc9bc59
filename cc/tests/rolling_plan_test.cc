// The rolling forward pass and gradient of x on the CPU: producers, shared memory, matrix operands
// and sums as the kernel has them, against the definitions. (rolling_wgrad_test.cc runs the weight
// gradient's kernel itself.)
#include "core/rolling_plan.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>
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

// Every column of every row is stored by one strip, which has computed it: as StoreStripRow cuts.
void CheckStrips() {
  for (const auto& [element, halves] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}}) {
    const int sector = 32 / element;
    for (int64_t target = 1; target < 600; ++target) {
      const auto s = transconv::RollingStrips::Of(target, element, halves);
      if (s.width % sector != 0) Fail("a strip ends inside a sector");
      for (int64_t row = 0; row < 2 * sector; ++row) {
        const int64_t offset = row * target;
        int64_t at = 0;
        for (int64_t i = 0; i < s.count; ++i) {
          const int64_t origin = i * s.width - s.lead;
          int64_t lo = std::max<int64_t>(origin, 0), hi = std::min(origin + s.n, target);
          if (s.lead > 0) {
            const int64_t phase = (offset + i * s.width) % sector;
            lo = i == 0 ? 0 : i * s.width - phase;
            hi = i + 1 == s.count ? target : i * s.width + s.width - phase;
          }
          if (lo != at || lo < origin || hi > origin + s.n) Fail("strips do not meet");
          at = hi;
        }
        if (at != target) Fail("strips end early or late");
      }
    }
  }
}

// The forward pass or the gradient of x of one channel pair at a time: source channel k to target.
template <int N, int HALVES>
void CheckTile(const Problem& q, transconv::Pass pass, int element, int shares,
               std::mt19937* random) {
  using Ring = transconv::RollingTileRing<N, HALVES>;
  const transconv::RollingAxis h(q.h, pass), w(q.w, pass);
  const bool forward = pass == transconv::Pass::kForward;
  const int channels = static_cast<int>(forward ? q.in_channels : q.out_channels);
  const int columns = N + static_cast<int>(q.w.kernel) - 1;
  const auto pitch = transconv::RollingTilePitch::Of(columns, Ring::kChunks);
  const int bytes = transconv::kRollingSlots * pitch.item;
  std::uniform_real_distribution<double> draw(-1.0, 1.0);
  std::vector<double> source(static_cast<size_t>(q.batch * channels * h.source * w.source));
  std::vector<double> weight(static_cast<size_t>(channels * q.taps()));
  for (double& v : source) v = draw(*random);
  for (double& v : weight) v = draw(*random);
  const auto at_source = [&](int64_t n, int64_t c, int64_t y, int64_t x) {
    if (c >= channels || y < 0 || x < 0 || y >= h.source || x >= w.source) return 0.0;
    return source[static_cast<size_t>(((n * channels + c) * h.source + y) * w.source + x)];
  };
  const auto at_weight = [&](int64_t c, int64_t k, int64_t l) {
    return c < channels ? weight[static_cast<size_t>((c * q.h.kernel + k) * q.w.kernel + l)] : 0.0;
  };
  const int pairs = static_cast<int>((h.target + 1) / 2);
  const int64_t steps = q.batch * pairs;
  shares = static_cast<int>(std::min<int64_t>(shares, steps));
  std::vector<int> seen(static_cast<size_t>(q.batch * h.target * w.target), 0);
  const auto strips = transconv::RollingStrips::Of(w.target, element, HALVES);
  if (strips.n != N) return;
  for (int index = 0; index < strips.count; ++index) {
    const int origin = index * strips.width - strips.lead;
    for (int share = 0; share < shares; ++share) {
      const int first = transconv::RollingShare(steps, shares, share);
      const int count = transconv::RollingShare(steps, shares, share + 1) - first;
      std::vector<double> shared(static_cast<size_t>(bytes / 2),
                                 std::numeric_limits<double>::quiet_NaN());
      const auto produce = [&](const RollingWalk& walk, int slot) {
        for (int warp = 0; warp < 8; ++warp) {
          const int chunk = Ring::ChunkOf(warp);
          const auto store = [&](int row, int column) {
            const int at = slot * pitch.item + row * pitch.row + chunk * pitch.chunk + column * 16;
            if (at + 16 > bytes) Fail("a cell lies outside shared memory");
            for (int k = 0; k < 8; ++k) {
              shared[static_cast<size_t>(at / 2 + k)] =
                  at_source(walk.image, 8 * chunk + k, 2 * walk.item + row + h.first,
                            origin + column + w.first);
            }
          };
          for (int lane = 0; lane < 32; ++lane) {
            for (int r = 0; r < Ring::kRounds; ++r) {
              for (int i = 0; i < Ring::kUnits; ++i) store(Ring::FirstRow(warp) + r, 32 * i + lane);
            }
            const int column = Ring::TailColumn(lane);
            if (column < columns) store(Ring::TailRow(warp, lane), column);
          }
        }
      };
      int slot = 0, image = first / pairs, pair = first % pairs, done = 0;
      for (RollingWalk walk(pairs, first, count); walk.more;) {
        const RollingWalk now = walk;
        produce(now, slot);
        walk.Next(pairs);
        const int next = (slot + 1) % transconv::kRollingSlots;
        if (now.steps()) {
          produce(walk, next);
          for (int group = 0; group < 2 && 2 * pair + group < h.target; ++group) {
            for (int column = 0; column < N; ++column) {
              double sum = 0.0;
              for (int y = 0; y < q.h.kernel; ++y) {
                const int row = group + y;
                const int start = (row < 2 ? slot : next) * pitch.item + row % 2 * pitch.row;
                for (int x = 0; x < q.w.kernel; ++x) {
                  for (int k = 0; k < 32 * HALVES; ++k) {
                    const int at = start + x * 16 + k / 8 * pitch.chunk + column * 16 + k % 8 * 2;
                    if (at + 2 > bytes) Fail("an operand lies outside shared memory");
                    sum +=
                        shared[static_cast<size_t>(at / 2)] * at_weight(k, h.TapAt(y), w.TapAt(x));
                  }
                }
              }
              const int64_t t = 2 * pair + group, u = origin + column;
              if (u < 0 || u >= w.target) continue;
              double want = 0.0;
              for (int c = 0; c < channels; ++c) {
                for (int64_t k = 0; k < q.h.kernel; ++k) {
                  for (int64_t l = 0; l < q.w.kernel; ++l) {
                    const int64_t sy = forward ? t + q.h.crop_lo - k : t - q.h.crop_lo + k;
                    const int64_t sx = forward ? u + q.w.crop_lo - l : u - q.w.crop_lo + l;
                    want += at_source(image, c, sy, sx) * at_weight(c, k, l);
                  }
                }
              }
              if (!(std::fabs(sum - want) < 1e-9)) Fail("a target is wrong");
              ++seen[static_cast<size_t>((image * h.target + t) * w.target + u)];
            }
          }
          ++done;
          if (++pair == pairs) {
            pair = 0;
            ++image;
          }
        }
        slot = next;
      }
      if (done != count) Fail("steps are missing");
    }
  }
  for (const int n : seen) {
    if (n == 0) Fail("a target is not computed");
  }
}

}  // namespace

int main() {
  std::mt19937 random(7);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  CheckStrips();
  int checked = 0;
  for (int i = 0; i < 8; ++i, ++checked) {
    Problem q;
    q.batch = pick(1, 2);
    q.in_channels = 8 * pick(1, 4);
    q.out_channels = 8 * pick(5, 8);
    q.h = MakeAxis(pick(2, 6), pick(1, 3), pick(-1, 1), pick(-1, 0));
    q.w = MakeAxis(pick(1, 200), pick(1, 6), pick(-1, 2), pick(-9, -2));
    const int shares = pick(1, 4);
    CheckTile<136, 1>(q, transconv::Pass::kForward, 4, shares, &random);
    CheckTile<136, 2>(q, transconv::Pass::kGradInput, 4, shares, &random);
    CheckTile<144, 1>(q, transconv::Pass::kForward, 2, shares, &random);
    q.w = MakeAxis(8 * pick(1, 25), 3, pick(-1, 1), 0);  // an odd crop and an even pitch
    q.w.out = q.w.in;
    CheckTile<128, 1>(q, transconv::Pass::kForward, 4, shares, &random);
    CheckTile<128, 2>(q, transconv::Pass::kGradInput, 4, shares, &random);
  }
  std::printf("rolling_plan_test: %d problems\n", checked);
  return 0;
}
