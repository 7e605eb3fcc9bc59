// One matrix product for kernels as large as their stride: the plan and its index arithmetic.
//
// Where the kernel is the stride and nothing is cropped, every target pixel has one tap, so that
//
//     forward      y[n, o, kh*py + ky, kw*px + kx] = sum over c of x[n, c, py, px] w[c, o, ky, kx]
//     grad_input   dx[n, c, py, px] = sum over (o, ky, kx) of dy[n, o, ...] w[c, o, ky, kx]
//
// are products of a matrix of pixels and one of weights. Rows are source pixels of all images one
// after the other, columns (o, ky, kx) or c, and the sum runs over c or (o, ky, kx). The images
// (NCHW) are read as they are, in "lines": one channel, or one row of taps of one, with `values`
// neighbouring elements to a pixel. A slab of the sum is 128 bytes of every column: 32 elements of
// four bytes or 64 of two, a step of an instruction a quarter of that.
#ifndef TRANSCONV_CORE_GEMM_PLAN_H_
#define TRANSCONV_CORE_GEMM_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/divider.h"
#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv {

constexpr int kGemmRows = 128;         // pixels of a tile
constexpr int kGemmSlabBytes = 128;    // of a column
constexpr int kGemmLineBytes = 17408;  // of a slab's lines in shared memory, at most

// What all passes need: why not every target pixel has one tap, or null.
inline const char* KernelIsNoStride(const Problem& q) {
  if (q.layout != Layout::kNCHW) return "reads lines of one channel: NCHW alone";
  for (const Axis* axis : {&q.h, &q.w}) {
    if (axis->kernel != axis->stride || (axis->kernel > 1 && axis->dilation != 1) ||
        axis->crop_lo != 0 || axis->out != axis->kernel * axis->in) {
      return "needs kernels as large as their stride, and nothing cropped or added";
    }
  }
  return nullptr;
}
// And of types: their products are TF32's or of 16 bits.
inline const char* HasNoProduct(const Problem& q, DType dtype) {
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (dtype == DType::kF32 && q.precision != Precision::kDefault) {
    return "multiplies float32 once: precision DEFAULT alone";
  }
  return nullptr;
}

// Why no matrix product does a pass, or null.
inline const char* CannotGemm(const Problem& q, DType dtype) {
  if (const char* reason = HasNoProduct(q, dtype)) return reason;
  if (const char* reason = KernelIsNoStride(q)) return reason;
  if (q.groups != 1) return "has no groups";
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  const int64_t pixels = q.h.in * q.w.in;
  if (q.batch * pixels > kInt - kGemmRows ||
      std::max(q.in_channels, q.out_channels * q.taps()) * pixels > kInt ||
      q.in_channels * q.out_channels * q.taps() > kInt) {
    return "an image or its weights exceed 32-bit offsets";
  }
  return nullptr;
}

// Where element `k` of a slab of float32 is: its line among the slab's, and the value of a pixel
// there. So that a thread's operand, elements t and t + 4 of a step of eight, is what one load of
// its pixel brings. 16 bits are taken in their order in memory, as their weights are.
struct GemmElement {
  int line, value;

  TRANSCONV_HOST_DEVICE constexpr GemmElement(int k, int values) : line(k), value(0) {
    const int step = k / 8, j = k % 8;
    if (values == 2) line = 4 * step + j % 4, value = j / 4;
    if (values == 4) line = 4 * (step / 2) + j % 4, value = 2 * (step % 2) + j / 4;
  }
};

// Which column of a tile is at place `at` of the operand. In fours, a thread that has columns 2t,
// 2t + 1 of eight and of the next eight has four neighbours.
TRANSCONV_HOST_DEVICE constexpr int GemmColumn(int at, bool fours) {
  return fours ? at / 16 * 16 + at % 8 / 2 * 4 + at / 8 % 2 * 2 + at % 2 : at;
}

