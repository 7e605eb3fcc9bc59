// How the weight gradient by TF32 products of a shifted image (cuda/kernels/im2col_wgrad.cuh) cuts
// a problem: pure C++.
//
// Of the product dw = x * dy, the rows are the weights of one input channel (output channel and
// tap), the columns input channels, and what is summed are positions of x. A block takes some rows
// and columns of one group, and sums over its share of the tiles, each some rows and columns of x
// of one image and what their taps reach of dy. Its warps share the fragments of 16 x 8; slices of
// warps share the positions where there are more warps than fragments.
//
// The plan depends on the problem alone, so that results are the same on every device.
#ifndef TRANSCONV_CORE_IM2COL_WGRAD_PLAN_H_
#define TRANSCONV_CORE_IM2COL_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/direct_wgrad_plan.h"
#include "core/geometry.h"
#include "core/im2col_box.h"
#include "core/im2col_lines.h"

namespace transconv {

// One step of the sum: eight positions of a tile, in two halves of four neighbours of a row.
struct alignas(16) Im2colStep {
  int dy, x;  // bytes of shared memory from the tile's first position
  int row, column;
};

struct Im2colWgradPlan {
  static constexpr int kWarps = kBoxThreads / 32;

  const char* reason = nullptr;
  int fragments_m = 1, fragments_n = 1;      // of a warp
  int warps_m = 1, warps_n = 1, slices = 1;  // of a block
  int out = 1, in = 1;                       // channels of a block
  int out_blocks = 1, in_blocks = 1, m = 1;  // m: weights of an input channel
  bool taps_inside = true;                   // weights in the order of dw, or channels inside
  DirectWgradAxis h, w;
  int half_row = 0, half_column = 4;  // from a step's first half to its second
  int steps_w = 1, steps = 1;         // of a row (of two if half_row), of a tile
  Im2colLines x, dy;
  // Floats of shared memory: a table of steps, of lines of x and of dy, then `boxes` for the x and
  // dy of a tile, twice.
  int x_lines_at = 0, dy_lines_at = 0, boxes_at = 0, dy_at = 0, boxes = 0;
  int shared_bytes = 0;
  int64_t blocks = 1;  // of one split
  int64_t tiles = 1, splits = 1, per_split = 1;
  double cycles = 0;  // predicted, of an H200
};

struct Im2colWgradLimits {
  int shared_bytes = 96 << 10;  // two blocks fit where a multiprocessor has most, one everywhere
  int64_t grid = 264;           // blocks that run at the same time
  int columns = 256;            // of a tile
  int most_vector = 4;          // elements of one copy
};

namespace im2col_wgrad {

constexpr int kMostFragmentsM = 4, kMostFragmentsN = 4;  // of a warp
constexpr int kMostSteps = 256;
constexpr int kSampledWeights = 32;  // of which conflicts of banks are counted
// Steps that one sum may take: the tensor cores cut off what float32 would round, 2^-25 of the sum
// in the mean at every step.
constexpr int64_t kMostSummed = 2048;
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;

// The size of even parts of at most `most`.
inline int EvenPart(int64_t size, int64_t most) {
  return static_cast<int>(CeilDiv(size, CeilDiv(size, most)));
}

// Distributes fragments over warps, so that a step reads little of shared memory; false if there
// are too many.
inline bool ChooseWarps(int fragments_m, int fragments_n, Im2colWgradPlan* p) {
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= kMostFragmentsN; n *= 2) {
    const int warps_n = (fragments_n + n - 1) / n;
    for (int m = 2; m <= kMostFragmentsM; ++m) {
      const int warps_m = (fragments_m + m - 1) / m, warps = warps_m * warps_n;
      if (warps > Im2colWgradPlan::kWarps) continue;
      const int slices = Im2colWgradPlan::kWarps / warps;
      const double idle = 1 - double{1} * warps * slices / Im2colWgradPlan::kWarps;
      const double cost = warps * (4 * m + 2 * n + 1) * (1 + idle);
      if (cost >= least) continue;
      least = cost;
      p->fragments_m = m;
      p->fragments_n = n;
      p->warps_m = warps_m;
      p->warps_n = warps_n;
      p->slices = slices;
    }
  }
  return least < std::numeric_limits<double>::infinity();
}

// Wavefronts of the first loads of dy of eight rows each, for some of the block's weights. `row`,
// `column` and `channel` are distances in shared memory.
inline int Wavefronts(const Im2colWgradPlan& p, int row, int column, int channel) {
  int sum = 0;
  for (int first = 0; first < std::min(p.m, kSampledWeights); first += 8) {
    int words[32][32], in_bank[32] = {}, most = 0;
    for (int g = 0; g < 8; ++g) {
      const int m = std::min(first + g, p.m - 1), taps = p.h.taps * p.w.taps;
      const int tap = p.taps_inside ? m % taps : m / p.out;
      const int offset = (p.taps_inside ? m / taps : m % p.out) * channel +
                         tap / p.w.taps * p.h.dilation * row +
                         tap % p.w.taps * p.w.dilation * column;
      for (int t = 0; t < 4; ++t) {
        const int word = offset + t * p.w.stride * column;
        int *const bank = words[word % 32], &count = in_bank[word % 32];
        if (std::find(bank, bank + count, word) != bank + count) continue;  // one word for both
        bank[count++] = word;
        most = std::max(most, count);
      }
    }
    sum += most;
  }
  return sum;
}

// The boxes of a tile, and the order of the weights, so that the lanes of a load meet different
// banks.
inline void LayOut(const Problem& q, const Im2colWgradLimits& limits, Im2colWgradPlan* p) {
  BoxShape x;
  x.rows = p->h.size;
  x.columns = p->w.size;
  x.channels = p->in;
  x.most_vector = limits.most_vector;
  x.aligned = true;
  x.merge = p->in < 8;
  Im2colBox box = MakeIm2colBox(q, true, x);
  if (box.form == BoxForm::kPlanes) {
    while ((box.channel + x.channel_pad * box.vector) % 8 != 4 && x.channel_pad < 8) {
      ++x.channel_pad;
    }
  } else if (box.form == BoxForm::kPixels && p->in >= 8) {
    while ((box.column + x.column_pad * box.vector) % 16 != 8 && x.column_pad < 16) ++x.column_pad;
  }
  p->x = Im2colLines(MakeIm2colBox(q, true, x));

  BoxShape dy;
  dy.rows = p->h.halo;
  dy.columns = p->w.halo;
  dy.channels = p->out;
  dy.unit_h = p->h.unit;
  dy.unit_w = p->w.unit;
  dy.most_vector = limits.most_vector;
  dy.merge = p->out < 8;
  const Im2colLines plain(MakeIm2colBox(q, false, dy));
  box = plain.box;
  const int v = box.vector, fewest = (std::min(p->m, kSampledWeights) + 7) / 8;
  const int room =
      limits.shared_bytes / 8 - 2 * (p->steps + p->x.count + plain.count) - p->x.box.size - 8;
  int least = std::numeric_limits<int>::max();
  BoxShape best = dy;
  bool best_inside = true;
  const auto consider = [&](const BoxShape& shape) {
    int column = box.column, row = box.row, channel = box.channel;
    if (box.form == BoxForm::kPixels) {
      column += shape.column_pad * v;
      row += (shape.columns * shape.column_pad + shape.row_pad) * v;
    } else {
      row += shape.row_pad * v;
      channel += (shape.row_pad * shape.rows + shape.channel_pad) * v;
    }
    const int size = box.form == BoxForm::kPlanes ? channel * shape.channels : row * shape.rows;
    if (least == fewest || (size > room && least < std::numeric_limits<int>::max())) return;
    const int wavefronts = Wavefronts(*p, row, column, channel);
    if (wavefronts >= least) return;
    least = wavefronts;
    best = shape;
    best_inside = p->taps_inside;
  };
  // Padding of pixels or rows first, then that of planes on top.
  const bool planes = box.form == BoxForm::kPlanes;
  for (const bool inside : {planes, !planes}) {
    p->taps_inside = inside;
    BoxShape shape = dy;
    for (int pad = 0; pad < (box.form == BoxForm::kPixels ? 4 : 1); ++pad) {
      shape.column_pad = pad;
      for (shape.row_pad = 0; shape.row_pad < (pad == 0 ? 32 / v : 2); ++shape.row_pad) {
        consider(shape);
      }
    }
    shape = best;
    if (!planes || best_inside != inside) shape = dy;
    for (shape.channel_pad = 1; planes && shape.channel_pad < 32 / v; ++shape.channel_pad) {
      consider(shape);
    }
  }
  p->taps_inside = best_inside;
  p->dy = Im2colLines(MakeIm2colBox(q, false, best));
}

// Splits the tiles and predicts how long they take; false if a tile does not fit.
inline bool Complete(const Problem& q, int64_t element, const Im2colWgradLimits& limits,
                     Im2colWgradPlan* p) {
  const bool planes = q.layout == Layout::kNCHW;
  p->h.halo = p->h.HaloOf(p->h.size);
  p->w.halo = p->w.HaloOf(p->w.size);
  p->steps_w = p->w.size / (4 + p->half_column);
  const int64_t steps = int64_t{p->steps_w} * (p->h.size / (1 + p->half_row));
  if (steps > kMostSteps) return false;
  p->steps = static_cast<int>(steps);
  // Shared memory of a box at most, with the padding without which it is of little use, and of its
  // lines' table.
  const auto floats = [&](int64_t rows, int64_t columns, int64_t channels, bool is_x) {
    if (planes) return channels * (rows * (columns + (is_x ? 0 : 12)) + 8);
    int64_t pitch = channels;
    if (channels >= 8) pitch = is_x ? (channels + 7) / 16 * 16 + 8 : channels + 4;
    return rows * (columns * pitch + 16);
  };
  const auto lines = [&](int64_t rows, int64_t channels) {
    return planes ? rows * channels : rows;
  };
  const int64_t boxes =
      floats(p->h.size, p->w.size, p->in, true) + floats(p->h.halo, p->w.halo, p->out, false);
  const int64_t table = steps + lines(p->h.size, p->in) + lines(p->h.halo, p->out);
  if (8 * boxes + 16 * table + 32 > limits.shared_bytes) return false;
  p->h.tiles = static_cast<int>(CeilDiv(q.h.in, p->h.size));
  p->w.tiles = static_cast<int>(CeilDiv(q.w.in, p->w.size));
  p->tiles = q.batch * p->h.tiles * p->w.tiles;

  // Cycles of a tile, by each of what may limit it; two blocks share a multiprocessor.
  const auto sectors = [&](int64_t rows, int64_t columns, int64_t unit, int64_t channels) {
    if (planes) return rows * channels * direct_wgrad::Sectors(columns, unit, element);
    if (unit == 1 && q.groups == 1) {
      return rows * direct_wgrad::Sectors(columns * channels, 1, element);
    }
    return rows * columns * direct_wgrad::Sectors(channels, 1, element);
  };
  const double copied =
      static_cast<double>(sectors(p->h.size, std::min<int64_t>(p->w.size, q.w.in), 1, p->in) +
                          sectors(p->h.halo, p->w.halo, p->w.unit, p->out));
  const double copies = static_cast<double>(boxes) / 32, turns = static_cast<double>(steps);
  const int warps = p->warps_m * p->warps_n, products = p->fragments_m * p->fragments_n;
  const int loads = 4 * p->fragments_m + 2 * p->fragments_n;
  const double memory = 32 * copied / 10, shared = 2 * (turns * warps * (loads + 1) + copies);
  const double issued = (turns * warps * (3 * loads + products + 25) + copies * 5) / 2;
  const double multiplied = 3.2 * turns * warps * products;
  const double tile = 0.8 * std::max({memory, shared, issued, multiplied}) +
                      0.2 * (memory + shared + issued + multiplied) + 400;

  const int64_t partial = 4 * q.in_channels * q.out_per_group() * q.taps();
  const int64_t most = std::clamp<int64_t>(kMaxPartialBytes / std::max<int64_t>(partial, 1), 1,
                                           std::max<int64_t>(p->tiles, 1));
  const int64_t least =
      std::clamp<int64_t>(CeilDiv(p->tiles * steps, kMostSummed * p->slices), 1, most);
  p->cycles = std::numeric_limits<double>::infinity();
  for (int64_t rounds = 1; rounds <= 3; ++rounds) {
    int64_t splits = std::clamp<int64_t>(rounds * limits.grid / p->blocks, least, most);
    const int64_t per_split = CeilDiv(std::max<int64_t>(p->tiles, 1), splits);
    splits = CeilDiv(std::max<int64_t>(p->tiles, 1), per_split);
    const double waves = static_cast<double>(CeilDiv(p->blocks * splits, limits.grid));
    const double sum = static_cast<double>(splits * partial) * 2 / 2000 + 3500;
    const double cycles = waves * (static_cast<double>(per_split) * tile + 3000) + sum;
    if (cycles >= p->cycles) continue;
    p->cycles = cycles;
    p->splits = splits;
    p->per_split = per_split;
  }
  return true;
}

inline const char* TooLarge(const Problem& q) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (const int64_t size : {q.h.in * q.w.in * q.in_channels, q.h.out * q.w.out * q.out_channels}) {
    if (size > kMax) return "an image exceeds 2^31 elements";
  }
  for (const Axis& axis : {q.h, q.w}) {
    constexpr int64_t kFar = 1 << 20;  // a tile's rows and columns are hundreds
    if (axis.stride > kFar || axis.dilation > 64 * kFar || axis.kernel > 64 * kFar ||
        axis.crop_lo > 64 * kFar || axis.crop_lo < -64 * kFar) {
      return "a stride is above 2^20 or a dilation, a kernel or a crop above 2^26";
    }
    // Where the last position's last tap reaches, a tile's padding included.
    if ((axis.in + 512) * axis.stride + axis.kernel * axis.dilation > kMax / 4) {
      return "the taps reach further than 2^29 positions";
    }
  }
  // Channels and columns of NHWC are one index.
  const int64_t reach = (q.w.in + 512) * q.w.stride + q.w.kernel * q.w.dilation;
  if (std::max((q.w.in + 512) * q.in_channels, reach * q.out_channels) > kMax &&
      q.layout == Layout::kNHWC) {
    return "a row with what its taps reach exceeds 2^31 elements";
  }
  if (q.groups > kMax / 4 || q.batch > kMax / 4) return "more than 2^29 images or groups";
  return nullptr;
}

