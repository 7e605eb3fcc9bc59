// The direct kernel's sums of products (direct.cuh): of an item's taps and channels, from shared
// memory.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_SUMS_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_SUMS_CUH_

#include "core/direct_plan.h"
#include "core/divider.h"

namespace transconv::cuda::direct {

// Distances between taps, and channels, that follow each other.
struct Hops {
  int cell_row, cell_column, cell_channel, weight_row, weight_column, weight_channel;
};

// Loads N values that lie side by side, 16 bytes at a time.
template <int N, typename A>
__device__ inline void LoadVector(A (&to)[N], const A* from) {
  constexpr int kPart = N * sizeof(A) > 16 ? 16 / sizeof(A) : N;
  struct alignas(kPart * sizeof(A)) Part {
    A value[kPart];
  };
  static_assert(N % kPart == 0, "whole vectors");
#pragma unroll
  for (int i = 0; i < N; i += kPart) {
    const Part part = *reinterpret_cast<const Part*>(from + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) to[i + j] = part.value[j];
  }
}

// sum += one channel's weights times the cells of the item's positions.
template <int RM, typename A>
__device__ inline void Multiply(A (&sum)[RM][kDirectPositions], const A* x, const A* w,
                                int hop_cell) {
  A value[kDirectPositions], factor[DirectPadded(RM)];
#pragma unroll
  for (int j = 0; j < kDirectPositions; ++j) value[j] = x[j * hop_cell];
  LoadVector(factor, w);
#pragma unroll
  for (int i = 0; i < RM; ++i) {
#pragma unroll
    for (int j = 0; j < kDirectPositions; ++j) sum[i][j] += factor[i] * value[j];
  }
}

// sum += the products of `rows` x `columns` taps of one plane and of `channels` channels.
// kOneChannel: often there is but one, which then needs no loop.
template <int RM, bool kOneChannel, typename A>
__device__ inline void Accumulate(A (&sum)[RM][kDirectPositions], const A* x, const A* w, int rows,
                                  int columns, const Hops& hop, int channels, int hop_position) {
  for (int b = 0; b < columns; ++b) {
    const A *x_row = x, *w_row = w;
    if (kOneChannel && channels == 1) {
#pragma unroll 2
      for (int a = 0; a < rows; ++a) {
        Multiply(sum, x_row, w_row, hop_position);
        x_row += hop.cell_row;
        w_row += hop.weight_row;
      }
    } else {
      for (int a = 0; a < rows; ++a) {
        const A *x_channel = x_row, *w_channel = w_row;
#pragma unroll 2
        for (int c = 0; c < channels; ++c) {
          Multiply(sum, x_channel, w_channel, hop_position);
          x_channel += hop.cell_channel;
          w_channel += hop.weight_channel;
        }
        x_row += hop.cell_row;
        w_row += hop.weight_row;
      }
    }
    x += hop.cell_column;
    w += hop.weight_column;
  }
}

// The same where a target has three tap rows, each a row of cells before the last, and positions
// are rows of cells, too: six cells of a channel serve twelve products of each of its weights'
// columns.
template <int RM, typename A>
__device__ inline void AccumulateThreeRows(A (&sum)[RM][kDirectPositions], const A* x, const A* w,
                                           int columns, const Hops& hop, int channels) {
  constexpr int kRows = 3, kCells = kDirectPositions + kRows - 1;
  x += (kRows - 1) * hop.cell_row;  // of the last tap, the first position's
  for (int b = 0; b < columns; ++b) {
    const A *x_channel = x, *w_channel = w;
#pragma unroll 1
    for (int c = 0; c < channels; ++c) {
      A cell[kCells];
#pragma unroll
      for (int i = 0; i < kCells; ++i) cell[i] = x_channel[-i * hop.cell_row];
#pragma unroll
      for (int a = 0; a < kRows; ++a) {
        A factor[DirectPadded(RM)];
        LoadVector(factor, w_channel + a * hop.weight_row);
#pragma unroll
        for (int i = 0; i < RM; ++i) {
#pragma unroll
          for (int j = 0; j < kDirectPositions; ++j) {
            sum[i][j] += factor[i] * cell[kRows - 1 - a + j];
          }
        }
      }
      x_channel += hop.cell_channel;
      w_channel += hop.weight_channel;
    }
    x += hop.cell_column;
    w += hop.weight_column;
  }
}

__device__ inline void Swap(int& a, int& b) {
  const int kept = a;
  a = b;
  b = kept;
}

// How many of `count` things are of the slice that takes thing `first` and every n-th after it.
__device__ inline int SliceOf(int count, int first, const Divider& by_n) {
  return first < count ? static_cast<int>(by_n.Quotient(count - 1 - first)) + 1 : 0;
}

// sum += the products of one slice with a chunk of grad_input: every `slices_w`-th tap column. Of
// its tap rows' two loops, over the planes and over the taps of one, the longer is inside.
template <int RM, typename A>
__device__ inline void AccumulateColumns(A (&sum)[RM][kDirectPositions], const A* x, const A* w,
                                         int first_column, int tap_rows, Hops hop, int channels,
                                         const DirectPlan& p) {
  const bool planes_inside = p.planes_h > p.h.InPlane(p.chunk_k, 0);
  int outer = p.planes_h, outer_cell = p.rows * p.row_pitch;
  int outer_weight = p.w.kernel * p.tap_pitch;
  if (planes_inside) {
    outer = p.h.InPlane(tap_rows, 0);
    Swap(outer_cell, hop.cell_row);
    Swap(outer_weight, hop.weight_row);
  }
  for (int column = first_column; column < p.w.kernel; column += p.slices_w) {
    int tap = column;
    const int plane_w = p.w.by_step.Split(tap);
    const A* x_outer = x + (plane_w * p.columns + tap * p.w.hop);
    const A* w_outer = w + column * p.tap_pitch;
    for (int i = 0; i < outer; ++i) {
      const int left = tap_rows - i * p.h.step;
      const int inner = !planes_inside    ? p.h.InPlane(tap_rows, i)
                        : left < p.h.step ? left
                                          : p.h.step;
      Accumulate<RM, true>(sum, x_outer, w_outer, inner, 1, hop, channels, p.hop_cell);
      x_outer += outer_cell;
      w_outer += outer_weight;
    }
  }
}

}  // namespace transconv::cuda::direct

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_SUMS_CUH_
