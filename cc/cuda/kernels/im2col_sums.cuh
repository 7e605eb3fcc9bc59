// col2im: outputs as sums of the columns of their taps, which lie in shared memory.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_SUMS_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_SUMS_CUH_

#include <cstdint>

#include "core/direct_plan.h"
#include "core/divider.h"
#include "core/im2col_forward_plan.h"
#include "cuda/kernels/im2col_stage.cuh"

namespace transconv::cuda::im2col {

struct ForwardParams {
  Im2colForwardPlan plan;
  DirectAxis h, w;
  // Elements from one to the next.
  int64_t x_batch, x_channel, y_batch, y_channel;
  int x_column, y_column;
  int in_per_group, out_per_group, taps;
  int streams;                   // of tiles, which blocks of the same group share
  int wide;                      // channels of x that a lane loads at once: 1, 2 or 4
  bool pairs;                    // a lane sums two neighbouring outputs, ...
  bool joined;                   // ... which are stored at once
  bool whole_rows;               // collected results are stored as such, four elements at once
  int hop_row, hop_column;       // columns' elements from one tap that an output has to the next
  Divider by_group;              // a block's index: group, stream
  Divider by_tile_w, by_tile_h;  // a tile's: column, row, image
  Divider by_window;             // a pixel of the window
  Divider by_items;              // lanes' outputs along a row
  Divider by_run_channels, by_run_columns;  // collected results
  Divider by_row_vectors;
  Divider by_steps, by_fragments, by_chunks;  // a weight
};

// Where a row or column of outputs starts among the columns, and how many taps it has.
struct alignas(8) TapRun {
  int at, count;
};

// The window's first pixel and the tile's first output.
struct ForwardTile {
  int image, x_row, x_column, y_row, y_column;
  __device__ ForwardTile(int index, const ForwardParams& p) : image(index) {
    const Im2colForwardPlan& g = p.plan;
    const int v_column = p.by_tile_w.Split(image) * g.v_columns;
    const int v_row = p.by_tile_h.Split(image) * g.v_rows;
    y_row = v_row * p.h.stride;
    y_column = v_column * p.w.stride;
    x_row = max(min(v_row + g.first_row, p.h.source - g.x_rows), 0);
    x_column = max(min(v_column + g.first_column, p.w.source - g.x_columns), 0);
  }
};

// The taps of output `o` whose pixels are in the window of `size` from `first` on. `row` is a tap's
// distance among the columns, `pixel` a pixel's.
__device__ inline TapRun TapsInWindow(const DirectAxis& axis, int o, int first, int size, int row,
                                      int pixel) {
  const DirectAxis::Taps taps = axis.TapsOf(o);
  int tap = taps.first, count = taps.count, source = taps.source - first;
  for (; count > 0 && source >= size; --count) {
    source -= axis.hop;
    tap += axis.step;
  }
  while (count > 0 && source - axis.hop * (count - 1) < 0) --count;
  return {tap * row + source * pixel, count};
}

// Adds B columns of taps that N outputs all have, and moves on by as many.
template <int N, int B>
__device__ __forceinline__ void SumBlock(float (&sum)[N], const float* (&at)[N], int rows,
                                         const ForwardParams& p) {
  const float* from[N];
#pragma unroll
  for (int j = 0; j < N; ++j) from[j] = at[j];
#pragma unroll 2
  for (int a = 0; a < rows; ++a) {
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += from[j][b * p.hop_column];
    }
#pragma unroll
    for (int j = 0; j < N; ++j) from[j] += p.hop_row;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) at[j] += B * p.hop_column;
}

// Sums of N outputs of a row, whose first taps are at `at`.
template <int N>
__device__ __forceinline__ void SumTaps(float (&sum)[N], const float* (&at)[N],
                                        const int (&count)[N], int rows, const ForwardParams& p) {
  const int shared = N == 1 ? count[0] : min(count[0], count[N - 1]);
  int left = shared;
  for (; left > 2; left -= 3) SumBlock<N, 3>(sum, at, rows, p);
  if (left == 2) SumBlock<N, 2>(sum, at, rows, p);
  if (left == 1) SumBlock<N, 1>(sum, at, rows, p);
  if constexpr (N > 1) {  // what only one of two has
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float one[1] = {sum[j]};
      const float* rest[1] = {at[j]};
      for (int b = shared; b < count[j]; ++b) SumBlock<1, 1>(one, rest, rows, p);
      sum[j] = one[0];
    }
  }
}

