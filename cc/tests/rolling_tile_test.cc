// The rolling forward pass and gradient of x on the CPU: packed weights, producers, shared memory,
// matrix operands and targets as the kernel has them, against the definition.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/geometry.h"
#include "core/pack_order.h"
#include "core/rolling_plan.h"
#include "definition.h"

namespace {

using transconv::kLowScale;
using transconv::PackedRow;
using transconv::Problem;
using transconv::RollingTaps;
using transconv::RollingWalk;
using transconv::definition::MakeAxis;

void Fail(const char* what) {
  std::printf("rolling_tile_test: %s\n", what);
  std::exit(1);
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

// As float16 takes a number with three products: the high part, and the low part.
struct Parts {
  double high, low;
  explicit Parts(double v) : high(std::round(256.0 * v) / 256.0), low(kLowScale * (v - high)) {}
};
enum class Form { kPlain, kStacked, kSplit };

// One pass of a problem: what it reads, and what it should write.
struct Data {
  const Problem& q;
  const bool forward;
  const transconv::RollingAxis h, w;
  const int groups, k, m;  // channels of a group: of the source, of the target
  std::vector<double> source, weight;

  Data(const Problem& problem, transconv::Pass pass, std::mt19937* random)
      : q(problem),
        forward(pass == transconv::Pass::kForward),
        h(q.h, pass),
        w(q.w, pass),
        groups(static_cast<int>(q.groups)),
        k(static_cast<int>(forward ? q.in_per_group() : q.out_per_group())),
        m(static_cast<int>(forward ? q.out_per_group() : q.in_per_group())),
        source(transconv::definition::Size(q, forward)),
        weight(transconv::definition::WeightSize(q)) {
    std::uniform_real_distribution<double> draw(-1.0, 1.0);
    for (double& v : source) v = draw(*random);
    for (double& v : weight) v = draw(*random);
  }
  double Source(int64_t n, int group, int channel, int64_t y, int64_t x) const {
    if (channel >= k || y < 0 || x < 0 || y >= h.source || x >= w.source) return 0.0;
    const int64_t plane = (n * groups + group) * k + channel;
    return source[static_cast<size_t>((plane * h.source + y) * w.source + x)];
  }
  // (in_channels, out_channels / groups, kh, kw)
  double Weight(int group, int from, int to, int64_t tap) const {
    const int64_t in = forward ? group * k + from : group * m + to;
    const int64_t place = in * (forward ? m : k) + (forward ? to : from);
    return weight[static_cast<size_t>(place * q.taps() + tap)];
  }
  // `split`: without the products of two low parts.
  std::vector<double> Want(bool split) const {
    std::vector<double> want(transconv::definition::Size(q, !forward));
    transconv::definition::ForAll(q, [&](size_t x, size_t w, size_t y) {
      const double a = source[forward ? x : y], b = weight[w];
      double& sum = want[forward ? y : x];
      sum += a * b;
      if (split) sum -= Parts(a).low * Parts(b).low / (double{kLowScale} * kLowScale);
    });
    return want;
  }
};

// By 16-bit element, as kernels/pack_weights.cuh writes one block of rows.
template <bool SPLIT>
std::vector<double> Pack(const Data& d, const RollingTaps& taps, int group, int block, int slabs) {
  using Tap = transconv::PackedTap<SPLIT>;
  const int count = static_cast<int>(d.q.taps());
  const int channels = SPLIT || taps.stacked ? transconv::kStackChannels : transconv::kPackedRows;
  std::vector<double> packed(static_cast<size_t>(slabs * taps.count() * Tap::kBytes / 2),
                             std::numeric_limits<double>::quiet_NaN());
  for (int row = 0; row < transconv::kPackedRows; ++row) {
    const PackedRow own(block * transconv::kPackedRows + row, channels, taps.shift());
    if (own.block != block || own.row != row) Fail("a row is packed elsewhere");
    for (int i = 0; i < slabs * taps.count() * 16; ++i) {
      const int k = i % 16, t = i / 16 % taps.count(), slab = i / 16 / taps.count();
      const int tap = own.TapOf(t, count), channel = slab * 16 + k;
      double v = 0.0;
      if (own.channel < d.m && tap >= 0 && channel < d.k) {
        const int64_t y = d.h.TapAt(tap / taps.w), x = d.w.TapAt(tap % taps.w);
        v = d.Weight(group, channel, own.channel, y * taps.w + x);
      }
      if (SPLIT) v = own.second ? Parts(v).low : Parts(v).high;
      const int at = (slab * taps.count() + t) * Tap::kBytes + Tap::RowAt(k / 8, row) + k % 8 * 2;
      packed.at(static_cast<size_t>(at / 2)) = v;
      if (SPLIT && !own.second) packed.at(static_cast<size_t>((at - Tap::kFirst) / 2)) = 0.0;
    }
  }
  return packed;
}

// One block's shared memory and its matrix instructions.
template <int N, int HALVES, int ELEMENT, bool SPLIT>
struct Block {
  using Ring = transconv::RollingTileRing<N, HALVES>;
  using Words = transconv::RollingWords<ELEMENT>;
  const Data& d;
  const RollingTaps taps;
  const int group, origin;  // first target column
  const bool ahead;         // loads words
  const int skew;
  const int columns = N + taps.w - 1 + skew;
  const transconv::RollingTilePitch pitch =
      transconv::RollingTilePitch::Of(columns, Ring::kChunks*(SPLIT ? 2 : 1));
  // By 16-bit element; what is never written must never matter.
  std::vector<double> shared =
      std::vector<double>(static_cast<size_t>(transconv::kRollingSlots * pitch.item / 2),
                          std::numeric_limits<double>::quiet_NaN());

  void Store(const RollingWalk& walk, int slot, int row, int chunk, int column) {
    const int at = slot * pitch.item + row * pitch.row + chunk * pitch.chunk + column * 16;
    if (column >= columns) Fail("a cell lies outside its row");
    for (int k = 0; k < 8; ++k) {
      const double v = d.Source(walk.image, group, 8 * chunk + k, 2 * walk.item + row + d.h.first,
                                origin + column + d.w.first - skew);
      shared.at(static_cast<size_t>(at / 2 + k)) = SPLIT ? Parts(v).high : v;
      if (SPLIT) {
        shared.at(static_cast<size_t>((at + Ring::kChunks * pitch.chunk) / 2 + k)) = Parts(v).low;
      }
    }
  }
  // Words of a row, each wholly inside of it or outside.
  void ProduceAhead(const RollingWalk& walk, int slot) {
    for (int i = 0; i < 8 * 32 * Words::Units(columns); ++i) {
      const int lane = i % 32, warp = i / 32 % 8, unit = i / 256;
      const int column = Words::ColumnOf(unit, lane);
      const int64_t x = origin + d.w.first - skew + column;
      if (x >= 0 && x < d.w.source &&
          (x % Words::kColumns != 0 || x + Words::kColumns > d.w.source)) {
        Fail("a word is not aligned or crosses a row's end");
      }
      if (x < 0 && x + Words::kColumns > 0) Fail("a word crosses a row's start");
      for (int j = column; j < column + Words::kColumns; ++j) {
        if (j < columns) Store(walk, slot, Ring::FirstRow(warp), Ring::ChunkOf(warp), j);
      }
    }
  }
  void Produce(const RollingWalk& walk, int slot) {
    if (ahead) return ProduceAhead(walk, slot);
    for (int warp = 0; warp < 8; ++warp) {
      const int chunk = Ring::ChunkOf(warp);
      for (int lane = 0; lane < 32; ++lane) {
        for (int r = 0; r < Ring::kRounds; ++r) {
          for (int i = 0; i < Ring::kUnits; ++i) {
            Store(walk, slot, Ring::FirstRow(warp) + r, chunk, 32 * i + lane);
          }
        }
        const int column = Ring::TailColumn(lane);
        if (column < columns) Store(walk, slot, Ring::TailRow(warp, lane), chunk, column);
      }
    }
  }
  // Element (row, column) of what a warpgroup sums in a step; operands are K-major, as in
  // primitives/wgmma.cuh.
  double Sum(const std::vector<double>& packed, int warpgroup, int slot, int next, int row,
             int column) const {
    using Tap = transconv::PackedTap<SPLIT>;
    const auto product = [&](int a, int b) {
      a += row % 8 * 16 + row / 8 * 128;
      b += column % 8 * 16 + column / 8 * 128;
      double sum = 0.0;
      for (int k = 0; k < 16; ++k) {
        sum += packed.at(static_cast<size_t>((a + k / 8 * Tap::kChunk + k % 8 * 2) / 2)) *
               shared.at(static_cast<size_t>((b + k / 8 * pitch.chunk + k % 8 * 2) / 2));
      }
      return sum;
    };
    const int slab = taps.count() * Tap::kBytes;
    double sum = 0.0;
    int tap = 0;
    for (int y = 0; y < taps.rows(); ++y) {
      const int from = (taps.stacked ? 0 : warpgroup) + y;
      const int start = (from < 2 ? slot : next) * pitch.item + from % 2 * pitch.row;
      for (int x = 0; x < taps.w; ++x, tap += Tap::kBytes) {
        for (int s = 0; s < 2 * HALVES; ++s) {
          const int a = tap + s * slab, b = start + (skew + x) * 16 + 2 * s * pitch.chunk;
          sum += product(a + Tap::kFirst, b);
          if (SPLIT) sum += product(a, b + Ring::kChunks * pitch.chunk);
        }
      }
    }
    return sum;
  }
};

// Returns how many targets were checked.
template <int N, int HALVES, int ELEMENT, Form FORM>
int CheckForm(const Problem& q, transconv::Pass pass, int shares, std::mt19937* random) {
  constexpr bool stacked = FORM == Form::kStacked, split = FORM == Form::kSplit;
  const Data d(q, pass, random);
  const auto strips = transconv::RollingStrips::Of(d.w.target, ELEMENT, HALVES);
  if (strips.n != N || d.h.target < 1) return 0;
  const RollingTaps taps{stacked, static_cast<int>(q.h.kernel), static_cast<int>(q.w.kernel)};
  const int block_channels = stacked || split ? transconv::kStackChannels : transconv::kPackedRows;
  const int blocks = (d.m + block_channels - 1) / block_channels;
  const int pairs = static_cast<int>((d.h.target + 1) / 2);
  const int64_t steps = q.batch * pairs;
  shares = static_cast<int>(std::min<int64_t>(shares, steps));
  const int skew = transconv::RollingSkew(d.w.first - strips.lead, d.w.source, ELEMENT);
  const bool ahead = HALVES == 1 && skew >= 0 && (split || (*random)() % 4 != 0);
  const std::vector<double> want = d.Want(split);
  std::vector<int> seen(want.size());
  for (int unit = 0; unit < d.groups * blocks; ++unit) {
    const int group = unit / blocks, block = unit % blocks;
    const std::vector<double> packed = Pack<split>(d, taps, group, block, 2 * HALVES);
    for (int index = 0; index < strips.count * shares; ++index) {
      const int strip = index % static_cast<int>(strips.count);
      const int share = index / static_cast<int>(strips.count);
      const int first = transconv::RollingShare(steps, shares, share);
      const int count = transconv::RollingShare(steps, shares, share + 1) - first;
      Block<N, HALVES, ELEMENT, split> b{
          d, taps, group, strip * strips.width - strips.lead, ahead, ahead ? skew : 0};
      int slot = 0, image = first / pairs, pair = first % pairs, step = 0;
      for (RollingWalk walk(pairs, first, count); walk.more;) {
        const RollingWalk now = walk;
        b.Produce(now, slot);
        walk.Next(pairs);
        const int next = (slot + 1) % transconv::kRollingSlots;
        if (now.steps()) {
          b.Produce(walk, next);
          for (int i = 0; i < 128; ++i) {
            const int warpgroup = i / 64, warp = i / 16 % 4;
            // Two warps join what they have of the same channels.
            if (split && warp >= 2) continue;
            if (!RollingTaps::Takes(stacked, warpgroup, step)) continue;
            const int row = RollingTaps::RowOf(stacked, warpgroup, warp);
            const int channel =
                block * block_channels + RollingTaps::ChannelOf(stacked || split, warp) + i % 16;
            const int64_t t = 2 * pair + row;
            if (t >= d.h.target || channel >= d.m) continue;
            for (int column = 0; column < N; ++column) {
              const int64_t u = b.origin + column;
              if (u < 0 || u >= d.w.target) continue;
              double sum = b.Sum(packed, warpgroup, slot, next, i % 64, column);
              if (split)
                sum += b.Sum(packed, warpgroup, slot, next, i % 64 + 32, column) / kLowScale;
              const size_t at =
                  transconv::definition::At(q, !d.forward, image, group * d.m + channel, t, u);
              if (!(std::fabs(sum - want[at]) < 1e-9)) Fail("a target is wrong");
              ++seen[at];
            }
          }
          ++step;
          if (++pair == pairs) {
            pair = 0;
            ++image;
          }
        }
        slot = next;
      }
      if (step != count) Fail("steps are missing");
    }
  }
  for (const int n : seen) {
    if (n == 0) Fail("a target is not computed");
  }
  return static_cast<int>(seen.size());
}

template <int N, int HALVES, int ELEMENT>
int CheckTile(const Problem& q, transconv::Pass pass, bool stacked, int shares,
              std::mt19937* random) {
  if (!stacked) return CheckForm<N, HALVES, ELEMENT, Form::kPlain>(q, pass, shares, random);
  int checked = CheckForm<N, HALVES, ELEMENT, Form::kStacked>(q, pass, shares, random);
  if constexpr (HALVES == 1 && ELEMENT == 4) {
    checked += CheckForm<N, HALVES, ELEMENT, Form::kSplit>(q, pass, shares, random);
  }
  return checked;
}

}  // namespace

int main() {
  std::mt19937 random(7);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  CheckStrips();
  constexpr auto kForward = transconv::Pass::kForward, kGradInput = transconv::Pass::kGradInput;
  int checked = 0;
  for (int i = 0; i < 24; ++i) {
    const bool stacked = i % 3 != 0;
    Problem q;
    q.batch = pick(1, 2);
    q.groups = pick(1, 2);
    const auto channels = [&](int source, int target, bool forward) {
      q.in_channels = q.groups * (forward ? source : target);
      q.out_channels = q.groups * (forward ? target : source);
    };
    q.h = MakeAxis(pick(2, 6), pick(1, 3), pick(-1, 1), pick(-1, 0));
    q.w = MakeAxis(pick(1, 60), pick(1, 6), pick(-1, 2), pick(-9, -2));
    const int target = stacked ? pick(1, 32) : pick(33, 70), shares = pick(1, 4);
    channels(8 * pick(1, 4), target, true);
    checked += CheckTile<136, 1, 4>(q, kForward, stacked, shares, &random);
    checked += CheckTile<144, 1, 2>(q, kForward, stacked, shares, &random);
    channels(8 * pick(5, 8), target, false);
    checked += CheckTile<136, 2, 4>(q, kGradInput, stacked, shares, &random);
    q.w = MakeAxis(8 * pick(1, 18), 3, pick(-1, 1), 0);  // an odd crop and an even pitch
    q.w.out = q.w.in;
    checked += CheckTile<128, 2, 4>(q, kGradInput, stacked, shares, &random);
    channels(8 * pick(1, 4), target, true);
    checked += CheckTile<128, 1, 4>(q, kForward, stacked, shares, &random);
    q.w.crop_lo = pick(-1, 2);
    checked += CheckTile<128, 1, 2>(q, kForward, stacked, shares, &random);
    checked += CheckTile<144, 1, 2>(q, kForward, stacked, shares, &random);
    q.w = MakeAxis(2 * pick(1, 60), pick(1, 6), pick(-1, 2), pick(-9, -2));  // words of x
    checked += CheckTile<144, 1, 2>(q, kForward, stacked, shares, &random);
  }
  std::printf("rolling_tile_test: %d targets\n", checked);
  return 0;
}
