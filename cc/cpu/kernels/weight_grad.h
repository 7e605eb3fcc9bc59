// grad_weight with positions as the vector dimension: for few channels per group.
#ifndef TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_
#define TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_

#include <cstdint>

#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/grad_item.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/transpose.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

inline constexpr int kGradColumns = TRANSCONV_ACCUMULATORS == 24 ? 4 : 3;
inline constexpr int kGradRows = TRANSCONV_ACCUMULATORS / kGradColumns;

// Lines of positions over which a block of sums runs.
struct GradLines {
  int64_t images, rows;
  int64_t vectors;  // per row
  int64_t tail;     // positions in the last vector
  int64_t x_image, x_pitch, x_stride;
  int64_t y_image, y_pitch;
};

// sum[c][r] += x[channel c] * y[row r] over all positions, lane by lane. In the last vector of a
// row x is zero beyond the row's end, and y, which goes on there, is masked: zero times infinity is
// no zero.
template <typename C, int kRows, int kColumns>
void Correlate(const GradLines& l, const C* x, const C* y, const int64_t* offsets, C* acc) {
  Vec<C> sum[kColumns][kRows];
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[c][r] = Load(acc + (c * kRows + r) * kLanes<C>);
  }
  MaskVec<C> mask;
  for (int64_t i = 0; i < kLanes<C>; ++i) mask[i] = i < l.tail ? -1 : 0;
  for (int64_t n = 0; n < l.images; ++n) {
    for (int64_t h = 0; h < l.rows; ++h) {
      const C* xp = x + n * l.x_image + h * l.x_pitch;
      const C* yp = y + n * l.y_image + h * l.y_pitch;
      for (int64_t w = 0; w + 1 < l.vectors; ++w, xp += kLanes<C>, yp += kLanes<C>) {
        Vec<C> xv[kColumns];
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) xv[c] = Load(xp + c * l.x_stride);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const Vec<C> yv = Load(yp + offsets[r]);
#pragma GCC unroll 16
          for (int c = 0; c < kColumns; ++c) sum[c][r] += xv[c] * yv;
        }
      }
      Vec<C> xv[kColumns];
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) xv[c] = Load(xp + c * l.x_stride);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<C> yv = (Vec<C>)((MaskVec<C>)Load(yp + offsets[r]) & mask);
#pragma GCC unroll 16
        for (int c = 0; c < kColumns; ++c) sum[c][r] += xv[c] * yv;
      }
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) Store(acc + (c * kRows + r) * kLanes<C>, sum[c][r]);
  }
}

// sums[i] = sum of the lanes of vector i.
template <typename C>
void SumLanes(const C* vectors, int64_t count, C* sums) {
  constexpr int64_t kL = kLanes<C>;
  for (int64_t first = 0; first < count; first += kL) {
    const int64_t some = Min(kL, count - first);
    Vec<C> v[kL];
    for (int64_t i = 0; i < kL; ++i) {
      v[i] = i < some ? Load(vectors + (first + i) * kL) : Vec<C>{};
    }
    Transpose<C>(v);
#pragma GCC unroll 4
    for (int64_t width = kL / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
      for (int64_t i = 0; i < width; ++i) v[i] += v[i + width];
    }
    StorePart(sums + first, v[0], some);
  }
}

template <typename C>
using CorrelateFn = void (*)(const GradLines&, const C*, const C*, const int64_t*, C*);

template <typename C, int kRows, int kColumns>
CorrelateFn<C> PickColumns(int columns) {
  if constexpr (kColumns > 1) {
    if (columns < kColumns) return PickColumns<C, kRows, kColumns - 1>(columns);
  }
  return &Correlate<C, kRows, kColumns>;
}

template <typename C, int kRows = kGradRows>
CorrelateFn<C> PickCorrelate(int rows, int columns) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return PickCorrelate<C, kRows - 1>(rows, columns);
  }
  return PickColumns<C, kRows, kGradColumns>(columns);
}

template <typename T>
int64_t NarrowScratch(const WeightGradView& v) {
  using C = Compute<T>;
  return 2 * GradListBytes(v) +
         (v.x_elements + v.y_elements + v.acc_elements) * static_cast<int64_t>(sizeof(C));
}

// Adds one block of sums to the weights; targets[r] is where row r goes.
template <typename C>
void AddGradBlock(const C* acc, int rows, int columns, const int64_t* targets, int64_t column,
                  C* partial) {
  C sums[kGradRows * kGradColumns];
  SumLanes(acc, rows * columns, sums);
  for (int c = 0; c < columns; ++c) {
    for (int r = 0; r < rows; ++r) partial[c * column + targets[r]] += sums[c * rows + r];
  }
}

