// Tiles of the direct kernel (cuda/kernels/direct.cuh): pure C++, tested without a GPU.
//
// A pass writes `target` channels m from `source` channels c: forward y from x, the gradient of x
// from dy. A block has a strip of target columns in a band of target rows of one group of one
// image, for some of the channels m. A thread's item is `rm` channels at four positions that share
// their taps and weights: four rows of one residue below each other or, where an image has fewer
// rows, four columns one strip apart. Shared memory holds, for some of the channels c at a time,
//
//     tile      [c][row plane][row][column plane][column]     of the source, zero outside it
//     weights   [tap row][tap column][c][m in groups of rm]
//
// Forward: target o takes tap k from source (o + lo - d k) / s where that division has no rest.
// With g = gcd(s, d), that is the tap k = first and every s/g-th after it, each d/g sources before
// the last. One plane each way. grad_input: target i takes tap k from source s i + d k - lo. Taps
// k = p + (s/g) j of one p share a plane, every s-th source from d p - lo on, in which the tap
// reads d/g cells further with every j: neighbouring targets read neighbouring cells, and sources
// that no tap reads are not loaded.
//
// Where items are too few for a card, `slices` of a block's threads share them: each takes some tap
// columns and channels c of all items, so that a block is small and its sums are short.
#ifndef TRANSCONV_CORE_DIRECT_PLAN_H_
#define TRANSCONV_CORE_DIRECT_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "core/divider.h"
#include "core/geometry.h"

namespace transconv {

constexpr int kDirectPositions = 4;       // of a thread's item
constexpr int kDirectThreads = 256;       // of a block, at most
constexpr int kDirectSlicedChannels = 4;  // of an item that slices share, at most
constexpr int kDirectMostStride = 1024;   // keeps products of residues in 32 bits

// Channels of an item lie side by side, so that they are read as vectors.
TRANSCONV_HOST_DEVICE constexpr int DirectPadded(int rm) { return rm == 3 ? 4 : rm; }

struct DirectAxis {
  int source = 0, target = 0, kernel = 0, stride = 1, dilation = 1, crop = 0;
  int step = 1, hop = 0;  // s/g and d/g
  // Forward: `lead` is the crop made positive by `shift` sources; the inverse of d/g modulo s/g.
  int lead = 0, shift = 0, inverse = 0;
  Divider by_stride, by_step, by_gcd;

  DirectAxis() = default;
  DirectAxis(const Axis& axis, Pass pass)
      : source(static_cast<int>(pass == Pass::kForward ? axis.in : axis.out)),
        target(static_cast<int>(pass == Pass::kForward ? axis.out : axis.in)),
        kernel(static_cast<int>(axis.kernel)),
        stride(static_cast<int>(axis.stride)),
        dilation(static_cast<int>(axis.dilation)),
        crop(static_cast<int>(axis.crop_lo)) {
    const int gcd = std::gcd(stride, dilation);
    step = stride / gcd;
    hop = dilation / gcd;
    shift = static_cast<int>(CeilDiv(reach() - crop, stride));
    lead = crop + stride * shift;
    while (step > 1 && int64_t{hop} * inverse % step != 1) ++inverse;
    by_stride = Divider(stride);
    by_step = Divider(step);
    by_gcd = Divider(gcd);
  }

  TRANSCONV_HOST_DEVICE int reach() const { return dilation * (kernel - 1); }
  // How many of `taps` taps share the plane of tap p, p < s/g.
  TRANSCONV_HOST_DEVICE int InPlane(int taps, int p) const {
    return p < taps ? static_cast<int>(by_step.Quotient(static_cast<uint32_t>(taps - 1 - p))) + 1
                    : 0;
  }