// A column is a row: the same memory with the axes exchanged.
inline Problem ColumnAsRow(Problem q) {
  if (q.w.in == 1 && q.w.out == 1 && q.w.kernel == 1) std::swap(q.h, q.w);
  return q;
}

}  // namespace im2col_wgrad

// `element` is the element's size in bytes.
inline Im2colWgradPlan PlanIm2colWgrad(const Problem& problem, int64_t element,
                                       const Im2colWgradLimits& limits = {}) {
  using namespace im2col_wgrad;
  const Problem q = ColumnAsRow(problem);
  Im2colWgradPlan best;
  best.reason = TooLarge(q);
  if (best.reason != nullptr) return best;
  best.reason = "one tap of some positions exceeds shared memory";
  best.cycles = std::numeric_limits<double>::infinity();
  const int64_t in = q.in_per_group(), out = q.out_per_group();

  Im2colWgradPlan base;
  base.taps_inside = q.layout == Layout::kNCHW;
  if (q.w.in <= 4) {
    base.half_row = 1;
    base.half_column = 0;
  }
  const int width = 4 + base.half_column, height = 1 + base.half_row;
  const int64_t columns = CeilDiv(q.w.in, width) * width;
  const int64_t rows = CeilDiv(q.h.in, height) * height;

  // The least cycles of a tile that fits, or infinity.
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto consider_tiles = [&](Im2colWgradPlan p) {
    double least = kInfinity;
    int last = 0;
    for (const int64_t most : {256, 128, 64, 48, 32, 24, 16, 8, 4}) {
      const int64_t c = std::min<int64_t>({most, columns, limits.columns});
      p.w.size = static_cast<int>(CeilDiv(EvenPart(columns, c), width) * width);
      if (p.w.size == last) continue;
      last = p.w.size;
      int last_rows = 0, fitting = 0;
      for (const int64_t r : {64, 32, 24, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1}) {
        p.h.size = static_cast<int>(CeilDiv(EvenPart(rows, r), height) * height);
        if (p.h.size == last_rows || fitting == 3) continue;
        last_rows = p.h.size;
        if (!Complete(q, element, limits, &p)) continue;
        ++fitting;
        least = std::min(least, p.cycles);
        if (p.cycles < best.cycles) best = p;
      }
    }
    return least;
  };
  int64_t taps_h = q.h.kernel, taps_w = q.w.kernel;
  for (;;) {
    direct_wgrad::SetTaps(q.h, static_cast<int>(taps_h), &base.h);
    direct_wgrad::SetTaps(q.w, static_cast<int>(taps_w), &base.w);
    int last_out = 0;
    for (int64_t out_parts = 1; out_parts < 2 * out; out_parts *= 2) {
      Im2colWgradPlan p = base;
      p.out = EvenPart(out, CeilDiv(out, std::min(out_parts, out)));
      if (p.out == last_out) continue;
      last_out = p.out;
      if (taps_h * taps_w * p.out > 16 * kMostFragmentsM * Im2colWgradPlan::kWarps) continue;
      p.m = static_cast<int>(taps_h * taps_w * p.out);
      p.out_blocks = static_cast<int>(CeilDiv(out, p.out));
      int last_in = 0;
      double least = kInfinity;
      for (const int64_t most : {64, 32, 16, 8}) {
        p.in = EvenPart(in, most);
        // Fewer columns only where there is no other way: every block reads the rows' dy anew.
        if (p.in == last_in || least < kInfinity) continue;
        last_in = p.in;
        if (!ChooseWarps((p.m + 15) / 16, (p.in + 7) / 8, &p)) continue;
        p.in_blocks = static_cast<int>(CeilDiv(in, p.in));
        p.blocks = q.groups * p.out_blocks * p.in_blocks * p.h.tap_blocks * int64_t{p.w.tap_blocks};
        least = consider_tiles(p);
      }
      if (least < kInfinity && least > 1.2 * best.cycles) break;  // fewer rows still are no better
    }
    if (best.reason == nullptr || (taps_h == 1 && taps_w == 1)) break;
    // Of the taps, half of those that reach further.
    int64_t& taps =
        taps_w == 1 || (taps_h > 1 && base.h.dilation * taps_h > base.w.dilation * taps_w) ? taps_h
                                                                                           : taps_w;
    taps = (taps + 1) / 2;
  }
  if (best.reason != nullptr) return best;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (best.tiles + best.per_split > kMax || best.blocks * best.splits > kMax) {
    best.reason = "more than 2^31 tiles or blocks";
    return best;
  }
  LayOut(q, limits, &best);
  const auto whole = [](int floats) { return (floats + 3) / 4 * 4; };
  best.x_lines_at = 4 * best.steps;
  best.dy_lines_at = best.x_lines_at + 4 * best.x.count;
  best.boxes_at = best.dy_lines_at + 4 * best.dy.count;
  best.dy_at = whole(best.x.box.size);
  best.boxes = best.dy_at + whole(best.dy.box.size);
  best.shared_bytes = 4 * (best.boxes_at + 2 * best.boxes);
  if (best.shared_bytes > limits.shared_bytes) {
    best.reason = "its tiles with their padding exceed shared memory";
  }
  // At the end slices leave their sums there.
  const int sums = (best.slices - 1) * best.warps_m * best.warps_n * best.fragments_m *
                   best.fragments_n * 4 * 32;
  best.shared_bytes = std::max(best.shared_bytes, 4 * sums);
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_WGRAD_PLAN_H_