struct GemmPlan {
  int values = 1;   // of a pixel in a line
  int vector = 16;  // bytes of one copy
  int lines = 0;    // of the whole sum
  int columns = 0;  // of the product
  int tile_columns = 0;
  int slabs = 0, row_tiles = 0, column_tiles = 0;
  int splits = 1;  // blocks that share a tile's slabs
  bool fours = false;
  bool packed = false;  // weights, to TF32; those of 16 bits are read as they are
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;  // for packed weights, or those that start where boxes may not

  int slab_lines(int element) const { return kGemmSlabBytes / element / values; }
  int64_t tiles() const { return int64_t{row_tiles} * column_tiles; }
  // Of so many columns, each with so many blocks.
  void SetTiles(int n, int blocks) {
    tile_columns = n;
    column_tiles = static_cast<int>(CeilDiv(columns, n));
    splits = blocks;
    const int64_t cells = int64_t{column_tiles} * slabs * n * kGemmSlabBytes;
    workspace_bytes = packed ? cells : weight_bytes;
  }
};

// Cycles that the busiest multiprocessor needs, fitted to 141 programmes (benchmarks/NOTES.md):
// of a slab products, what is read from the L2 cache, or instructions of copies; then the stores.
inline double GemmCost(const GemmPlan& g, bool forward, int multiprocessors) {
  const int copies = kGemmLineBytes / g.vector / kGemmRows;  // of a thread
  const double slab = std::max({4.36 * g.tile_columns + 45,
                                (kGemmLineBytes + double{kGemmSlabBytes} * g.tile_columns) / 46,
                                35.0 * copies + 283});
  const double store = 780 + (forward ? 30 : 37) * g.tile_columns;
  if (g.splits > 1) return slab * CeilDiv(g.slabs, g.splits) + store + 2700 + 400.0 * g.splits;
  return static_cast<double>(CeilDiv(g.tiles(), int64_t{multiprocessors})) *
         (slab * g.slabs + store);
}

// Returns why there is none, or null.
inline const char* PlanGemm(const Problem& q, Pass pass, DType dtype, int multiprocessors,
                            GemmPlan* plan) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (const char* reason = CannotGemm(q, dtype)) return reason;
  const int element = static_cast<int>(ByteWidth(dtype));
  const bool forward = pass == Pass::kForward;
  GemmPlan g;
  g.values = forward ? 1 : static_cast<int>(q.w.kernel);
  if (g.values != 1 && g.values != 2 && g.values != 4) {
    return "reads one, two or four values of a pixel at a time";
  }
  const int64_t pixels = q.h.in * q.w.in;
  const bool whole = forward || q.h.kernel == 1;  // a line has no gaps between image rows
  const int64_t run = (whole ? pixels : q.w.in) * g.values * element;
  while (run % g.vector != 0) g.vector /= 2;
  if (g.vector < 4) return "copies four bytes at least: 16-bit images need an even size";
  const int64_t taps = q.taps();
  g.packed = dtype == DType::kF32;
  g.weight_bytes = q.in_channels * q.out_channels * taps * element;
  if (!g.packed && q.out_channels * taps % 8 != 0) {
    return "reads 16-bit weights in eights: output channels times taps must be a multiple of eight";
  }
  g.lines = static_cast<int>(forward ? q.in_channels : q.out_channels * q.h.kernel);
  g.fours = g.packed && forward && q.w.kernel % 4 == 0;
  g.columns = static_cast<int>(forward ? q.out_channels * taps : q.in_channels);
  g.slabs = static_cast<int>(CeilDiv(g.lines, g.slab_lines(element)));
  g.row_tiles = static_cast<int>(CeilDiv(q.batch * pixels, kGemmRows));
  double least = std::numeric_limits<double>::infinity();
  for (const int n : {256, 192, 128, 64}) {
    for (const int splits : {1, 2, 4, 8}) {
      g.SetTiles(n, splits);
      // Clusters of four and more do not fill every part of the machine.
      const int64_t most = splits > 2 ? multiprocessors * 7 / 8 : multiprocessors;
      if (splits > 1 && (splits > g.slabs || g.tiles() * splits > most)) continue;
      if (const double cost = GemmCost(g, forward, multiprocessors); cost < least) {
        least = cost;
        *plan = g;
      }
    }
  }
  return nullptr;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_GEMM_PLAN_H_