  struct Taps {
    int first, count, source;  // the source that the first tap reads
  };
  // Forward: the taps of a target.
  TRANSCONV_HOST_DEVICE Taps TapsOf(int o) const {
    int q = o + lead;
    if (by_gcd.Split(q) != 0) return {0, 0, 0};
    int product = by_step.Split(q) * inverse;
    const int first = by_step.Split(product);
    if (first >= kernel) return {0, 0, 0};
    const uint32_t at = static_cast<uint32_t>(o + lead - dilation * first);
    return {first, InPlane(kernel, first), static_cast<int>(by_stride.Quotient(at)) - shift};
  }
  // Forward: the first source that a target o or one after it reads.
  TRANSCONV_HOST_DEVICE int FirstSource(int o) const {
    const uint32_t at = static_cast<uint32_t>(o + lead - reach() + stride - 1);
    return static_cast<int>(by_stride.Quotient(at)) - shift;
  }
};

struct DirectStrides {  // in elements
  int64_t batch = 0, channel = 0, row = 0, column = 0;
};

// What a plan may use; tests make it small so that small problems have many tiles.
struct DirectLimits {
  int threads = kDirectThreads;
  int strip = 128;               // columns
  int shared_bytes = 40 * 1024;  // five blocks on a multiprocessor of 228 KiB
  int most_bytes = 48 * 1024;    // where less does not hold one channel
  int least_slices = 1, most_slices = kDirectThreads;
};

struct DirectPlan {
  const char* reason = nullptr;  // why there is none

  DirectAxis h, w;
  DirectStrides image, target;                           // of the tensors that are read and written
  int m = 0, c = 0;                                      // channels a group
  int64_t weight_m = 0, weight_c = 0, weight_group = 0;  // strides of the weights
  int rm = 1;
  bool forward = true, channels_last = false;

  // Positions of an item: the distance in target rows and columns, and in cells of the tile.
  int hop_row = 0, hop_column = 0, hop_cell = 0;
  // The block: columns of items, rows of items of a residue, groups of rm channels, and whether all
  // residues of a row are its (else one; in the gradient of x there is but one).
  int strip = 0, row_items = 0, m_groups = 0, residues = 1;
  bool all_residues = false;
  int band_rows = 0, strip_columns = 0;  // targets a block; rows of one residue
  int items = 0, threads = 0;

  int planes_h = 1, planes_w = 1, rows = 0, columns = 0;  // of the tile
  int row_pitch = 0, channel_pitch = 0, tap_pitch = 0;    // cells
  int chunk_c = 0, chunk_k = 0, chunks = 0;  // channels and tap rows in shared memory at a time
  int tap_rows = 0;                          // of the weights there
  int tile_cells = 0, weight_cells = 0, row_entries = 0;
  int load_lanes = 1;  // threads that load one line together
  int load_lines = 1;  // lines that are loaded at a time
  // Threads that share an item: each takes every slices_w-th tap column and slices_c-th channel.
  int slices_w = 1, slices_c = 1;
  int hop_channel_cell = 0, hop_channel_weight = 0;  // from one channel of a slice to its next
  int shared_bytes = 0;
  int64_t blocks = 0;

  Divider by_strip, by_row_items, by_m_groups;                       // items
  Divider by_m_blocks, by_strips, by_residues, by_bands, by_groups;  // blocks
  Divider by_rows, by_columns, by_planes_h, by_planes_w;             // the tile
  Divider by_load_taps, by_kernel_w, by_load_m, by_load_lanes;       // the weights, a line
  Divider by_items, by_slices_w, by_slices_c;                        // slices

