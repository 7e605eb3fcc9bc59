// How the weight gradient from lines of both images (cuda/kernels/sm90_lines_wgrad.cuh) cuts a
// problem: pure C++.
//
//     dw[ci, co, ky, kx] = sum over images and positions (iy, ix) of x
//                          x[n, ci, iy, ix] dy[n, co, sy iy + dy ky - ly, sx ix + dx kx - lx]
//
// is a matrix product: rows are the weights (co, ky, kx) of an input channel in the order of dw,
// columns input channels, and what is summed are positions, in stages of up to 32: some images,
// rows and columns. A stage has its positions of x, a line of 128 bytes to a channel, and windows
// of dy: of each output channel of the block's rows whatever the taps reach from its positions. All
// rows read the same window, at their taps' offsets.
//
// The plan depends on the problem alone, so that results are the same on every device.
#ifndef TRANSCONV_CORE_LINES_WGRAD_PLAN_H_
#define TRANSCONV_CORE_LINES_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv {

struct LinesWgradPlan {
  int columns = 0;  // of a block, and of an instruction
  int tiles = 0;    // of 64 rows, that a warpgroup has at most
  // Elements of one copy, where tensors start on as many.
  int x_vector = 0, dy_vector = 0;
  // A stage's positions: images, rows and columns of x.
  int tile_n = 1, tile_h = 1, tile_w = 1;
  int stages_n = 1, stages_h = 1, stages_w = 1;  // along each of them
  // A channel's window: rows, copies to a row, and elements from one to the next.
  int rows = 0, copies = 0, row_pitch = 0, image_pitch = 0, channel_pitch = 0;
  int left = 0;            // its first column, from `stride` times the stage's first position
  int channels = 0;        // of a stage
  int ring = 0;            // stages in shared memory
  int64_t weights = 0;     // of an input channel
  int64_t block_rows = 0;  // a multiple of 64
  int64_t row_blocks = 0, column_blocks = 0, blocks = 0;  // of a group; of a split
  int64_t stages = 0, per_split = 0, splits = 0;

  int positions() const { return tile_n * tile_h * tile_w; }
  int64_t copies_of_dy() const { return int64_t{channels} * tile_n * rows * copies; }
  int64_t window_bytes() const { return int64_t{4} * channels * channel_pitch; }
};

