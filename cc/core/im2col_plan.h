// How the input gradient runs as matrix products of few channels: pure C++, tested without a GPU.
//
//     dx[pixel, ci] = sum over k of dy[place(pixel) + offset(k)] w[k, ci],   k = (co, kh, kw)
//
// of one group. A block has a tile of pixels of x, flattened row by row so that 16 of them fill a
// fragment whatever the tile's width, and up to 64 input channels. In shared memory are the dy that
// the tile's taps reach, as a box (core/im2col_box.h), the weights in the order of the fragments,
// and a table of offset(k). Output channels come in chunks where shared memory does not hold all.
#ifndef TRANSCONV_CORE_IM2COL_PLAN_H_
#define TRANSCONV_CORE_IM2COL_PLAN_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/geometry.h"
#include "core/im2col_box.h"

namespace transconv {

struct Im2colPlan {
  static constexpr int kWarps = kBoxThreads / 32;

  const char* reason = nullptr;         // why there is none
  int m_frags = 2, n_frags = 1;         // of a warp: 16 pixels and 8 channels each
  int n_blocks = 1;                     // for all input channels of a group
  int rows = 1, columns = 1;            // of x, of a tile
  int tiles_h = 1, tiles_w = 1;         // of an image
  int64_t tiles = 0;                    // of all images
  int pieces = 1, rounds = 1;           // of 16 m_frags pixels in a tile, and of these for a warp
  int chunk = 1, chunks = 1;            // output channels
  int k = 1, steps = 1;                 // of a chunk, and in eights
  bool held = true;                     // the weights of all chunks are there all the time
  bool channels_fastest = false;        // the order of k
  Im2colBox box;                        // of dy
  int pixel_row = 0, pixel_column = 0;  // elements of the box from one pixel to the next
  int tap_row = 0, tap_column = 0;      // and from one tap to the next
  // Bytes of shared memory.
  int offsets_at = 0, box_at = 0, shared_bytes = 0;
  int resident = 1;  // blocks that a multiprocessor is to hold