template <typename T>
void WeightGradNarrow(const WeightGradView& v, const GradItem& item, void* scratch) {
  using C = Compute<T>;
  const int64_t g = item.g, in = item.in, out = item.out;
  int64_t* offsets = static_cast<int64_t*>(scratch);
  int64_t* targets = offsets + GradListBytes(v) / static_cast<int64_t>(sizeof(int64_t));
  C* packed_x = reinterpret_cast<C*>(static_cast<char*>(scratch) + 2 * GradListBytes(v));
  C* y = packed_x + v.x_elements;
  C* acc = y + v.y_elements;
  C* partial = GradTarget<C>(v, item);
  const int64_t column = v.out * v.taps, rows_total = out * v.taps;
  for (int64_t i = 0; i < in; ++i) FillRow(partial + i * column, rows_total, C(0));
  if (v.keep_lanes) FillRow(acc, in * rows_total * kLanes<C>, C(0));

  const int64_t image_rows = v.h.tile + v.h.span, area = v.h.count * v.w.count;
  const AxisClassView& ch = v.h.classes[0];
  const AxisClassView& cw = v.w.classes[0];
  for (int64_t row = 0; row < rows_total; ++row) {
    const int64_t o = row % out, tap = row / out;
    const int64_t th = tap / v.kernel_w, tw = tap % v.kernel_w;
    const int64_t plane = ch.planes[th] * v.w.num_src_planes + cw.planes[tw];
    offsets[row] = (plane * out + o) * v.y_stride + (ch.shifts[th] - v.h.shift_min) * v.y_pitch +
                   cw.shifts[tw] - v.w.shift_min;
    targets[row] = o * v.taps + ch.kernel[th] * v.kernel_w + cw.kernel[tw];
  }
  GradLines lines;
  lines.x_image = v.x_in_place ? v.groups * v.in * area : v.h.tile * v.x_pitch;
  lines.x_pitch = v.x_pitch;
  lines.x_stride = v.x_stride;
  lines.y_image = image_rows * v.y_pitch;
  lines.y_pitch = v.y_pitch;
  const int64_t end = v.units * (item.slice + 1) / v.slices;
  for (int64_t unit = v.units * item.slice / v.slices; unit < end; ++unit) {
    const Tile tile = UnitTile(v, unit, g);
    const C* x = packed_x;
    if (v.x_in_place) {
      x = static_cast<const C*>(v.x) + (tile.n0 * v.groups * v.in + g * v.in + item.i0) * area +
          tile.h0 * v.w.count + tile.w0;
    } else {
      PackSource<T>({v.x, v.channels_last, v.groups * v.in, g * v.in + item.i0, in, &v.x_h, &v.x_w,
                     v.h.tile, v.x_pitch, v.x_stride, 0, in * v.x_stride},
                    tile, packed_x);
    }
    PackSource<T>({v.dy, v.channels_last, v.groups * v.out, g * v.out + item.o0, out, &v.h, &v.w,
                   image_rows, v.y_pitch, v.y_stride, 0, out * v.y_stride},
                  tile, y);
    lines.vectors = (tile.w + kLanes<C> - 1) / kLanes<C>;
    lines.tail = tile.w - (lines.vectors - 1) * kLanes<C>;
    // Few enough positions at a time that those of a few channels of x stay in the L1 cache for all
    // rows; without sums that are kept, as many as there are.
    const int64_t row_positions = lines.vectors * kLanes<C>;
    const int64_t most = v.keep_lanes ? Max(1, v.wide_positions / row_positions) : tile.h * tile.n;
    const int64_t some_rows = Min(tile.h, most), some_images = Max(1, most / tile.h);
    for (int64_t n0 = 0; n0 < tile.n; n0 += some_images) {
      for (int64_t h0 = 0; h0 < tile.h; h0 += some_rows) {
        lines.images = Min(some_images, tile.n - n0);
        lines.rows = Min(some_rows, tile.h - h0);
        const C* xp = x + n0 * lines.x_image + h0 * lines.x_pitch;
        const C* yp = y + n0 * lines.y_image + h0 * lines.y_pitch;
        for (int64_t c0 = 0; c0 < in; c0 += kGradColumns) {
          const int columns = static_cast<int>(Min(kGradColumns, in - c0));
          for (int64_t row0 = 0; row0 < rows_total; row0 += kGradRows) {
            const int rows = static_cast<int>(Min(kGradRows, rows_total - row0));
            C* to = acc;
            if (v.keep_lanes) {
              to += (row0 * in + c0 * rows) * kLanes<C>;
            } else {
              FillRow(acc, kGradRows * kGradColumns * kLanes<C>, C(0));
            }
            PickCorrelate<C>(rows, columns)(lines, xp + c0 * v.x_stride, yp, offsets + row0, to);
            if (!v.keep_lanes) {
              AddGradBlock(acc, rows, columns, targets + row0, column, partial + c0 * column);
            }
          }
        }
      }
    }
  }
  for (int64_t c0 = 0; v.keep_lanes && c0 < in; c0 += kGradColumns) {
    const int columns = static_cast<int>(Min(kGradColumns, in - c0));
    for (int64_t row0 = 0; row0 < rows_total; row0 += kGradRows) {
      const int rows = static_cast<int>(Min(kGradRows, rows_total - row0));
      AddGradBlock(acc + (row0 * in + c0 * rows) * kLanes<C>, rows, columns, targets + row0, column,
                   partial + c0 * column);
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_
