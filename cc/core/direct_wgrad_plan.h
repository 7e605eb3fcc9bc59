// How the direct kernel of the weight gradient cuts a problem: pure C++.
//
// A block sums over tiles of input positions for some taps, input channels and output channels of
// one group. Its threads hold RM x RN channel pairs of one tap each ("a combination"); where there
// are fewer combinations than threads, slices of threads share a tile's positions.
#ifndef TRANSCONV_CORE_DIRECT_WGRAD_PLAN_H_
#define TRANSCONV_CORE_DIRECT_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/geometry.h"

namespace transconv {

// Positions of one axis.
struct DirectWgradAxis {
  int taps = 1, tap_blocks = 1;  // of a block, and how many blocks cover the kernel
  int size = 1, tiles = 1;       // input positions of a tile, and how many tiles cover the image
  int halo = 1;                  // output positions of a tile that taps can reach
  int unit = 1;                  // between them: only multiples of gcd(stride, dilation) matter
  int stride = 1, dilation = 1;  // in units
  int slices = 1;

  int HaloOf(int positions) const { return stride * (positions - 1) + dilation * (taps - 1) + 1; }
};

struct DirectWgradPlan {
  static constexpr int kThreads = 256;

  int rm = 1, rn = 1;  // channels of a thread
  int m = 1, n = 1;    // channels of a block
  int m_blocks = 1, n_blocks = 1;
  int threads_m = 1, threads_n = 1, combinations = 1;
  DirectWgradAxis h, w;
  int x_pitch = 1, dy_pitch = 1;  // from one position's channels to the next one's
  int dy_at = 0, shared_values = 0;
  int64_t blocks = 1;  // of one split
  int64_t tiles = 1, splits = 1, per_split = 1;
};

namespace direct_wgrad {

constexpr int64_t kSharedBytes = 48 * 1024;  // what every card gives without asking
constexpr int64_t kTargetBlocks = 1056;      // some for every multiprocessor of a large card
constexpr int64_t kMinTiles = 4;             // of a split: the sums of splits are added once more
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;
constexpr int kMostThreadsM = 16;

// Vectors of four channels lie so that the lanes which store or read eight of them at a time meet
// different banks.
inline int PitchOf(int channels, int vector) {
  if (vector == 1) return channels;
  const int whole = (channels + 3) / 4 * 4;
  return whole % 8 == 4 ? whole : whole + 4;
}

inline void SetTaps(const Axis& axis, int taps, DirectWgradAxis* a) {
  a->taps = taps;
  a->tap_blocks = static_cast<int>(CeilDiv(axis.kernel, taps));
  const int64_t unit = std::gcd(axis.stride, axis.dilation);
  a->unit = static_cast<int>(unit);
  a->stride = static_cast<int>(axis.stride / unit);
  a->dilation = static_cast<int>(axis.dilation / unit);
}

// Sectors of 32 bytes that a run of positions touches, `step` apart.
inline int64_t Sectors(int64_t positions, int64_t step, int64_t element) {
  const int64_t pieces = 32 / element;
  return std::min(positions, CeilDiv(positions * step, pieces)) + 1;
}

// The tile that loads least; false if not one position fits.
inline bool ChooseTile(const Problem& q, int64_t element, int64_t value, DirectWgradPlan* p) {
  int64_t least = std::numeric_limits<int64_t>::max();
  int rows = 0, columns = 0;
  for (int64_t c : {128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1}) {
    c = std::min(c, q.w.in);
    for (int64_t r = 1; r <= std::min<int64_t>(q.h.in, 64); ++r) {
      const int64_t halo_h = p->h.HaloOf(static_cast<int>(r));
      const int64_t halo_w = p->w.HaloOf(static_cast<int>(c));
      const int64_t values = (r * c + 3) / 4 * 4 * p->x_pitch + halo_h * halo_w * p->dy_pitch;
      if (values * value > kSharedBytes) break;
      const int64_t tiles = CeilDiv(q.h.in, r) * CeilDiv(q.w.in, c);
      // A tile costs its loads, and two barriers about as much as some.
      const int64_t cost = tiles * (r * Sectors(c, 1, element) * p->m +
                                    halo_h * Sectors(halo_w, p->w.unit, element) * p->n + 256);
      if (cost < least) {
        least = cost;
        rows = static_cast<int>(r);
        columns = static_cast<int>(c);
      }
    }
  }
  if (rows == 0) return false;
  p->h.size = rows;
  p->w.size = columns;
  p->h.halo = p->h.HaloOf(rows);
  p->w.halo = p->w.HaloOf(columns);
  p->h.tiles = static_cast<int>(CeilDiv(q.h.in, rows));
  p->w.tiles = static_cast<int>(CeilDiv(q.w.in, columns));
  return true;
}

}  // namespace direct_wgrad

// Fills a plan for elements and sums of these sizes in bytes; returns why there is none, or null.
// It depends on the problem alone, so results are the same on every device.
inline const char* MakeDirectWgradPlan(const Problem& q, int64_t element, int64_t value,
                                       DirectWgradPlan* plan) {
  using namespace direct_wgrad;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (int64_t size : {q.h.in * q.w.in * q.in_channels, q.h.out * q.w.out * q.out_channels}) {
    if (size > kMax) return "an image exceeds 2^31 elements";
  }
  for (int64_t far : {q.h.stride, q.w.stride, q.h.dilation * q.h.kernel, q.w.dilation * q.w.kernel,
                      q.groups, q.batch, q.h.crop_lo, -q.h.crop_lo, q.w.crop_lo, -q.w.crop_lo}) {
    if (far > kMax / 4) return "a number exceeds 2^29";
  }
  DirectWgradPlan p;
  const int64_t in = q.in_per_group(), out = q.out_per_group();
  p.rm = in > 2 ? 4 : 1;
  p.rn = out > 2 ? 4 : 1;
  p.n = static_cast<int>(std::min<int64_t>(out, 8 * p.rn));
  p.m = static_cast<int>(std::min<int64_t>(in, (p.n > p.rn ? 8 : kMostThreadsM) * p.rm));
  int taps = 0;
  for (;;) {
    p.threads_m = static_cast<int>(CeilDiv(p.m, p.rm));
    p.threads_n = static_cast<int>(CeilDiv(p.n, p.rn));
    const int most = DirectWgradPlan::kThreads / (p.threads_m * p.threads_n);
    taps = taps == 0 ? most : std::min(taps, most);
    const int taps_w = static_cast<int>(std::min<int64_t>(q.w.kernel, taps));
    SetTaps(q.w, taps_w, &p.w);
    SetTaps(q.h, static_cast<int>(std::min<int64_t>(q.h.kernel, taps / taps_w)), &p.h);
    p.x_pitch = PitchOf(p.m, p.rm);
    p.dy_pitch = PitchOf(p.n, p.rn);
    if (ChooseTile(q, element, value, &p)) break;
    if (taps > 1) {
      taps /= 2;
    } else if (p.n > p.rn) {
      p.n = p.rn;
    } else {
      return "one position and its taps exceed shared memory";
    }
  }
  p.m_blocks = static_cast<int>(CeilDiv(in, p.m));
  p.n_blocks = static_cast<int>(CeilDiv(out, p.n));
  p.combinations = p.threads_m * p.threads_n * p.h.taps * p.w.taps;
  const int slices = DirectWgradPlan::kThreads / p.combinations;
  p.w.slices = std::min(slices, p.w.size);
  p.h.slices = std::min(slices / p.w.slices, p.h.size);
  p.dy_at = p.h.size * p.w.size * p.x_pitch;
  p.dy_at = (p.dy_at + 3) / 4 * 4;
  const int sums = p.combinations * p.rm * p.rn * (p.h.slices * p.w.slices - 1);
  p.shared_values = std::max(p.dy_at + p.h.halo * p.w.halo * p.dy_pitch, sums);

  p.blocks = q.groups * p.m_blocks * p.n_blocks * p.h.tap_blocks * int64_t{p.w.tap_blocks};
  p.tiles = q.batch * p.h.tiles * p.w.tiles;
  const int64_t partial = q.in_channels * out * q.taps() * value;
  const int64_t wanted =
      std::min(CeilDiv(kTargetBlocks, p.blocks), std::max<int64_t>(kMaxPartialBytes / partial, 1));
  p.splits = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(CeilDiv(p.tiles, kMinTiles), 1));
  p.per_split = CeilDiv(std::max<int64_t>(p.tiles, 1), p.splits);
  p.splits = CeilDiv(std::max<int64_t>(p.tiles, 1), p.per_split);
  if (p.tiles > kMax || p.blocks * p.splits > kMax) return "more than 2^31 tiles or blocks";
  *plan = p;
  return nullptr;
}

// Whether a pair of channels has so few positions that a block goes over them by itself
// (cuda/kernels/direct_wgrad_pairs.cuh): then nothing is split and nothing is added afterwards.
constexpr int64_t kMostPairTaps = 16;
inline bool IsForPairs(const Problem& q) {
  constexpr int64_t kMostPositions = 2048, kMostReads = 16, kMostPairs = 1 << 20, kFar = 1 << 16;
  if (std::max({q.h.stride, q.w.stride, q.h.dilation, q.w.dilation}) > kFar) return false;
  if (std::min({q.batch, q.h.in, q.w.in, q.in_channels, q.out_channels, q.taps()}) < 1)
    return false;
  // A channel is read once for every channel of the other image that it meets.
  return q.layout == Layout::kNCHW && q.taps() <= kMostPairTaps &&
         q.batch * q.h.in * q.w.in <= kMostPositions && q.in_per_group() <= kMostReads &&
         q.out_per_group() <= kMostReads && q.in_channels * q.out_per_group() <= kMostPairs;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_DIRECT_WGRAD_PLAN_H_
