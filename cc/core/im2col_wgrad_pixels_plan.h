// How the weight gradient of pixels of 16 bits (cuda/kernels/im2col_wgrad_pixels.cuh) cuts a
// problem: pure C++.
//
// Of the product dw = x * dy, the rows are input channels, the columns weights of one of them
// (output channel and tap), and what is summed are positions of x. A block takes some input
// channels and all weights of each, and sums over its share of the tiles, each some rows and
// columns of x of one image and what their taps reach of dy. Its warps share the fragments of
// 16 x 8; slices of warps share the steps of 16 positions where there are more warps than
// fragments.
//
// Two positions side by side are one operand word, at any tap. So dy lies in shared memory as
// planes,
//
//     [output channel][row][column % stride][copy][column / stride],
//
// and where taps reach odd distances, a second copy is shifted by one column.
//
// The plan depends on the problem alone, so that results are the same on every device.
#ifndef TRANSCONV_CORE_IM2COL_WGRAD_PIXELS_PLAN_H_
#define TRANSCONV_CORE_IM2COL_WGRAD_PIXELS_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/geometry.h"
#include "core/im2col_box.h"
#include "core/im2col_pixels.h"
#include "core/im2col_wgrad_plan.h"

namespace transconv {

struct PixelsWgradPlan {
  static constexpr int kWarps = kBoxThreads / 32;