  TRANSCONV_HOST_DEVICE int slices() const { return slices_w * slices_c; }
};

// One block's place.
struct DirectBlock {
  int m, column, row, group, image;  // the first of each
  TRANSCONV_HOST_DEVICE DirectBlock(const DirectPlan& p, int index) {
    m = p.by_m_blocks.Split(index) * p.m_groups * p.rm;
    column = p.by_strips.Split(index) * p.strip_columns;
    const int residue = p.by_residues.Split(index);  // 0 where a block has all
    row = p.by_bands.Split(index) * p.band_rows * (p.forward ? p.h.stride : 1) + residue;
    group = p.by_groups.Split(index);
    image = index;
  }
};

namespace direct {

inline int64_t EvenPart(int64_t size, int64_t most) {
  return CeilDiv(size, CeilDiv(size, std::max<int64_t>(most, 1)));
}

// Channels of an item: little padding, and weights and cells that serve many products.
inline int ItemChannels(int64_t m, int sum_bytes) {
  int best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (const int rm : {1, 2, 3, 4, 8}) {
    if (rm == 8 && sum_bytes > 4) continue;  // registers
    const double cost = static_cast<double>(CeilDiv(m, rm)) * (rm + 1.5);
    if (cost < least) {
      least = cost;
      best = rm;
    }
  }
  return best;
}

// Tap columns of a result, at most.
inline int64_t TapColumns(const DirectPlan& p) {
  return p.forward ? p.w.InPlane(p.w.kernel, 0) : p.w.kernel;
}

// How many blocks there are each way for one group of one image.
struct DirectGrid {
  int64_t m_blocks, strips, residues, bands;
  explicit DirectGrid(const DirectPlan& p)
      : m_blocks(CeilDiv(p.m, p.m_groups * p.rm)),
        strips(CeilDiv(p.w.target, p.strip_columns)),
        residues(p.all_residues ? 1 : p.residues),
        bands(CeilDiv(p.forward ? CeilDiv(p.h.target, p.h.stride) : p.h.target, p.band_rows)) {}
};

// Cycles of a launch, where a card is full of threads and where it is not.
struct Cost {
  double many, few;
};

// Fills in what follows from the block's shape, and says how many cycles a launch takes, roughly,
// on a card of a fixed size: plans are the same everywhere. Infinite where it does not fit.
inline Cost Complete(DirectPlan* plan, const Problem& q, int sum_bytes, bool along,
                     const DirectLimits& limits) {
  DirectPlan& p = *plan;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr Cost kNever = {kInfinity, kInfinity};
  const int padded = DirectPadded(p.rm);
  p.band_rows = p.row_items * (along ? 1 : kDirectPositions);
  p.strip_columns = p.strip * (along ? kDirectPositions : 1);
  p.hop_row = along ? 0 : (p.forward ? p.h.stride : 1);
  p.hop_column = along ? p.strip : 0;
  p.row_entries = p.row_items * (p.all_residues ? p.residues : 1);
  const int64_t items = int64_t{p.strip} * p.row_entries * p.m_groups;
  const bool sliced = p.slices() > 1;
  if (sliced ? items * p.slices() > limits.threads : items > 8 * limits.threads) return kNever;
  p.items = static_cast<int>(items);
  if (p.threads == 0) {
    p.threads =
        static_cast<int>(std::min<int64_t>(CeilDiv(items * p.slices(), 32) * 32, limits.threads));
  } else if (items > p.threads / 2) {
    return kNever;  // threads beyond the items only load
  }

  // A halving of the tap rows at a time; forward needs all that its residues have.
  int64_t channel = 0, per_channel = 0, fixed = 0, cells = 0;
  for (p.chunk_k = p.h.kernel;; p.chunk_k = (p.chunk_k + 1) / 2) {
    int64_t rows, columns;
    if (p.forward) {
      const int64_t last = p.all_residues ? int64_t{p.h.stride} * p.band_rows - 1
                                          : int64_t{p.h.stride} * (p.band_rows - 1);
      rows = (last + p.h.reach()) / p.h.stride + 1;
      columns = (p.strip_columns - 1 + p.w.reach()) / p.w.stride + 1;
      p.tap_rows = p.all_residues ? p.h.kernel : (p.h.kernel + p.h.step - 1) / p.h.step;
    } else {
      p.planes_h = std::min(p.h.step, p.chunk_k);
      p.planes_w = std::min(p.w.step, p.w.kernel);
      rows = p.band_rows + int64_t{p.h.hop} * (p.h.InPlane(p.chunk_k, 0) - 1);
      columns = p.strip_columns + int64_t{p.w.hop} * (p.w.InPlane(p.w.kernel, 0) - 1);
      p.tap_rows = p.chunk_k;
    }
    const int64_t taps = int64_t{p.tap_rows} * p.w.kernel;
    p.rows = static_cast<int>(std::min<int64_t>(rows, 1 << 20));  // too many in any case
    p.columns = static_cast<int>(std::min<int64_t>(columns, 1 << 20));
    channel = int64_t{p.rows} * p.columns * p.planes_h * p.planes_w;
    if (p.channels_last) channel |= 1;  // neighbouring channels go to different banks
    per_channel = channel + taps * p.m_groups * padded;
    fixed = taps * padded + 16 + 16 / sum_bytes * (p.strip + p.row_entries);  // with tables
    cells = limits.shared_bytes / sum_bytes - fixed;
    if (cells < per_channel) cells = limits.most_bytes / sum_bytes - fixed;
    if (cells >= per_channel) break;
    if (p.forward || p.chunk_k == 1) return kNever;
  }
  p.chunk_c = static_cast<int>(EvenPart(p.c, cells / per_channel));
  const int64_t k_chunks = p.forward ? 1 : CeilDiv(p.h.kernel, p.chunk_k);
  const int64_t c_chunks = CeilDiv(p.c, p.chunk_c);
  p.chunks = static_cast<int>(std::min<int64_t>(k_chunks * c_chunks, 1 << 30));
  p.row_pitch = p.planes_w * p.columns;
  p.channel_pitch = static_cast<int>(channel);
  p.hop_channel_cell = p.channel_pitch * p.slices_c;
  p.hop_channel_weight = p.m_groups * padded * p.slices_c;
  p.hop_cell = along ? p.strip / (p.forward ? p.w.stride : 1) : p.row_pitch;
  // An odd number of vectors a tap: taps that are stored side by side hit different banks.
  p.tap_pitch = (p.chunk_c * p.m_groups | 1) * padded;
  p.tile_cells = (p.chunk_c * p.channel_pitch + 3) / 4 * 4;
  p.weight_cells = (p.tap_rows * p.w.kernel * p.tap_pitch + 3) / 4 * 4;
  if (sliced) {  // their sums take the place of the tile and the weights
    const int sums = p.items * p.slices() * p.rm * kDirectPositions;
    p.weight_cells = std::max(p.weight_cells, (sums - p.tile_cells + 3) / 4 * 4);
  }
  p.shared_bytes = (p.tile_cells + p.weight_cells) * sum_bytes + 16 * (p.strip + p.row_entries);

  const DirectGrid grid(p);
  const double blocks = static_cast<double>(grid.m_blocks) * static_cast<double>(grid.strips) *
                        static_cast<double>(grid.residues * grid.bands * q.groups) *
                        static_cast<double>(q.batch);
  if (!(blocks < 2147483647.0)) return kNever;
  p.blocks = grid.m_blocks * grid.strips * grid.residues * grid.bands * q.groups * q.batch;

  // Cycles of a multiprocessor for one block, by the instructions that it issues, and by how long
  // a block waits for its loads where few others are there to fill the time.
  const double line = p.channels_last ? p.chunk_c : p.row_pitch;
  const double lines = static_cast<double>(channel) * p.chunk_c / line;
  // How many loads of a thread follow each other; four are on their way at a time, but the last
  // ones of a line.
  const auto trips_of = [](double length, int threads) {
    const int64_t passes = CeilDiv(static_cast<int64_t>(length), threads);
    return static_cast<double>(passes / 4 + passes % 4);
  };
  double load = kInfinity, least = kInfinity, line_trips = 0;
  for (int lanes = p.channels_last ? 1 : 8; lanes <= 32; lanes *= 2) {
    // Few lanes a line read many lines of the cache at once.
    const double passes = static_cast<double>(CeilDiv(static_cast<int64_t>(line), lanes));
    const double cost = p.channels_last ? (passes * 12 + 45) * lanes * lines
                                        : (passes * (11 + 32 / lanes) + 30) * lanes * lines;
    // Where there are few lines, more threads share one.
    int more = std::max(static_cast<int>(p.threads / (lanes * lines)), 1);
    while (p.threads % (more * lanes) != 0) --more;
    const double waits =
        static_cast<double>(CeilDiv(static_cast<int64_t>(lines) * more * lanes, p.threads)) *
        trips_of(line, more * lanes);
    // Slices are for few blocks, which wait for their loads rather than for each other.
    if ((sliced ? waits : cost) < least) {
      least = sliced ? waits : cost;
      load = cost;
      line_trips = waits;
      p.load_lanes = more * lanes;
    }
  }
  p.load_lines = p.threads / p.load_lanes;
  const double loaded_weights =
      static_cast<double>(p.tap_rows) * p.w.kernel * p.m_groups * p.rm * p.chunk_c;
  load += 40 * loaded_weights + 30 * p.threads;
  const double rounds = static_cast<double>(CeilDiv(p.items, p.threads));
  const double loads = p.chunks > 1 ? rounds * p.chunks : 1;
  const double tap_rows =
      p.forward ? static_cast<double>(p.h.kernel) / p.h.stride : static_cast<double>(p.h.kernel);
  const double tap_columns =
      static_cast<double>(CeilDiv(TapColumns(p), static_cast<int64_t>(p.slices_w)));
  const double taps = tap_rows * tap_columns;
  const double channels =
      std::min<double>(p.c, static_cast<double>(c_chunks * CeilDiv(p.chunk_c, p.slices_c)));
  const double products = kDirectPositions * (p.rm + 1.5) + (padded > 4 ? 6 : 4);
  double item = 60 + taps * (10 + channels * products) + 5.0 * kDirectPositions * p.rm;
  // How long one thread needs, where others hide most of what it waits for, and where they do not:
  // then, as measured, 70 cycles a channel of a tap, or its multiply-adds where they are many, and
  // 200 for a loop over channels, or over tap rows where a slice has but one channel.
  const double hidden = 4 * item;
  const double run =
      sliced && p.chunk_c <= p.slices_c ? std::max(p.planes_h, p.h.InPlane(p.chunk_k, 0)) : 1;
  const double step = std::max(70.0, 2 * products);
  double chain = 240 + taps * (channels * step + static_cast<double>(c_chunks) * 200 / run) +
                 20.0 * kDirectPositions * p.rm;
  if (sliced) {
    // Each sum is stored; then a slice adds up some of them.
    const double values = kDirectPositions * p.rm;
    const double sums = static_cast<double>(CeilDiv(kDirectPositions * p.rm, p.slices()));
    item += 20 + 2 * values + sums * (20 + 2.0 * p.slices());
    chain += 300 + 8 * values + sums * (100 + 12.0 * p.slices());
  }
  const double tables = 100.0 * (p.strip + p.row_entries);
  // A strip's ends are sectors that its neighbours write, too.
  const double ends = 1.0 * p.band_rows * (p.all_residues ? p.residues : 1) * p.m_groups * p.rm;
  const int threads_of_items = (p.items * p.slices() + 31) / 32 * 32;
  const double issued = ends + (loads * load + tables + threads_of_items * item) / 128;
  const double trips = (lines * line + 2 * loaded_weights) / (4 * p.threads);
  const double few_trips = line_trips + trips_of(loaded_weights, p.threads);
  const double waited = 1000 + loads * (600 + 500 * trips) + rounds * hidden;
  const double few_waited = 1000 + loads * (600 + 500 * few_trips) + rounds * chain;
  // What is read and written, at 24 bytes a cycle; it hides behind the instructions in part.
  const double moved =
      (loads * lines * line + 1.0 * p.items * kDirectPositions * p.rm) * sum_bytes / 24;
  constexpr int kMultiprocessors = 132;
  const int registers = (48 + (sliced ? 8 : 0) + p.rm * (2 * sum_bytes - 4) + 7) / 8 * 8;
  const int resident = std::min({227 * 1024 / (p.shared_bytes + 1024), 2048 / p.threads,
                                 65536 / (registers * p.threads), 32});
  const double share = std::max(blocks / kMultiprocessors, 1.0);
  const double together = std::clamp(blocks / kMultiprocessors, 1.0, std::max(resident, 1) * 1.0);
  const double busy = std::max(issued + moved / 4, moved);
  return {share * std::max(busy, waited / together), share * std::max(busy, few_waited / together)};
}

// What the kernel divides by, of a complete plan.
inline void SetDividers(DirectPlan* plan, int64_t groups) {
  DirectPlan& p = *plan;
  const DirectGrid grid(p);
  p.by_strip = Divider(p.strip);
  p.by_row_items = Divider(p.row_items);
  p.by_m_groups = Divider(p.m_groups);
  p.by_m_blocks = Divider(grid.m_blocks);
  p.by_strips = Divider(grid.strips);
  p.by_residues = Divider(grid.residues);
  p.by_bands = Divider(grid.bands);
  p.by_groups = Divider(groups);
  p.by_rows = Divider(p.rows);
  p.by_columns = Divider(p.columns);
  p.by_planes_h = Divider(p.planes_h);
  p.by_planes_w = Divider(p.planes_w);
  p.by_load_taps = Divider(p.tap_rows * p.w.kernel);
  p.by_kernel_w = Divider(p.w.kernel);
  p.by_load_m = Divider(p.m_groups * p.rm);
  p.by_load_lanes = Divider(p.load_lanes);
  p.by_items = Divider(p.items);
  p.by_slices_w = Divider(p.slices_w);
  p.by_slices_c = Divider(p.slices_c);
}

inline DirectStrides StridesOf(Layout layout, int64_t channels, int64_t height, int64_t width) {
  if (layout == Layout::kNCHW) return {channels * height * width, height * width, width, 1};
  return {channels * height * width, 1, width * channels, channels};
}

}  // namespace direct

// `sum_bytes` is the size of the accumulator's type.
inline DirectPlan PlanDirect(Pass pass, Problem q, int sum_bytes, const DirectLimits& limits = {}) {
  DirectPlan base;
  base.reason = "it has no weight gradient";
  if (pass == Pass::kGradWeight) return base;
  // A column is a row: the same memory with the axes exchanged.
  if (q.w.in == 1 && q.w.out == 1 && q.w.kernel == 1) std::swap(q.h, q.w);

  base.reason = "a stride is above 1024";
  if (std::max(q.h.stride, q.w.stride) > kDirectMostStride) return base;
  base.reason = "an axis is longer than 2^28";
  constexpr int64_t kLong = int64_t{1} << 28;
  for (const Axis& axis : {q.h, q.w}) {
    for (const int64_t size : {axis.in, axis.out, axis.kernel, axis.dilation}) {
      if (size > kLong) return base;
    }
    if (axis.crop_lo > kLong || axis.crop_lo < -kLong) return base;
    if (axis.dilation > kLong / axis.kernel || axis.in > kLong / axis.stride) return base;
  }
  base.reason = "it has more than 2^20 channels a group or 2^30 groups";
  if (std::max(q.in_per_group(), q.out_per_group()) > 1 << 20 || q.groups > 1 << 30) return base;

  const bool forward = pass == Pass::kForward;
  base.forward = forward;
  base.channels_last = q.layout == Layout::kNHWC;
  base.h = DirectAxis(q.h, pass);
  base.w = DirectAxis(q.w, pass);
  base.image = direct::StridesOf(q.layout, q.in_channels, q.h.in, q.w.in);
  base.target = direct::StridesOf(q.layout, q.out_channels, q.h.out, q.w.out);
  if (!forward) std::swap(base.image, base.target);
  base.m = static_cast<int>(forward ? q.out_per_group() : q.in_per_group());
  base.c = static_cast<int>(forward ? q.in_per_group() : q.out_per_group());
  base.weight_m = q.taps();
  base.weight_c = q.out_per_group() * q.taps();
  if (!forward) std::swap(base.weight_m, base.weight_c);
  base.weight_group = q.in_per_group() * q.out_per_group() * q.taps();
  base.rm = direct::ItemChannels(base.m, sum_bytes);
  base.residues = forward ? std::min(base.h.stride, base.h.target) : 1;

  const int64_t rows = forward ? CeilDiv(q.h.out, q.h.stride) : q.h.in;  // of a residue
  const bool along = rows < kDirectPositions;
  const int64_t most_row_items = along ? rows : CeilDiv(rows, kDirectPositions);
  const int64_t most_m_groups = CeilDiv(base.m, base.rm);
  const int64_t grain = along && forward ? base.w.stride : 8;
  base.reason = "one channel's tile and taps exceed shared memory, or the tiles a grid";
  DirectPlan best = base;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  direct::Cost least{kInfinity, kInfinity};
  const auto shape_of = [&](int64_t strip, int64_t row_items, int64_t m_groups) {
    DirectPlan plan = base;
    plan.reason = nullptr;
    plan.strip = static_cast<int>(strip);
    plan.row_items = static_cast<int>(row_items);
    plan.m_groups = static_cast<int>(m_groups);
    return plan;
  };
  const auto consider = [&](DirectPlan plan) {
    if (plan.slices() < limits.least_slices || plan.slices() > limits.most_slices) return;
    const direct::Cost cost = direct::Complete(&plan, q, sum_bytes, along, limits);
    if (plan.slices() > 1 ? cost.few < least.few : cost.many < least.many) {
      least = cost;
      best = plan;
    }
  };
  // As many slices as a block or half of one holds, first of tap columns or first of channels.
  const auto consider_slices = [&](DirectPlan plan) {
    const int items =
        plan.strip * plan.row_items * plan.m_groups * (plan.all_residues ? plan.residues : 1);
    const int columns = static_cast<int>(direct::TapColumns(plan));
    // As many parts as `most` of that size leave.
    const auto even = [](int size, int most) {
      return static_cast<int>(CeilDiv(size, CeilDiv(size, std::max(most, 1))));
    };
    int last_w = 0, last_c = 0;
    for (const int most : {limits.threads / items, limits.threads / 2 / items}) {
      for (const bool columns_first : {true, false}) {
        plan.slices_w = even(columns, columns_first ? most : 1);
        plan.slices_c = even(plan.c, most / plan.slices_w);
        if (!columns_first) plan.slices_w = even(columns, most / plan.slices_c);
        if (plan.slices() < 2 || (plan.slices_w == last_w && plan.slices_c == last_c)) continue;
        last_w = plan.slices_w;
        last_c = plan.slices_c;
        consider(plan);
      }
    }
  };
  const auto strip_of = [&](int64_t width) {
    const int64_t wide = along ? CeilDiv(base.w.target, kDirectPositions) : base.w.target;
    const int64_t strip = direct::EvenPart(wide, width);
    return along || strip < base.w.target ? CeilDiv(strip, grain) * grain : strip;
  };
  int64_t last_strip = 0;
  for (int64_t width = limits.strip; width >= std::min(limits.strip, 32); width /= 2) {
    const int64_t strip = strip_of(width);
    if (strip == last_strip) continue;
    last_strip = strip;
    for (const int64_t most_m : {8, 3, 1}) {
      const int64_t m_groups = direct::EvenPart(most_m_groups, most_m);
      if (most_m < 8 && most_m_groups <= most_m) continue;
      int64_t last_items = 0;
      for (int64_t wanted = 1; wanted <= 16; wanted *= 2) {
        const int64_t row_items = direct::EvenPart(most_row_items, wanted);
        if (row_items == last_items) continue;
        last_items = row_items;
        DirectPlan plan = shape_of(strip, row_items, m_groups);
        for (const int threads : {0, limits.threads}) {
          plan.threads = threads;
          for (const bool all : {false, true}) {
            plan.all_residues = all;
            if (!all || base.residues > 1) consider(plan);
          }
        }
      }
    }
  }
  // Slices where items are too few for half the threads of a large card.
  constexpr int64_t kFewItems = 132 * 1024;
  if (best.reason != nullptr || best.blocks * best.items < kFewItems) {
    // With eight channels an item, items would be fewer still, and registers short.
    const int rm = std::min(base.rm, kDirectSlicedChannels);
    const int64_t m_groups_of_rm = CeilDiv(base.m, rm);
    last_strip = 0;
    for (int64_t width = std::min(limits.strip, 64); width >= std::min(limits.strip, 8);
         width /= 2) {
      const int64_t strip = strip_of(width);
      if (strip == last_strip) continue;
      last_strip = strip;
      for (const int64_t most_m : {8, 3, 1}) {
        if (most_m < 8 && m_groups_of_rm <= most_m) continue;
        const int64_t m_groups = direct::EvenPart(m_groups_of_rm, most_m);
        for (int row_items = 1; row_items <= std::min<int64_t>(most_row_items, 2); ++row_items) {
          DirectPlan plan = shape_of(strip, row_items, m_groups);
          plan.rm = rm;
          consider_slices(plan);
          plan.all_residues = base.residues > 1;
          if (plan.all_residues) consider_slices(plan);
        }
      }
    }
  }
  if (best.reason == nullptr) direct::SetDividers(&best, q.groups);
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_DIRECT_PLAN_H_
