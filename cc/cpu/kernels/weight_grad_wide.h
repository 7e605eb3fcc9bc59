// grad_weight with the input channels as the vector dimension: for 8 and more of them per group.
//
// Both tensors are packed with channels innermost, so a residue plane of dy is only another
// address, and a block of sums is an outer product: vectors of input channels times single elements
// of dy, one per (tap, output channel). Rows are exact, without padding to vectors of positions,
// and no sum across lanes is needed.
#ifndef TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_WIDE_H_
#define TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_WIDE_H_

#include <cstdint>

#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/grad_item.h"
#include "cpu/kernels/minor.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/transpose.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

inline constexpr int kWideVectors = 4;
constexpr int WideRows(int vectors) {
  const int fit = TRANSCONV_ACCUMULATORS / vectors;
  return fit < 12 ? fit : 12;
}

struct WideLines {
  int64_t rows, columns;
  int64_t x_row, x_pitch;  // between rows, between positions
  int64_t y_row, y_pitch;
};

// acc[sums[r]][vector of channels] += x[position][channels] * y[position][offsets[r]].
template <typename C, int kRows, int kVectors>
void OuterProduct(const WideLines& l, const C* x, const C* y, const int64_t* offsets, C* acc,
                  const int64_t* sums) {
  Vec<C> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) sum[r][j] = Load(acc + sums[r] + j * kLanes<C>);
  }
  for (int64_t h = 0; h < l.rows; ++h) {
    const C* xp = x + h * l.x_row;
    const C* yp = y + h * l.y_row;
    for (int64_t w = 0; w < l.columns; ++w) {
      Vec<C> xv[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) xv[j] = Load(xp + j * kLanes<C>);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<C> yv = Broadcast<C>(yp[offsets[r]]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sum[r][j] += yv * xv[j];
      }
      xp += l.x_pitch;
      yp += l.y_pitch;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) Store(acc + sums[r] + j * kLanes<C>, sum[r][j]);
  }
}

template <typename C>
using OuterProductFn = void (*)(const WideLines&, const C*, const C*, const int64_t*, C*,
                                const int64_t*);

template <typename C, int kVectors, int kRows = WideRows(kVectors)>
OuterProductFn<C> PickOuterRows(int rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return PickOuterRows<C, kVectors, kRows - 1>(rows);
  }
  return &OuterProduct<C, kRows, kVectors>;
}

template <typename C, int kVectors = kWideVectors>
OuterProductFn<C> PickOuter(int rows, int vectors) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) return PickOuter<C, kVectors - 1>(rows, vectors);
  }
  return PickOuterRows<C, kVectors>(rows);
}

template <typename T>
int64_t WideScratch(const WeightGradView& v) {
  using C = Compute<T>;
  return 2 * GradListBytes(v) +
         (v.x_elements + v.y_elements + v.acc_elements) * static_cast<int64_t>(sizeof(C));
}

// All sums of one panel of input channels over one packed tile.
template <typename C>
void WidePanel(const WeightGradView& v, const Tile& tile, const WideLines& strides,
               int64_t channels, int64_t rows_total, const C* x, const C* y, const int64_t* offsets,
               const int64_t* sums, C* acc) {
  const int64_t image_rows = v.h.tile + v.h.span;
  const int64_t vectors_total = (channels + kLanes<C> - 1) / kLanes<C>;
  const int64_t groups_of_vectors = (vectors_total + kWideVectors - 1) / kWideVectors;
  const int64_t step = (vectors_total + groups_of_vectors - 1) / groups_of_vectors;
  // Few enough positions at a time that those of x stay in the L1 cache for all rows of sums.
  const int64_t lines = Max(1, v.wide_positions / tile.w);
  const int64_t pieces = (tile.w + v.wide_positions - 1) / v.wide_positions;
  const int64_t columns = (tile.w + pieces - 1) / pieces;
  WideLines l = strides;
  for (int64_t n = 0; n < tile.n; ++n) {
    for (int64_t h0 = 0; h0 < tile.h; h0 += lines) {
      for (int64_t w0 = 0; w0 < tile.w; w0 += columns) {
        l.rows = Min(lines, tile.h - h0);
        l.columns = Min(columns, tile.w - w0);
        const C* xp = x + (n * v.h.tile + h0) * l.x_row + w0 * l.x_pitch;
        const C* yp = y + (n * image_rows + h0) * l.y_row + w0 * l.y_pitch;
        for (int64_t v0 = 0; v0 < vectors_total; v0 += step) {
          const int count = static_cast<int>(Min(step, vectors_total - v0));
          const int64_t block = WideRows(count);
          const OuterProductFn<C> full = PickOuter<C>(static_cast<int>(block), count);
          const C* xv = xp + v0 * kLanes<C>;
          C* to = acc + v0 * kLanes<C>;
          int64_t row = 0;
          for (; row + block <= rows_total; row += block) {
            full(l, xv, yp, offsets + row, to, sums + row);
          }
          if (row < rows_total) {
            PickOuter<C>(static_cast<int>(rows_total - row), count)(l, xv, yp, offsets + row, to,
                                                                    sums + row);
          }
        }
      }
    }
  }
}

