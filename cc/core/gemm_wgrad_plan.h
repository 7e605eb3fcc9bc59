// How the weight gradient as one matrix product (cuda/kernels/sm90_gemm_wgrad.cuh) cuts a problem:
// pure C++.
//
// Where the kernel is the stride and nothing is cropped, every pixel of dy has one tap, and
//
//     dw[ci, co, ky, kx] = sum over images and pixels (py, px) of x
//                          x[n, ci, py, px] dy[n, co, kh py + ky, kw px + kx].
//
// Rows of the product are the weights (co, ky, kx) of an input channel in the order of dw, columns
// input channels, and what is summed are the pixels of all images, one behind the other. A block
// takes kRows rows and `columns` columns of one group over its share of the stages, each of
// kStageBytes of a channel of x.
//
// The plan depends on the problem alone, so that results are the same on every device.
#ifndef TRANSCONV_CORE_GEMM_WGRAD_PLAN_H_
#define TRANSCONV_CORE_GEMM_WGRAD_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "core/gemm_plan.h"
#include "core/geometry.h"

namespace transconv {

// The tile of a block, and the shared memory of a stage: x, one line of memory to a channel, and
// behind it lines of dy, each the pixels of one (co, ky).
struct GemmWgradTile {
  static constexpr int kRows = 128;
  static constexpr int kStageBytes = 128;  // of pixels of one channel of x
  static constexpr int kSteps = 4;         // matrix instructions of a stage
  static constexpr int kMostTaps = 8;      // kx
  static constexpr int kDyBytes = 18432;   // the largest of LinePitch * lines

  static constexpr int Pixels(int element) { return kStageBytes / element; }
  static constexpr int Lines(int taps_w) { return kRows / taps_w; }
  // Bytes between lines, so that what a warp reads at a time comes from different banks.
  static constexpr int LinePitch(int taps_w) {
    return kStageBytes * taps_w + (taps_w == 2 ? 32 : taps_w == 4 ? 64 : 16);
  }
  static constexpr int XBytes(int columns) { return columns * kStageBytes; }
  static constexpr int Bytes(int columns) { return XBytes(columns) + kDyBytes; }
  static constexpr int Stages(int columns) { return columns == 256 ? 4 : 6; }
};

struct GemmWgradPlan {
  const char* reason = nullptr;
  Axis h, w;  // rows are merged where they follow one another on both sides
  int columns = 256;
  int64_t rows = 1, lines = 1;                // of one group
  int64_t row_blocks = 1, column_blocks = 1;  // of one group
  int64_t blocks = 1;                         // of one split
  int64_t stages = 1, per_split = 1, splits = 1;
  int element = 4;                    // bytes
  int x_vector = 16, dy_vector = 16;  // bytes of one copy, where tensors start on as many
  bool boxed = false;                 // a stage's pixels of x are of one image, and come as a box
  double cycles = 0;                  // predicted, of an H200

  // Whether the blocks that share the same weights' pixels, one for each split, are a cluster and
  // add their sums there. Else each writes its own to a slot.
  bool clustered = false;

