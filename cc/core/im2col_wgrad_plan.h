// How the weight gradient by TF32 products of a shifted image (cuda/kernels/im2col_wgrad.cuh) cuts
// a problem: pure C++.
//
// Of the product dw = x * dy, the rows are the weights of one input channel (output channel and
// tap), the columns input channels, and what is summed are positions of x. A block takes some rows
// and columns of one group, and sums over its share of the tiles, each some rows and columns of x
// of one image and what their taps reach of dy. Its warps share the fragments of 16 x 8; slices of
// warps share the positions where there are more warps than fragments.
//
// The plan depends on the problem alone, so that results are the same on every device, and is made
// at every launch: a few microseconds are all it may take.
#ifndef TRANSCONV_CORE_IM2COL_WGRAD_PLAN_H_
#define TRANSCONV_CORE_IM2COL_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/direct_wgrad_plan.h"
#include "core/geometry.h"
#include "core/im2col_box.h"

namespace transconv {

// One step of the sum: eight positions of a tile, in two halves of four neighbours of a row.
struct alignas(16) Im2colStep {
  int dy, x;  // elements of shared memory from the tile's first position
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
  Im2colBox x, dy;
  int boxes_at = 0, dy_at = 0, boxes = 0;  // floats; x and dy of one tile make `boxes`
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
// Steps that one sum may take: the tensor cores cut off what float32 would round, 2^-25 of the sum
// in the mean at every step.
constexpr int64_t kMostSummed = 4096;
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;

// The size of even parts of at most `most`.
inline int EvenPart(int64_t size, int64_t most) {
  return static_cast<int>(CeilDiv(size, CeilDiv(size, most)));
}

// Distributes fragments over warps; returns what a step reads of shared memory, in wavefronts, or 0
// if there are too many.
inline double ChooseWarps(int fragments_m, int fragments_n, Im2colWgradPlan* p) {
  double least = 0;
  for (int n = 1; n <= kMostFragmentsN; n *= 2) {
    const int warps_n = (fragments_n + n - 1) / n;
    for (int m = 2; m <= kMostFragmentsM; ++m) {
      const int warps_m = (fragments_m + m - 1) / m, warps = warps_m * warps_n;
      if (warps > Im2colWgradPlan::kWarps) continue;
      const int slices = Im2colWgradPlan::kWarps / warps;
      const double idle = 1 - double{1} * warps * slices / Im2colWgradPlan::kWarps;
      const double cost = warps * (4 * m + 2 * n + 1) * (1 + idle);
      if (least != 0 && cost >= least) continue;
      least = cost;
      p->fragments_m = m;
      p->fragments_n = n;
      p->warps_m = warps_m;
      p->warps_n = warps_n;
      p->slices = slices;
    }
  }
  return least == 0 ? 0 : p->warps_m * p->warps_n * (4 * p->fragments_m + 2 * p->fragments_n + 1);
}

// Wavefronts of the first loads of eight rows of a fragment, for some of the block's weights.
// `row`, `column` and `channel` are distances in shared memory.
inline int Wavefronts(const Im2colWgradPlan& p, int row, int column, int channel) {
  constexpr int kWeights = 64;
  int sum = 0;
  for (int first = 0; first < std::min(p.m, kWeights); first += 8) {
    int words[32], count = 0, most = 0;
    int in_bank[32] = {};
    for (int g = 0; g < 8; ++g) {
      const int m = std::min(first + g, p.m - 1), taps = p.h.taps * p.w.taps;
      const int tap = p.taps_inside ? m % taps : m / p.out;
      const int offset = (p.taps_inside ? m / taps : m % p.out) * channel +
                         tap / p.w.taps * p.h.dilation * row +
                         tap % p.w.taps * p.w.dilation * column;
      for (int t = 0; t < 4; ++t) {
        const int word = offset + t * p.w.stride * column;
        if (std::find(words, words + count, word) != words + count) continue;  // the same word
        words[count++] = word;
        most = std::max(most, ++in_bank[word % 32]);
      }
    }
    sum += most;
  }
  return sum;
}

// The boxes of a tile, laid out so that the lanes of a load meet different banks.
inline void LayOut(const Problem& q, const Im2colWgradLimits& limits, Im2colWgradPlan* p) {
  BoxShape x;
  x.rows = p->h.size;
  x.columns = p->w.size;
  x.channels = p->in;
  x.most_vector = limits.most_vector;
  x.aligned = true;
  x.merge = p->in < 8;
  p->x = MakeIm2colBox(q, true, x);
  if (p->x.form == BoxForm::kPlanes) {
    while ((p->x.channel + x.channel_pad * p->x.vector) % 8 != 4 && x.channel_pad < 8) {
      ++x.channel_pad;
    }
  } else if (p->x.form == BoxForm::kPixels && p->in >= 8) {
    while ((p->x.column + x.column_pad * p->x.vector) % 16 != 8 && x.column_pad < 16) {
      ++x.column_pad;
    }
  }
  p->x = MakeIm2colBox(q, true, x);

  BoxShape dy;
  dy.rows = p->h.halo;
  dy.columns = p->w.halo;
  dy.channels = p->out;
  dy.unit_h = p->h.unit;
  dy.unit_w = p->w.unit;
  dy.most_vector = limits.most_vector;
  dy.merge = p->out < 8;
  const Im2colBox plain = MakeIm2colBox(q, false, dy);
  const int v = plain.vector;
  const int lines = plain.form == BoxForm::kPlanes ? dy.channels * dy.rows : dy.rows;
  int room = limits.shared_bytes / 4 - 2 * (p->x.size + plain.size) - 4 * p->steps - 8;
  room /= 2;
  int least = std::numeric_limits<int>::max();
  const auto consider = [&](const BoxShape& shape) {
    int column = plain.column, row = plain.row + shape.row_pad * v, channel = plain.channel;
    if (plain.form == BoxForm::kPixels) {
      column += shape.column_pad * v;
      row += shape.columns * shape.column_pad * v;
    } else if (plain.form == BoxForm::kPlanes) {
      channel += (shape.row_pad * shape.rows + shape.channel_pad) * v;
    }
    const int wavefronts = Wavefronts(*p, row, column, channel);
    if (wavefronts < least) {
      least = wavefronts;
      dy = shape;
    }
  };
  consider(dy);
  if (plain.form == BoxForm::kPixels) {
    BoxShape shape = dy;
    for (int pad = 1; pad < 4 && pad * v * shape.columns * lines <= room; ++pad) {
      shape.column_pad = pad;
      consider(shape);
    }
    room -= dy.column_pad * v * dy.columns * lines;
  }
  BoxShape shape = dy;
  for (int pad = 1; pad * v < 32 && pad <= 10 && pad * v * lines <= room; ++pad) {
    shape.row_pad = pad;
    consider(shape);
  }
  room -= dy.row_pad * v * lines;
  if (plain.form == BoxForm::kPlanes) {
    shape = dy;
    for (int pad = 1; pad * v < 32 && pad <= 10 && pad * v * dy.channels <= room; ++pad) {
      shape.channel_pad = pad;
      consider(shape);
    }
  }
  p->dy = MakeIm2colBox(q, false, dy);
}

// Splits the tiles and predicts how long they take; false if a tile does not fit.
inline bool Complete(const Problem& q, int64_t element, double wavefronts,
                     const Im2colWgradLimits& limits, Im2colWgradPlan* p) {
  const bool planes = q.layout == Layout::kNCHW;
  const int rows_of_step = 1 + p->half_row;
  p->h.halo = p->h.HaloOf(p->h.size);
  p->w.halo = p->w.HaloOf(p->w.size);
  p->steps_w = p->w.size / (4 + p->half_column);
  const int64_t steps = int64_t{p->steps_w} * (p->h.size / rows_of_step);
  if (steps > kMostSteps) return false;
  p->steps = static_cast<int>(steps);
  // Shared memory with its padding, at most.
  const auto floats = [&](int64_t rows, int64_t columns, int64_t channels, int64_t shift) {
    if (planes) return channels * (rows * (columns + shift) + 8);
    const int64_t pitch = channels < 8 ? channels + 3 : (channels + 7) / 16 * 16 + 8;
    return rows * (columns * pitch + 4);
  };
  const int64_t boxes =
      floats(p->h.size, p->w.size, p->in, 0) + floats(p->h.halo, p->w.halo, p->out, 6);
  if (4 * (2 * boxes + 4 * steps + 8) > limits.shared_bytes) return false;
  p->h.tiles = static_cast<int>(CeilDiv(q.h.in, p->h.size));
  p->w.tiles = static_cast<int>(CeilDiv(q.w.in, p->w.size));
  p->tiles = q.batch * p->h.tiles * p->w.tiles;

  // Cycles of a tile: two blocks share a multiprocessor.
  constexpr double kBytes = 10, kWavefronts = 0.5, kIssued = 2;
  const auto sectors = [&](int64_t rows, int64_t columns, int64_t unit, int64_t channels) {
    if (planes) return rows * channels * direct_wgrad::Sectors(columns, unit, element);
    if (unit == 1 && q.groups == 1) {
      return rows * direct_wgrad::Sectors(columns * channels, 1, element);
    }
    return rows * columns * direct_wgrad::Sectors(channels, 1, element);
  };
  const int64_t copied = sectors(p->h.size, std::min<int64_t>(p->w.size, q.w.in), 1, p->in) +
                         sectors(p->h.halo, p->w.halo, p->w.unit, p->out);
  const double memory = static_cast<double>(copied * 32) / kBytes;
  const double shared = static_cast<double>(steps) * wavefronts / kWavefronts;
  const double issued = (static_cast<double>(steps) * wavefronts * 4 +
                         static_cast<double>(boxes) / 32 * 25 / (planes ? 2 : 3)) /
                        kIssued;
  const double tile = std::max({memory, shared, issued}) + 0.2 * (memory + shared + issued) + 500;

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
  if (q.groups > kMax / 4 || q.batch > kMax / 4) return "more than 2^29 images or groups";
  return nullptr;
}

}  // namespace im2col_wgrad

// `element` is the element's size in bytes.
inline Im2colWgradPlan PlanIm2colWgrad(Problem q, int64_t element,
                                       const Im2colWgradLimits& limits = {}) {
  using namespace im2col_wgrad;
  Im2colWgradPlan best;
  best.reason = TooLarge(q);
  if (best.reason != nullptr) return best;
  // A column is a row: the same memory with the axes exchanged.
  if (q.w.in == 1 && q.w.out == 1 && q.w.kernel == 1) std::swap(q.h, q.w);
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

  // Whether any tile fits.
  const auto consider_tiles = [&](Im2colWgradPlan p, double wavefronts) {
    int64_t last = 0;
    bool fits = false;
    for (int64_t c : {256, 128, 64, 48, 32, 24, 16, 8, 4}) {
      c = std::min<int64_t>({c, columns, limits.columns});
      c = CeilDiv(EvenPart(columns, c), width) * width;
      if (c == last) continue;
      last = c;
      p.w.size = static_cast<int>(c);
      int last_rows = 0;
      for (int64_t r : {64, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2, 1}) {
        p.h.size = static_cast<int>(CeilDiv(EvenPart(rows, r), height) * height);
        if (p.h.size == last_rows) continue;
        last_rows = p.h.size;
        if (!Complete(q, element, wavefronts, limits, &p)) continue;
        fits = true;
        if (p.cycles < best.cycles) best = p;
      }
    }
    return fits;
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
      bool fits = false;
      for (const int64_t most : {64, 32, 16, 8}) {
        p.in = EvenPart(in, most);
        // Fewer columns only where there is no other way: every block reads the rows' dy anew.
        if (p.in == last_in || fits) continue;
        last_in = p.in;
        const double wavefronts = ChooseWarps((p.m + 15) / 16, (p.in + 7) / 8, &p);
        if (wavefronts == 0) continue;
        p.in_blocks = static_cast<int>(CeilDiv(in, p.in));
        p.blocks = q.groups * p.out_blocks * p.in_blocks * p.h.tap_blocks * int64_t{p.w.tap_blocks};
        fits = consider_tiles(p, wavefronts);
      }
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
  best.boxes_at = 4 * best.steps;
  best.dy_at = whole(best.x.size);
  best.boxes = best.dy_at + whole(best.dy.size);
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