template <typename T>
void WeightGradWide(const WeightGradView& v, const GradItem& item, void* scratch) {
  using C = Compute<T>;
  int64_t* offsets = static_cast<int64_t*>(scratch);
  int64_t* sums = offsets + GradListBytes(v) / static_cast<int64_t>(sizeof(int64_t));
  C* x = reinterpret_cast<C*>(static_cast<char*>(scratch) + 2 * GradListBytes(v));
  C* y = x + v.x_elements;
  C* acc = y + v.y_elements;
  const int64_t rows_total = item.out * v.taps;
  const int64_t panels = (item.in + v.panel_in - 1) / v.panel_in;
  const int64_t panel_sums = rows_total * v.x_pitch;
  FillRow(acc, panels * panel_sums, C(0));

  const int64_t image_rows = v.h.tile + v.h.span, y_row = (v.w.tile + v.w.span) * v.y_pitch;
  const int64_t y_plane = v.tile_n * image_rows * y_row;
  const AxisClassView& ch = v.h.classes[0];
  const AxisClassView& cw = v.w.classes[0];
  for (int64_t row = 0; row < rows_total; ++row) {
    const int64_t o = row % item.out, tap = row / item.out;
    const int64_t th = tap / v.kernel_w, tw = tap % v.kernel_w;
    offsets[row] = (ch.planes[th] * v.w.num_src_planes + cw.planes[tw]) * y_plane +
                   (ch.shifts[th] - v.h.shift_min) * y_row +
                   (cw.shifts[tw] - v.w.shift_min) * v.y_pitch + o;
    sums[row] = (o * v.taps + ch.kernel[th] * v.kernel_w + cw.kernel[tw]) * v.x_pitch;
  }
  const WideLines strides = {0, 0, v.w.tile * v.x_pitch, v.x_pitch, y_row, v.y_pitch};
  const int64_t end = v.units * (item.slice + 1) / v.slices;
  for (int64_t unit = v.units * item.slice / v.slices; unit < end; ++unit) {
    const Tile tile = UnitTile(v, unit, item.g);
    PackMinor<T>({v.dy, v.channels_last, v.groups * v.out, item.g * v.out + item.o0, item.out, &v.h,
                  &v.w, image_rows, v.w.tile + v.w.span, 0, 0, 0},
                 tile, v.tile_n, y, v.y_pitch);
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t i0 = panel * v.panel_in, channels = Min(v.panel_in, item.in - i0);
      PackMinor<T>({v.x, v.channels_last, v.groups * v.in, item.g * v.in + item.i0 + i0, channels,
                    &v.x_h, &v.x_w, v.h.tile, v.w.tile, 0, 0, 0},
                   tile, v.tile_n, x, v.x_pitch);
      WidePanel<C>(v, tile, strides, channels, rows_total, x, y, offsets, sums,
                   acc + panel * panel_sums);
    }
  }
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t i0 = panel * v.panel_in;
    TransposeBlock(acc + panel * panel_sums, v.x_pitch, rows_total, Min(v.panel_in, item.in - i0),
                   GradTarget<C>(v, item) + i0 * v.out * v.taps, v.out * v.taps);
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_WEIGHT_GRAD_WIDE_H_