  TRANSCONV_HOST_DEVICE int weights() const { return steps * 8 * n_frags * 8; }  // of a chunk
  int64_t work() const { return tiles * n_blocks; }                              // of a group
};

struct Im2colLimits {
  int shared_bytes = 96 * 1024;  // of a block, on every card that has the instruction
  int most_vector = 4;
  int most_pixels = 2048;  // of a tile
  int least_pixels = 1;    // the same, where an image has as many
  // Blocks that fill a card. A constant, so that results are the same on all.
  int multiprocessors = 132;
};

namespace im2col {

constexpr int kSharedOfMultiprocessor = 227 * 1024;
constexpr int kMostChannels = 64;  // of a block

// Fragments of channels that kernels exist for.
inline int Fragments(int64_t channels) {
  return channels > 32 ? 8 : channels > 16 ? 4 : channels > 8 ? 2 : 1;
}
// One fragment of channels has a load of weights for every product: more pixels share them.
inline int PixelFragments(int n_frags) { return n_frags == 1 ? 4 : 2; }
inline int ResidentByRegisters(int n_frags) { return n_frags == 8 ? 2 : 3; }

// Why no kernel of this family runs a problem, or null.
inline const char* Refuses(const Problem& q) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (const int64_t size : {q.h.in * q.w.in * q.in_channels, q.h.out * q.w.out * q.out_channels}) {
    if (size > kMax) return "an image exceeds 2^31 elements";
  }
  for (const Axis& a : {q.h, q.w}) {
    constexpr int64_t kLong = 1 << 24;
    if (std::max({a.in, a.out, a.kernel, a.stride, a.dilation}) > kLong ||
        std::max(a.crop_lo, -a.crop_lo) > kLong || a.dilation * a.kernel > kLong ||
        a.stride * a.in > kMax / 4) {
      return "an axis is longer than 2^24";
    }
  }
  if (std::max(q.groups, q.batch) > kMax / 4) return "it has more than 2^29 groups or images";
  return nullptr;
}

// Wavefronts of shared memory for one load of a fragment's register: lane 4 g + t reads word
// g * pixel + offset[t].
inline int Wavefronts(int pixel, const int (&offset)[4]) {
  int words[32][8], count[32] = {}, most = 1;
  for (int t = 0; t < 4; ++t) {
    for (int g = 0; g < 8; ++g) {
      const int word = g * pixel + offset[t], bank = word & 31;
      int i = 0;
      while (i < count[bank] && words[bank][i] != word) ++i;
      if (i < count[bank] || i == 8) continue;
      words[bank][count[bank]++] = word;
      most = std::max(most, count[bank]);
    }
  }
  return most;
}

// The place in the box of k of a chunk, relative to the pixel's.
inline int OffsetOf(const Im2colPlan& p, const Problem& q, int k) {
  const int taps = static_cast<int>(q.taps()), kernel_w = static_cast<int>(q.w.kernel);
  const int channel = p.channels_fastest ? k % p.chunk : k / taps;
  const int tap = p.channels_fastest ? k / p.chunk : k % taps;
  return channel * p.box.channel + tap / kernel_w * p.tap_row + tap % kernel_w * p.tap_column;
}

// Of some steps, the sum of wavefronts of their two registers.
inline int SampleConflicts(const Im2colPlan& p, const Problem& q) {
  int sum = 0;
  for (int i = 0; i < 3; ++i) {
    const int step = (p.k / 8) * i / 3;
    for (int half = 0; half < 2; ++half) {
      int offset[4];
      for (int t = 0; t < 4; ++t) {
        offset[t] = OffsetOf(p, q, std::min(step * 8 + half * 4 + t, p.k - 1));
      }
      sum += Wavefronts(p.pixel_column, offset);
    }
  }
  return sum;
}

struct Cut {  // of an axis
  int size, halo, unit, stride, dilation;
  Cut(const Axis& a, int64_t positions) : size(static_cast<int>(positions)) {
    const int64_t gcd = std::gcd(a.stride, a.dilation);
    unit = static_cast<int>(gcd);
    stride = static_cast<int>(a.stride / gcd);
    dilation = static_cast<int>(a.dilation / gcd);
    const int64_t reach = stride * (positions - 1) + dilation * (a.kernel - 1) + 1;
    halo = static_cast<int>(std::min<int64_t>(reach, 1 << 28));
  }
};

// Everything that follows from the tile and the chunk; false if shared memory does not hold it.
inline bool Complete(Im2colPlan* plan, const Problem& q, const Im2colLimits& limits,
                     const BoxShape& shape) {
  Im2colPlan& p = *plan;
  const Cut h(q.h, p.rows), w(q.w, p.columns);
  const int64_t values = int64_t{h.halo} * w.halo * p.chunk;
  if (values * 4 > limits.shared_bytes) return false;
  BoxShape s = shape;
  s.rows = h.halo;
  s.columns = w.halo;
  s.channels = p.chunk;
  s.unit_h = h.unit;
  s.unit_w = w.unit;
  s.most_vector = limits.most_vector;
  p.box = MakeIm2colBox(q, false, s);
  p.pixel_row = h.stride * p.box.row;
  p.pixel_column = w.stride * p.box.column;
  p.tap_row = h.dilation * p.box.row;
  p.tap_column = w.dilation * p.box.column;
  const int64_t all = int64_t{4} * p.chunks * p.weights();
  p.held = p.chunks == 1 || all <= limits.shared_bytes / 4;
  p.offsets_at = static_cast<int>(p.held ? all : 4 * p.weights());
  p.box_at = (p.offsets_at + p.steps * 32 + 15) / 16 * 16;
  const int64_t bytes = p.box_at + int64_t{4} * p.box.size;
  if (bytes > limits.shared_bytes) return false;
  p.shared_bytes = static_cast<int>(bytes);
  p.resident =
      std::min(kSharedOfMultiprocessor / (p.shared_bytes + 1024), ResidentByRegisters(p.n_frags));
  return true;
}

// Sectors of 32 bytes of a run of elements.
inline double Sectors(double elements, double element) { return elements * element / 32 + 1; }

// How much of a multiprocessor's throughput this many blocks reach that wait for their own loads.
inline double Reached(double blocks) { return blocks >= 3 ? 1 : blocks >= 2 ? 0.9 : 0.65; }

// Cycles of a card.
inline double Cost(const Im2colPlan& p, const Problem& q, const Im2colLimits& limits, int element) {
  const BoxAxis(&axis)[3] = p.box.axis;
  const double lines = p.box.lines, vectors = lines * axis[0].count;
  const double pixels = static_cast<double>(p.rows) * p.columns;
  const double weights = p.weights();
  // A tile: what is staged, by instructions and by memory, ...
  double issue = vectors * (14 + 1.5 * p.box.vector) / 128 + lines * 0.6;
  const double run = static_cast<double>(axis[0].count) * p.box.vector *
                     (p.box.form == BoxForm::kPixels || p.box.vector > 1 ? 1 : axis[0].unit);
  double memory = lines * Sectors(run, element) * 32 / 28;
  if (!p.held) issue += weights * 16 / 128;
  issue *= p.chunks;
  memory *= p.chunks;
  // ... multiplied, by shared memory, instructions and tensor cores, ...
  const double loads = 4.0 * p.m_frags, products = p.m_frags * p.n_frags;
  const double step = std::max(
      {1.2 * loads + 1 + 2 * p.n_frags, (2 * loads + 6 + p.n_frags + products) / 4, 2 * products});
  const double multiply = step * p.steps * p.chunks * p.pieces;
  // ... and stored.
  const double channels = static_cast<double>(std::min<int64_t>(q.in_per_group(), 8 * p.n_frags));
  const double wide = p.columns % 8 == 0 || q.layout == Layout::kNHWC ? 1 : 1.3;
  const double store = pixels * channels * element * wide / 20 + p.pieces * p.m_frags * 24.0;
  const double busy =
      std::max(issue + multiply, memory + store) + 0.3 * std::min(issue + multiply, memory + store);
  const double blocks = static_cast<double>(p.work()) * static_cast<double>(q.groups);
  const double each = std::ceil(blocks / limits.multiprocessors);
  const double wait = 2500.0 + 1500.0 * (p.chunks - 1);
  return each * busy / Reached(std::min<double>(each, p.resident)) +
         std::ceil(each / p.resident) * wait +
         std::min<double>(each, p.resident) * weights * (p.held ? p.chunks : 1) * 16 / 128;
}

// Pads and the order of k with the fewest conflicts of banks.
inline void AvoidConflicts(Im2colPlan* plan, const Problem& q, const Im2colLimits& limits) {
  Im2colLimits room = limits;
  room.shared_bytes =
      std::min(limits.shared_bytes, kSharedOfMultiprocessor / plan->resident - 1024);
  const int step = std::max(4 / plan->box.vector, 1);
  int least = std::numeric_limits<int>::max();
  Im2colPlan best = *plan;
  for (int pad = 0; pad < 8 && least > 6; ++pad) {
    BoxShape shape;
    const BoxForm form = plan->box.form;
    (form == BoxForm::kPlanes   ? shape.channel_pad
     : form == BoxForm::kMerged ? shape.row_pad
                                : shape.column_pad) = pad * step;
    Im2colPlan p = *plan;
    if (!Complete(&p, q, room, shape)) break;
    for (const bool fastest : {false, true}) {
      p.channels_fastest = fastest;
      const int conflicts = SampleConflicts(p, q);
      if (conflicts >= least) continue;
      least = conflicts;
      best = p;
    }
  }
  *plan = best;
}

}  // namespace im2col