namespace lines_wgrad {

constexpr int kPositions = 32;  // of a stage
constexpr int kSteps = 4;       // instructions of a stage and 64 rows
constexpr int kLineBytes = 4 * kPositions;
constexpr int kProducers = 128;  // threads
constexpr int kMostStages = 8, kMostCopies = 2048;
constexpr int kCopyBytes = 16;  // of a table's entry
constexpr int kControlBytes = 1024;
constexpr int kSharedBytes = 227 * 1024;
constexpr int64_t kMultiprocessors = 132;  // a constant: see above
// Steps that one sum may take: the tensor cores cut off what float32 would round.
constexpr int64_t kMostSummed = 2048;
constexpr int64_t kMostSlotBytes = int64_t{1} << 30;

constexpr int64_t WholeLines(int64_t bytes) { return CeilDiv(bytes, int64_t{1024}) * 1024; }
inline int64_t TableBytes(const LinesWgradPlan& p) {
  return WholeLines(p.copies_of_dy() * kCopyBytes);
}
inline int64_t StageBytes(const LinesWgradPlan& p) {
  return WholeLines(int64_t{p.columns} * kLineBytes + p.window_bytes());
}
inline int64_t SharedBytes(const LinesWgradPlan& p) {
  return kControlBytes + TableBytes(p) + p.ring * StageBytes(p);
}

// Elements that an extent's rows may be copied by at once.
inline int Vector(int64_t extent) { return extent % 4 == 0 ? 4 : extent % 2 == 0 ? 2 : 1; }

// The window of the plan's positions and rows; false where it does not fit.
inline bool SetWindow(const Problem& q, LinesWgradPlan* p) {
  // A stage's first column is a multiple of tile_w.
  const bool moves = p->tile_w < q.w.in;
  p->dy_vector = Vector(moves ? std::gcd(q.w.out, p->tile_w * q.w.stride) : q.w.out);
  p->left = static_cast<int>(FloorDiv(-q.w.crop_lo, p->dy_vector)) * p->dy_vector;
  const int64_t shift = -q.w.crop_lo - p->left;
  const int64_t rows = (p->tile_h - 1) * q.h.stride + (q.h.kernel - 1) * q.h.dilation + 1;
  const int64_t wide = shift + (p->tile_w - 1) * q.w.stride + (q.w.kernel - 1) * q.w.dilation + 1;
  const int64_t copies = CeilDiv(wide, p->dy_vector);
  const int64_t taps = q.taps();
  // Blocks start at multiples of this many taps of a channel.
  const int64_t start = std::gcd(p->block_rows, taps);
  const int64_t channels = (taps - start + p->block_rows - 1) / taps + 1;
  p->channels = static_cast<int>(std::min(channels, q.out_per_group()));
  if (p->channels * p->tile_n * rows * copies > kMostCopies) return false;
  p->rows = static_cast<int>(rows);
  p->copies = static_cast<int>(copies);
  p->row_pitch = p->copies * p->dy_vector;
  p->image_pitch = p->rows * p->row_pitch;
  p->channel_pitch = p->tile_n * p->image_pitch;
  const int64_t dy = q.h.out * q.w.out, image = q.out_channels * dy;
  if (p->channels * dy + p->tile_n * image + rows * q.w.out > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  p->ring = 0;
  const int64_t room = kSharedBytes - kControlBytes - TableBytes(*p);
  p->ring = static_cast<int>(std::min<int64_t>(kMostStages, room / StageBytes(*p)));
  return p->ring >= 3;
}

// Reads of shared memory that a warp's loads of the window take: eight rows at four positions each.
inline int64_t Conflicts(const Problem& q, const LinesWgradPlan& p) {
  const int64_t taps = q.taps(), rows = std::min<int64_t>(p.weights, 128);
  const auto row_at = [&](int64_t row) {
    const int64_t tap = row % taps;
    return row / taps * p.channel_pitch + tap / q.w.kernel * q.h.dilation * p.row_pitch +
           tap % q.w.kernel * q.w.dilation;
  };
  const auto position_at = [&](int64_t at) {
    const int64_t x = at % p.tile_w, y = at / p.tile_w % p.tile_h, n = at / p.tile_w / p.tile_h;
    return n * p.image_pitch + y * q.h.stride * p.row_pitch + x * q.w.stride;
  };
  int64_t all = 0;
  for (int64_t first = 0; first < rows; first += 8) {
    int64_t words[32];
    for (int lane = 0; lane < 32; ++lane) {
      words[lane] = row_at(std::min(first + lane / 4, rows - 1)) + position_at(lane % 4);
    }
    std::sort(words, words + 32);
    int in_bank[32] = {}, most = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (lane > 0 && words[lane] == words[lane - 1]) continue;
      most = std::max(most, ++in_bank[words[lane] % 32]);
    }
    all += most;
  }
  return all;
}

// Widens the pitches where that spares reads; it may cost one stage of many.
inline void SetPitches(const Problem& q, LinesWgradPlan* p) {
  const LinesWgradPlan plain = *p;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int row = 0; row < 8; ++row) {
    for (int channel = 0; channel < 8; ++channel) {
      LinesWgradPlan g = plain;
      g.row_pitch += row * g.dy_vector;
      g.image_pitch = g.rows * g.row_pitch;
      g.channel_pitch = g.tile_n * g.image_pitch + channel * g.dy_vector;
      if (SharedBytes(g) > kSharedBytes && g.ring > 4) --g.ring;
      if (SharedBytes(g) > kSharedBytes) continue;
      const int64_t conflicts = Conflicts(q, g);
      if (conflicts < least) {
        least = conflicts;
        *p = g;
      }
    }
  }
}

// Cycles of a stage, after the times of 21 programmes on an H200 (benchmarks/NOTES.md): a thread's
// copies, and x rounded.
inline double StageCost(const LinesWgradPlan& p) {
  const double x_copies = static_cast<double>(p.columns) / (4 * p.x_vector);
  const double dy_copies = static_cast<double>(p.copies_of_dy()) / kProducers;
  const double products = static_cast<double>(p.block_rows) / 64 * kSteps * p.columns / 2;
  const double own = 500 + 0.3 * products + 35 * x_copies + 140 * dy_copies + 1.8 * p.columns;
  return std::max(1.15 * products, own);
}
inline double Cost(const Problem& q, int64_t splits, LinesWgradPlan* p) {
  p->per_split = CeilDiv(p->stages, splits);
  p->splits = CeilDiv(p->stages, p->per_split);
  const int64_t waves = CeilDiv(p->blocks * p->splits, kMultiprocessors);
  // Sums of splits are written, and read again by another kernel.
  const double weights = static_cast<double>(q.in_channels * p->weights);
  const double slots =
      p->splits == 1 ? 0 : 1350 + 8 * weights * static_cast<double>(p->splits) / 2190;
  const double own = static_cast<double>(p->per_split) * StageCost(*p);
  return static_cast<double>(waves) * (own + 6.4 * p->columns * p->tiles) + slots;
}

