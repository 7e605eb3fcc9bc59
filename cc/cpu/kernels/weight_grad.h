// grad_weight with positions as the vector dimension: for few channels per group.
#ifndef TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_
#define TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_

#include <cstdint>

#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/grad_item.h"
#include "cpu/kernels/simd.h"
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

// sum[c][r] += x[channel c] * y[row r] over all positions. In the last vector of a row x is zero
// beyond the row's end, and y, which goes on there, is masked: zero times infinity is no zero.
template <typename C, int kRows, int kColumns>
void Correlate(const GradLines& l, const C* x, const C* y, const int64_t* offsets, C* sums) {
  Vec<C> sum[kColumns][kRows] = {};
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
  for (int c = 0; c < kColumns; ++c) {
    for (int r = 0; r < kRows; ++r) sums[c * kRows + r] = Sum<C>(sum[c][r]);
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
  return (v.x_elements + v.y_elements) * static_cast<int64_t>(sizeof(C));
}

template <typename T>
void WeightGradNarrow(const WeightGradView& v, const GradItem& item, void* scratch) {
  using C = Compute<T>;
  const int64_t g = item.g, slice = item.slice, i0 = item.i0, o0 = item.o0;
  const int64_t in = item.in, out = item.out;
  C* x = static_cast<C*>(scratch);
  C* y = x + v.x_elements;
  C* partial = GradTarget<C>(v, item);
  for (int64_t i = 0; i < in; ++i) FillRow(partial + i * v.out * v.taps, out * v.taps, C(0));

  const int64_t image_rows = v.h.tile + v.h.span;
  const AxisClassView& ch = v.h.classes[0];
  const AxisClassView& cw = v.w.classes[0];
  const int64_t rows_total = out * v.taps;
  const int64_t end = v.units * (slice + 1) / v.slices;
  for (int64_t unit = v.units * slice / v.slices; unit < end; ++unit) {
    const Tile tile = UnitTile(v, unit, g);
    PackSource<T>({v.x, v.channels_last, v.groups * v.in, g * v.in + i0, in, &v.x_h, &v.x_w,
                   v.h.tile, v.x_pitch, v.x_stride, 0},
                  tile, x);
    PackSource<T>({v.dy, v.channels_last, v.groups * v.out, g * v.out + o0, out, &v.h, &v.w,
                   image_rows, v.y_pitch, v.y_stride, 0},
                  tile, y);
    GradLines lines;
    lines.images = tile.n;
    lines.rows = tile.h;
    lines.vectors = (tile.w + kLanes<C> - 1) / kLanes<C>;
    lines.tail = tile.w - (lines.vectors - 1) * kLanes<C>;
    lines.x_image = v.h.tile * v.x_pitch;
    lines.x_pitch = v.x_pitch;
    lines.x_stride = v.x_stride;
    lines.y_image = image_rows * v.y_pitch;
    lines.y_pitch = v.y_pitch;
    for (int64_t row0 = 0; row0 < rows_total; row0 += kGradRows) {
      const int rows = static_cast<int>(Min(kGradRows, rows_total - row0));
      int64_t offsets[kGradRows];
      int64_t targets[kGradRows];
      for (int r = 0; r < rows; ++r) {
        const int64_t o = (row0 + r) % out, tap = (row0 + r) / out;
        const int64_t th = tap / v.kernel_w, tw = tap % v.kernel_w;
        const int64_t plane = ch.planes[th] * v.w.num_src_planes + cw.planes[tw];
        offsets[r] = (plane * out + o) * v.y_stride + (ch.shifts[th] - v.h.shift_min) * v.y_pitch +
                     cw.shifts[tw] - v.w.shift_min;
        targets[r] = o * v.taps + ch.kernel[th] * v.kernel_w + cw.kernel[tw];
      }
      for (int64_t c0 = 0; c0 < in; c0 += kGradColumns) {
        const int columns = static_cast<int>(Min(kGradColumns, in - c0));
        C sums[kGradRows * kGradColumns];
        PickCorrelate<C>(rows, columns)(lines, x + c0 * v.x_stride, y, offsets, sums);
        for (int c = 0; c < columns; ++c) {
          for (int r = 0; r < rows; ++r) {
            partial[(c0 + c) * v.out * v.taps + targets[r]] += sums[c * rows + r];
          }
        }
      }
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_H_