// The input gradient; `element` is an element's size in bytes.
inline Im2colPlan PlanIm2colGradInput(const Problem& q, int element,
                                      const Im2colLimits& limits = {}) {
  Im2colPlan base;
  if ((base.reason = im2col::Refuses(q)) != nullptr) return base;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t out = q.out_per_group(), taps = q.taps();
  base.n_frags = im2col::Fragments(std::min<int64_t>(q.in_per_group(), im2col::kMostChannels));
  base.m_frags = im2col::PixelFragments(base.n_frags);
  base.n_blocks = static_cast<int>(CeilDiv(q.in_per_group(), 8 * base.n_frags));
  base.reason = "one channel's taps exceed shared memory";
  if (taps * 8 * base.n_frags * 4 > limits.shared_bytes || out > kMax / 64 / taps) return base;
  Im2colPlan best = base;
  double least = std::numeric_limits<double>::infinity();
  int64_t last_columns = 0;
  for (int64_t columns : {int64_t{512}, int64_t{128}, int64_t{64}, int64_t{32}, int64_t{16},
                          int64_t{8}, int64_t{1}}) {
    columns = std::min(columns, q.w.in);
    // As many tiles, more evenly.
    columns = CeilDiv(q.w.in, CeilDiv(q.w.in, columns));
    if (columns < q.w.in) columns = std::min(CeilDiv(columns, 8) * 8, q.w.in);
    if (columns == last_columns) continue;
    last_columns = columns;
    int64_t last_rows = 0;
    for (int64_t rows : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
      rows = CeilDiv(q.h.in, CeilDiv(q.h.in, std::min(rows, q.h.in)));
      if (rows == last_rows) continue;
      last_rows = rows;
      if (rows * columns > limits.most_pixels) break;
      if (rows * columns < std::min<int64_t>(limits.least_pixels, q.h.in * q.w.in)) continue;
      int fits = 0;  // more chunks than twice those that fit only cost more
      int64_t last_chunk = 0;
      for (int64_t parts : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, int64_t{16}, out}) {
        int64_t chunk = CeilDiv(out, std::min(parts, out));
        if (chunk < out && chunk > 4) chunk = CeilDiv(chunk, 4) * 4;
        if (chunk == last_chunk) continue;
        last_chunk = chunk;
        Im2colPlan p = base;
        p.rows = static_cast<int>(rows);
        p.columns = static_cast<int>(columns);
        p.pieces = static_cast<int>(CeilDiv(rows * columns, 16 * p.m_frags));
        p.rounds = static_cast<int>(CeilDiv(p.pieces, Im2colPlan::kWarps));
        p.chunk = static_cast<int>(chunk);
        p.chunks = static_cast<int>(CeilDiv(out, chunk));
        if (p.chunks > 1 && p.rounds > 1) break;
        if (chunk * taps * 8 * p.n_frags * 4 > limits.shared_bytes) continue;
        p.k = static_cast<int>(chunk * taps);
        p.steps = (p.k + 7) / 8;
        if (!im2col::Complete(&p, q, limits, BoxShape())) continue;
        p.tiles_h = static_cast<int>(CeilDiv(q.h.in, rows));
        p.tiles_w = static_cast<int>(CeilDiv(q.w.in, columns));
        p.tiles = q.batch * p.tiles_h * p.tiles_w;
        if (p.tiles > kMax / 2 || p.work() * q.groups > kMax) continue;
        const double cost = im2col::Cost(p, q, limits, element);
        if (cost < least) {
          least = cost;
          best = p;
          best.reason = nullptr;
        }
        if (++fits == 2) break;
      }
      if (fits == 0 && rows > 1) break;
    }
  }
  if (best.reason == nullptr) im2col::AvoidConflicts(&best, q, limits);
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_PLAN_H_