// Calls `visit` with every cut of positions, rows and columns.
template <typename Visit>
void ForEachPlan(const Problem& q, Visit visit) {
  LinesWgradPlan p;
  p.weights = q.out_per_group() * q.taps();
  p.x_vector = Vector(q.w.in);
  for (const auto& [columns, tiles] : {std::pair{256, 1}, {128, 2}, {128, 1}, {64, 2}}) {
    const int64_t in = q.in_per_group();
    if (columns == 64 ? in > 64 : in <= columns / 2) continue;
    p.columns = columns;
    p.tiles = tiles;
    const int64_t row_tiles = CeilDiv(p.weights, int64_t{64});
    p.row_blocks = CeilDiv(row_tiles, int64_t{2} * tiles);
    p.block_rows = 64 * CeilDiv(row_tiles, p.row_blocks);
    p.column_blocks = CeilDiv(q.in_per_group(), int64_t{columns});
    p.blocks = q.groups * p.row_blocks * p.column_blocks;
    for (p.tile_w = p.x_vector; p.tile_w <= kPositions; p.tile_w += p.x_vector) {
      if (p.tile_w >= q.w.in + p.x_vector) break;
      p.tile_h = static_cast<int>(std::min<int64_t>(q.h.in, kPositions / p.tile_w));
      p.tile_n = static_cast<int>(std::min<int64_t>(q.batch, kPositions / p.tile_w / p.tile_h));
      p.stages_w = static_cast<int>(CeilDiv(q.w.in, p.tile_w));
      p.stages_h = static_cast<int>(CeilDiv(q.h.in, p.tile_h));
      p.stages_n = static_cast<int>(CeilDiv(q.batch, p.tile_n));
      p.stages = int64_t{p.stages_w} * p.stages_h * p.stages_n;
      if (p.stages > std::numeric_limits<int32_t>::max() / 2) continue;
      if (SetWindow(q, &p)) visit(p);
    }
  }
}

inline const char* Cannot(const Problem& q, Pass pass, DType dtype) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (dtype != DType::kF32 || q.precision != Precision::kDefault) {
    return "multiplies float32 once: precision DEFAULT alone";
  }
  if (q.layout != Layout::kNCHW) return "reads lines of one channel: NCHW alone";
  if (q.batch * q.h.in * q.w.in * q.h.out * q.w.out == 0) return "there are no positions";
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  if (q.batch > kInt / 64 || std::max(q.h.in * q.w.in, q.h.out * q.w.out) > kInt / 8 ||
      std::max(q.in_channels, q.out_channels) > kInt / 1024 ||
      kPositions * q.in_channels * q.h.in * q.w.in > int64_t{1} << 40) {
    return "an image exceeds 32-bit offsets";
  }
  constexpr int64_t kFar = 1 << 13;
  if (q.taps() > kFar || q.out_per_group() * q.taps() > kInt / 1024) return "too many weights";
  for (const Axis* axis : {&q.h, &q.w}) {
    if (axis->kernel * axis->dilation > kFar || axis->stride > kFar / 64 || axis->crop_lo > kFar ||
        axis->crop_lo < -kFar || axis->in * axis->stride > kInt / 4) {
      return "a tap is too far";
    }
  }
  return nullptr;
}

}  // namespace lines_wgrad

// Returns why there is no plan, or null.
inline const char* PlanLinesWgrad(const Problem& q, Pass pass, DType dtype, LinesWgradPlan* plan) {
  if (const char* reason = lines_wgrad::Cannot(q, pass, dtype)) return reason;
  double least = std::numeric_limits<double>::infinity();
  lines_wgrad::ForEachPlan(q, [&](LinesWgradPlan p) {
    const int64_t fewest =
        std::min(p.stages, CeilDiv(p.stages * lines_wgrad::kSteps, lines_wgrad::kMostSummed));
    const int64_t slot = 4 * q.in_channels * p.weights;
    if (fewest > 1 && fewest * slot > lines_wgrad::kMostSlotBytes) return;
    const int64_t fill = 2 * lines_wgrad::kMultiprocessors / p.blocks + 1;
    for (int64_t splits = fewest; splits <= std::min(p.stages, std::max(fill, fewest)); ++splits) {
      if (splits > fewest && splits * slot > lines_wgrad::kMostSlotBytes) break;
      LinesWgradPlan g = p;
      const double cost = lines_wgrad::Cost(q, splits, &g);
      // Of equals, that with the longest rows.
      if (cost > least || g.blocks * g.splits > std::numeric_limits<int32_t>::max()) continue;
      least = cost;
      *plan = g;
    }
  });
  if (least == std::numeric_limits<double>::infinity()) {
    return "no window of its taps fits, or sums of parts exceed a gigabyte";
  }
  lines_wgrad::SetPitches(q, plan);
  return nullptr;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_LINES_WGRAD_PLAN_H_