// Sums the outputs of a part, and stores them or, channels last, collects them in `results`.
template <typename E, int N>
__device__ __forceinline__ void AddColumns(typename E::Type* y, const float* columns,
                                           const TapRun* row_runs, float* results,
                                           const typename E::Type* bias, const ForwardTile& tile,
                                           int part, const ForwardParams& p) {
  const Im2colForwardPlan& g = p.plan;
  const int first = part * g.chunk, channels = min(g.chunk, p.out_per_group - first);
  const int run = g.collects_all ? p.out_per_group : channels;
  const int size = g.rows * (g.columns / N), hop_channel = p.taps * g.pitch;
  if (bias != nullptr) bias += first;
  y += first * p.y_channel;
  if (g.collects_all) results += first;
  for (int e = static_cast<int>(threadIdx.x); e < size; e += kBoxThreads) {
    int row = e;
    const int column = p.by_items.Split(row) * N;
    const int y_row = tile.y_row + row, y_column = tile.y_column + column;
    if (y_row >= p.h.target || y_column >= p.w.target) continue;
    const TapRun row_run = row_runs[row];
    const float* at[N];
    int count[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const TapRun column_run = row_runs[g.rows + column + j];
      at[j] = columns + (row_run.at + column_run.at);
      count[j] = column_run.count;
    }
    typename E::Type* to = y + (y_row * p.w.target + y_column) * p.y_column;
    float* result = results + (row * g.columns + column) * run;
    for (int c = 0; c < channels; ++c) {
      const float* from[N];
      float sum[N] = {};
#pragma unroll
      for (int j = 0; j < N; ++j) from[j] = at[j] + c * hop_channel;
      SumTaps<N>(sum, from, count, row_run.count, p);
      const float shift = bias == nullptr ? 0.0f : E::Widen(bias[c]);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += shift;
      if (g.collected) {
#pragma unroll
        for (int j = 0; j < N; ++j) result[j * run + c] = sum[j];
      } else if (N == 2 && p.joined) {
        StoreGlobal<typename E::Type, 2>(to, {{E::Round(sum[0]), E::Round(sum[N - 1])}});
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (y_column + j < p.w.target) to[j * p.y_column] = E::Round(sum[j]);
        }
      }
      to += p.y_channel;
    }
  }
}

// Stores collected results that are all channels of y: whole rows, four elements at a time.
template <typename E>
__device__ __forceinline__ void StoreRows(typename E::Type* y, const float* results,
                                          const ForwardTile& tile, const ForwardParams& p) {
  constexpr int V = 4;
  const Im2colForwardPlan& g = p.plan;
  const int size = g.columns * p.out_per_group, vectors = g.rows * (size / V);
  const int left = (p.w.target - tile.y_column) * p.out_per_group;
#pragma unroll 1  // for registers
  for (int e = static_cast<int>(threadIdx.x); e < vectors; e += kBoxThreads) {
    int row = e;
    const int at = p.by_row_vectors.Split(row) * V, y_row = tile.y_row + row;
    if (y_row >= p.h.target || at >= left) continue;
    const auto from = *reinterpret_cast<const Vector<float, V>*>(results + row * size + at);
    Vector<typename E::Type, V> value;
#pragma unroll
    for (int k = 0; k < V; ++k) value.value[k] = E::Round(from.value[k]);
    StoreGlobal<typename E::Type, V>(y + ((y_row * p.w.target + tile.y_column) * p.y_column + at),
                                     value);
  }
}

// Stores collected results, of channels from `first` on.
template <typename E>
__device__ __forceinline__ void StoreCollected(typename E::Type* y, const float* results,
                                               const ForwardTile& tile, int first,
                                               const ForwardParams& p) {
  const Im2colForwardPlan& g = p.plan;
  if (p.whole_rows) return StoreRows<E>(y, results, tile, p);
  const int run = g.collects_all ? p.out_per_group : min(g.chunk, p.out_per_group - first);
  const int width = g.collects_all ? p.out_per_group : g.chunk;
  const int size = g.rows * g.columns * width;
#pragma unroll 1  // for registers
  for (int e = static_cast<int>(threadIdx.x); e < size; e += kBoxThreads) {
    int row = e;
    const int c = p.by_run_channels.Split(row), column = p.by_run_columns.Split(row);
    const int y_row = tile.y_row + row, y_column = tile.y_column + column;
    if (c >= run || y_row >= p.h.target || y_column >= p.w.target) continue;
    y[(y_row * p.w.target + y_column) * p.y_column + first + c] =
        E::Round(results[(row * g.columns + column) * run + c]);
  }
}

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_SUMS_CUH_