  int64_t cluster() const { return clustered ? splits : 1; }
  bool has_slots() const { return splits > cluster(); }
  int64_t image() const { return h.in * w.in; }  // pixels
};

namespace gemm_wgrad {

constexpr int64_t kMultiprocessors = 132;  // a constant: see above
// Steps that one sum may take: the tensor cores cut off what float32 would round, 2^-25 of the sum
// in the mean at every step.
constexpr int64_t kMostSummed = 2048;
constexpr int64_t kMostSlotBytes = int64_t{1} << 30;
// How many clusters of so many blocks an H200 runs at a time, by its own account.
constexpr int64_t kClusters[] = {0, kMultiprocessors, 66, 39, 30, 22, 17, 15, 15};
constexpr int64_t kMostCluster = std::size(kClusters) - 1;

// The most bytes of one copy, where `bytes` are neighbours.
inline int Vector(int64_t bytes) {
  for (int v = 16; v > 2; v /= 2) {
    if (bytes % v == 0) return v;
  }
  return 0;
}

// What a launch takes with this many columns and splits; fills in the rest of the plan.
inline double Cost(const Problem& q, int columns, int64_t splits, bool clustered,
                   GemmWgradPlan* p) {
  using Tile = GemmWgradTile;
  p->columns = columns;
  p->row_blocks = CeilDiv(p->rows, Tile::kRows);
  p->column_blocks = CeilDiv(q.in_per_group(), columns);
  p->blocks = q.groups * p->row_blocks * p->column_blocks;
  p->per_split = CeilDiv(p->stages, splits);
  p->splits = CeilDiv(p->stages, p->per_split);
  p->clustered = clustered && p->splits > 1;
  // Fitted to the times of 242 programmes on an H200 (benchmarks/NOTES.md): copies of a thread, at
  // the rate of the second-level cache, x rounded in float32, and what a stage takes whatever it
  // holds.
  const double copies = (p->boxed ? 0 : columns / p->x_vector) + Tile::kRows / p->dy_vector;
  const double stage = 770 + 35 * copies + (p->element == 4 ? 1.7 * columns : 0);
  double own = static_cast<double>(p->per_split) * stage + 6.4 * columns, slots = 0;
  // The rest is fitted to 1030 more: sums go to blocks of the cluster, or are written and read
  // again by another kernel.
  if (p->clustered) {
    own += 800 + 44 * columns + (p->splits > 2 ? 440 * static_cast<double>(p->splits) : 0);
  } else if (p->splits > 1) {
    const double weights = static_cast<double>(q.in_channels * p->rows);
    slots = 4590 + weights * static_cast<double>(p->splits) / 313;
  }
  const int64_t waves = p->clustered ? CeilDiv(p->blocks, kClusters[p->splits])
                                     : CeilDiv(p->blocks * p->splits, kMultiprocessors);
  return static_cast<double>(waves) * own + slots;
}

}  // namespace gemm_wgrad

// `element`: bytes.
inline GemmWgradPlan PlanGemmWgrad(const Problem& q, int element) {
  using Tile = GemmWgradTile;
  GemmWgradPlan p;
  p.reason = KernelIsNoStride(q);
  if (p.reason != nullptr) return p;
  p.element = element;
  p.h = q.h;
  p.w = q.w;
  if (p.w.in == 1 && p.w.kernel == 1) std::swap(p.h, p.w);
  if (p.h.kernel == 1) {
    for (int64_t Axis::* size : {&Axis::in, &Axis::out}) {
      p.w.*size *= p.h.*size;
      p.h.*size = 1;
    }
  }
  const int64_t kw = p.w.kernel;
  if (kw > Tile::kMostTaps || Tile::kRows % kw != 0) {
    p.reason = "needs a stride of 1, 2, 4 or 8 along rows";
    return p;
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const int64_t pixels = q.batch * p.image();
  p.lines = q.out_per_group() * p.h.kernel;
  p.rows = p.lines * kw;
  if (pixels == 0) {
    p.reason = "there are no pixels";
    return p;
  }
  // A stage behind the last pixel is still counted.
  if (p.image() > kMost / 2 || pixels > kMost / 2 || p.rows > kMost / 2 || q.in_channels > kMost) {
    p.reason = "more than 2^30 pixels or weights of a channel";
    return p;
  }
  p.x_vector = gemm_wgrad::Vector(p.image() * element);
  p.dy_vector = gemm_wgrad::Vector(p.w.out * element);
  if (std::min(p.x_vector, p.dy_vector) < 4) {
    p.reason = "copies no less than 4 bytes: 16-bit images and rows of odd sizes";
    return p;
  }
  p.stages = CeilDiv(pixels, Tile::Pixels(element));
  p.boxed = p.x_vector == 16 && (q.batch == 1 || p.image() % Tile::Pixels(element) == 0);

  const int64_t fewest =
      std::min(p.stages, CeilDiv(p.stages * Tile::kSteps, gemm_wgrad::kMostSummed));
  const int64_t slot = 4 * q.in_channels * p.rows;
  if (fewest > 1 && fewest * slot > gemm_wgrad::kMostSlotBytes) {
    p.reason = "sums of parts of the pixels exceed a gigabyte";
    return p;
  }
  double least = std::numeric_limits<double>::infinity();
  struct {
    int columns;
    int64_t splits;
    bool clustered;
  } best{};
  for (const int columns : {256, 128}) {
    if (columns == 256 && q.in_per_group() <= 128) continue;
    gemm_wgrad::Cost(q, columns, 1, false, &p);
    const int64_t fill = gemm_wgrad::kMultiprocessors / p.blocks + 4;
    for (int64_t splits = fewest; splits <= std::min(p.stages, std::max(fill, fewest)); ++splits) {
      for (const bool clustered : {true, false}) {
        if (clustered && splits > gemm_wgrad::kMostCluster) continue;
        const bool slots = !clustered && splits > fewest;
        if (slots && splits * slot > gemm_wgrad::kMostSlotBytes) continue;
        const double cost = gemm_wgrad::Cost(q, columns, splits, clustered, &p);
        if (cost >= least) continue;
        least = cost;
        best = {columns, splits, clustered};
      }
    }
  }
  p.cycles = gemm_wgrad::Cost(q, best.columns, best.splits, best.clustered, &p);
  if (p.blocks * p.splits > kMost) p.reason = "more than 2^31 blocks";
  return p;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_GEMM_WGRAD_PLAN_H_