  const char* reason = nullptr;
  int fragments_m = 2, fragments_n = 2;      // of a warp
  int warps_m = 1, warps_n = 1, slices = 1;  // of a block
  int in = 8, in_blocks = 1, weights = 1;    // channels of a block, weights of each
  bool taps_inside = true;                   // weights in the order of dw, or channels inside
  pixels::TileAxis h, w;
  int steps_w = 1, steps = 1;   // of a row of a tile, of a tile
  int chunks = 1, at_once = 1;  // of eight channels of a pixel; pixels that threads copy at a time
  int pixel = 16;               // bytes of shared memory from one to the next
  int vector = 4;               // bytes of dy that are copied at a time
  int vectors = 1;              // of a row of dy
  // Elements of the planes from one to the next. `copy` is 0 where one serves.
  int copy = 0, residue = 2, row = 2, channel = 2;
  // Bytes of shared memory: of x, of dy as it is in the image and of its planes, twice each.
  int x_bytes = 0, dy_bytes = 0, planes_bytes = 0, shared_bytes = 0;
  int64_t tiles = 1, splits = 1, per_split = 1;
  double cycles = 0;  // predicted, of an H200
};

struct PixelsWgradLimits {
  int shared_bytes = 96 << 10;  // two blocks fit where a multiprocessor has most, one everywhere
  int64_t grid = 264;           // blocks that run at the same time
  int columns = 128;            // of a tile
  int rows = 16;
};

namespace pixels_wgrad {

constexpr int kStep = 16;  // positions
constexpr int kMostIn = 128;
// Fragments of a warp that there are kernels for: one for few weights of many channels, others so
// that few operands are read for a product. More sums have no registers.
struct Fragments {
  int m, n;
};
constexpr Fragments kFragments[] = {{2, 2}, {4, 2}, {2, 4}, {4, 4}, {2, 5},
                                    {4, 5}, {2, 6}, {3, 6}, {2, 7}};

inline int RoundUp(int64_t v, int64_t to) { return static_cast<int>(CeilDiv(v, to) * to); }

constexpr int kSampledWeights = 80;  // of which conflicts of banks are counted
// Wavefronts of a load, over all sampled fragments, and how many loads they are.
struct Wavefronts {
  int all = 0, loads = 0;
};

// Of a weight, elements from its plane's first operand.
inline int PlaceOf(const PixelsWgradPlan& p, const Problem& q, int weight) {
  const int taps = static_cast<int>(q.taps()), out = static_cast<int>(q.out_channels);
  const int channel = p.taps_inside ? weight / taps : weight % out;
  const int tap = p.taps_inside ? weight % taps : weight / out;
  const int kernel_w = static_cast<int>(q.w.kernel), stride = static_cast<int>(q.w.stride);
  const int column = tap % kernel_w * static_cast<int>(q.w.dilation), shift = column / stride;
  return channel * p.channel + tap / kernel_w * static_cast<int>(q.h.dilation) * p.row +
         column % stride * p.residue + (shift % 2 == 0 ? shift : p.copy + shift - 1);
}

inline Wavefronts CountWavefronts(const PixelsWgradPlan& p, const Problem& q) {
  Wavefronts count;
  for (int first = 0; first < std::min(p.weights, kSampledWeights); first += 8) {
    int words[32][32], in_bank[32] = {}, most = 0;
    for (int g = 0; g < 8; ++g) {
      const int at = PlaceOf(p, q, std::min(first + g, p.weights - 1)) / 2;
      for (int word = at; word < at + 4; ++word) {
        int *const bank = words[word % 32], &size = in_bank[word % 32];
        if (std::find(bank, bank + size, word) != bank + size) continue;  // one word for both
        bank[size++] = word;
        most = std::max(most, size);
      }
    }
    count.all += most;
    ++count.loads;
  }
  return count;
}

// The planes with so many words between copies, rows and channels.
inline void SetPlanes(const Problem& q, int copy_pad, int row_pad, int channel_pad,
                      PixelsWgradPlan* p) {
  const int shift = static_cast<int>(q.w.dilation * (q.w.kernel - 1) / q.w.stride);
  const int columns = RoundUp(p->w.size + shift, 2) + 2 * copy_pad;
  bool odd = false;
  for (int64_t k = 0; k < q.w.kernel; ++k) odd |= q.w.dilation * k / q.w.stride % 2 != 0;
  p->copy = odd ? columns : 0;
  p->residue = odd ? 2 * columns : columns;
  p->row = static_cast<int>(q.w.stride) * p->residue + 2 * row_pad;
  p->channel = p->h.halo * p->row + 2 * channel_pad;
  p->planes_bytes = RoundUp(2 * q.out_channels * p->channel, 16);
}

// Where everything lies; false if it does not fit.
inline bool Place(const PixelsWgradLimits& limits, PixelsWgradPlan* p) {
  // Lanes of a product's last fragment read past the last channel.
  p->x_bytes = p->h.size * p->w.size * p->pixel + 16 * 2;
  p->dy_bytes = RoundUp(int64_t{p->h.halo} * p->vectors * p->vector, 16);
  const int64_t bytes = 2 * (int64_t{p->x_bytes} + p->dy_bytes + p->planes_bytes);
  if (bytes > limits.shared_bytes) return false;
  // At the end slices leave their sums there.
  const int sums =
      (p->slices - 1) * p->warps_m * p->warps_n * p->fragments_m * p->fragments_n * 4 * 32 * 4;
  p->shared_bytes = std::max(static_cast<int>(bytes), sums);
  return p->shared_bytes <= limits.shared_bytes;
}

// Pads the planes so that the lanes of a load meet different banks.
inline void LayOut(const Problem& q, const PixelsWgradLimits& limits, PixelsWgradPlan* p) {
  PixelsWgradPlan best = *p;
  int least = std::numeric_limits<int>::max(), pads[3] = {};
  const int fewest = (std::min(p->weights, kSampledWeights) + 7) / 8;
  const auto consider = [&](int copy, int row, int channel) {
    if (least == fewest) return;
    SetPlanes(q, copy, row, channel, p);
    const Wavefronts count = CountWavefronts(*p, q);
    if (count.all >= least || !Place(limits, p)) return;
    best = *p;
    least = count.all;
    pads[0] = copy;
    pads[1] = row;
    pads[2] = channel;
  };
  for (const bool inside : {true, false}) {
    p->taps_inside = inside;
    consider(0, 0, 0);
    for (int pad = 1; pad < 16; ++pad) consider(0, pad, 0);
    for (int pad = 1; pad < 32 && q.out_channels > 1; ++pad) consider(0, pads[1], pad);
    for (int pad = 1; pad < 12; ++pad) consider(pad, pads[1], pads[2]);
  }
  *p = best;
}

// Distributes fragments over warps; false if there are too many.
inline bool ChooseWarps(int fragments_m, int fragments_n, PixelsWgradPlan* p) {
  double least = std::numeric_limits<double>::infinity();
  for (const Fragments& f : kFragments) {
    const int warps_m = (fragments_m + f.m - 1) / f.m, warps_n = (fragments_n + f.n - 1) / f.n;
    const int warps = warps_m * warps_n;
    if (warps > PixelsWgradPlan::kWarps) continue;
    const int slices = PixelsWgradPlan::kWarps / warps;
    const double idle = double{1} * PixelsWgradPlan::kWarps / (warps * slices);
    const double cost = warps * (4 * f.m + 2 * f.n + 0.5 * f.m * f.n + 4) * idle;
    if (cost >= least) continue;
    least = cost;
    p->fragments_m = f.m;
    p->fragments_n = f.n;
    p->warps_m = warps_m;
    p->warps_n = warps_n;
    p->slices = slices;
  }
  return least < std::numeric_limits<double>::infinity();
}

// Splits the tiles and predicts how long they take.
inline void Predict(const Problem& q, const PixelsWgradLimits& limits, PixelsWgradPlan* p) {
  p->h.tiles = static_cast<int>(CeilDiv(q.h.in, p->h.size));
  p->w.tiles = static_cast<int>(CeilDiv(q.w.in, p->w.size));
  p->tiles = q.batch * p->h.tiles * p->w.tiles;
  const double x_vectors = double{1} * p->h.size * p->w.size * p->chunks;
  const double x_read = 16.0 * p->h.size * std::min<int64_t>(p->w.size, q.w.in) * p->chunks;
  const double dy_pixels = double{1} * p->h.halo * p->w.halo,
               out = static_cast<double>(q.out_channels);
  const double dy_vectors = double{1} * p->h.halo * p->vectors;
  const int m = p->fragments_m, n = p->fragments_n, warps = p->warps_m * p->warps_n;
  const double turns = static_cast<double>(CeilDiv(p->steps, p->slices)) * p->slices * warps;
  // Two blocks share a multiprocessor's 17 bytes a cycle, its wavefronts, its four instructions and
  // its products.
  const double memory = (x_read + dy_vectors * p->vector) / 8.5;
  const double shared = 2 * (turns * (4 * m + 2 * n) + x_vectors / 7 + dy_pixels * out / 8);
  const double issued = (turns * (m * n + m + 3 * n + 14) + x_vectors / 2 + dy_vectors / 2 +
                         dy_pixels * (12 + 6 * out) / 32) /
                        2;
  const double multiplied = 3.2 * turns * m * n;
  const double tile = 0.8 * std::max({memory, shared, issued, multiplied}) +
                      0.2 * (memory + shared + issued + multiplied) + 500;

  const int64_t partial = 4 * q.in_channels * p->weights;
  const int64_t tiles = std::max<int64_t>(p->tiles, 1);
  const int64_t most =
      std::clamp<int64_t>(im2col_wgrad::kMaxPartialBytes / std::max<int64_t>(partial, 1), 1, tiles);
  const int64_t least = std::clamp<int64_t>(
      CeilDiv(tiles * p->steps, im2col_wgrad::kMostSummed * p->slices), 1, most);
  p->cycles = std::numeric_limits<double>::infinity();
  for (int64_t rounds = 1; rounds <= 3; ++rounds) {
    int64_t splits = std::clamp<int64_t>(rounds * limits.grid / p->in_blocks, least, most);
    const int64_t per_split = CeilDiv(tiles, splits);
    splits = CeilDiv(tiles, per_split);
    const double waves = static_cast<double>(CeilDiv(p->in_blocks * splits, limits.grid));
    const double sum = static_cast<double>(splits * partial) * 2 / 2000 + 3500;
    const double cycles = waves * ((static_cast<double>(per_split) + 2) * tile + 3000) + sum;
    if (cycles >= p->cycles) continue;
    p->cycles = cycles;
    p->splits = splits;
    p->per_split = per_split;
  }
}

inline const char* Declines(const Problem& q) {
  if (const char* reason = pixels::Declines(q)) return reason;
  if (q.w.out * q.out_channels % 2 != 0) return "takes rows of dy of whole words alone";
  // So that sums of distances in shared memory stay far from 2^31.
  if (q.w.stride > 64 || q.h.stride > 64 || q.out_channels * q.taps() > 512)
    return "has too many taps";
  if (q.w.dilation * q.w.kernel > 4096 || q.h.dilation * q.h.kernel > 4096)
    return "reaches too far";
  return nullptr;
}

}  // namespace pixels_wgrad

// For element types of two bytes.
inline PixelsWgradPlan PlanPixelsWgrad(const Problem& problem,
                                       const PixelsWgradLimits& limits = {}) {
  using namespace pixels_wgrad;
  const Problem q = im2col_wgrad::ColumnAsRow(problem);
  PixelsWgradPlan best;
  best.reason = Declines(q);
  if (best.reason != nullptr) return best;
  best.reason = "its tiles exceed shared memory";
  best.cycles = std::numeric_limits<double>::infinity();

  PixelsWgradPlan base;
  base.weights = static_cast<int>(q.out_channels * q.taps());
  const int64_t chunks = q.in_channels / 8;
  for (base.in_blocks = static_cast<int>(CeilDiv(q.in_channels, kMostIn));; base.in_blocks *= 2) {
    base.chunks = static_cast<int>(CeilDiv(chunks, base.in_blocks));
    base.in = 8 * base.chunks;
    if (ChooseWarps((base.in + 15) / 16, (base.weights + 7) / 8, &base)) break;
    if (base.in == 8) {
      best.reason = "has too many weights";
      return best;
    }
  }
  base.in_blocks = static_cast<int>(CeilDiv(chunks, base.chunks));
  base.at_once = kBoxThreads / base.chunks;
  // Lanes of a load of eight pixels meet different banks.
  base.pixel = 16 * (base.chunks + 1 - base.chunks % 2);
  const int64_t run = q.w.out * q.out_channels * 2;
  base.vector = run % 16 == 0 ? 16 : run % 8 == 0 ? 8 : 4;

  int last = 0;
  for (int64_t most = limits.columns; most >= kStep; most /= 2) {
    PixelsWgradPlan p = base;
    p.w.size = RoundUp(im2col_wgrad::EvenPart(q.w.in, most), kStep);
    if (p.w.size == last) continue;
    last = p.w.size;
    p.steps_w = p.w.size / kStep;
    p.w.halo = static_cast<int>(q.w.stride * (p.w.size - 1) + q.w.dilation * (q.w.kernel - 1)) + 1;
    const int per_vector = p.vector / 2;
    p.vectors = static_cast<int>(CeilDiv(p.w.halo * q.out_channels + per_vector - 1, per_vector));
    for (int rows = 1; rows <= std::min<int64_t>(limits.rows, q.h.in); ++rows) {
      p.h.size = rows;
      p.h.halo = static_cast<int>(q.h.stride * (rows - 1) + q.h.dilation * (q.h.kernel - 1)) + 1;
      p.steps = rows * p.steps_w;
      // With the padding that its banks may need.
      SetPlanes(q, 1, 4, 8, &p);
      if (!Place(limits, &p)) break;
      Predict(q, limits, &p);
      if (p.cycles < best.cycles) best = p;
    }
  }
  if (best.reason != nullptr) return best;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (best.tiles + best.per_split > kMax || best.in_blocks * best.splits > kMax) {
    best.reason = "more than 2^31 tiles or blocks";
    return best;
  }
  LayOut(q, limits, &best);
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_WGRAD_PIXELS_PLAN_H_
