// The weight gradient of few channels a group, or few on one side, on the tensor cores in TF32.
//
//     dw[ci, (co, kh, kw)] = sum over positions of x[ci, i] * dy[co, s i + d k - crop]
//
// A block takes weights (rows, 16 a fragment) of input channels (columns, 8 a fragment) of one
// group, and sums over tiles of positions (core/im2col_wgrad_plan.h). A tile's x, and what the taps
// reach of dy, lie in shared memory as they are in the image (core/im2col_box.h). Nothing is
// gathered: the address of an operand is what its row or column contributes, which a thread keeps
// in a register for all of its fragments, plus what the position contributes, which comes from a
// table of steps. So stride, dilation and layout are distances, and rows that fill no fragment by
// themselves, as 3 channels of 6 x 6 taps, fill seven together.
//
//  * A tile is copied while the one before is multiplied. float32 is copied as it is and rounded to
//    TF32 where it becomes an operand; 16-bit types pass through registers and lie there as floats.
//  * A step is eight positions in two halves of four, of one row or, in images of up to four
//    columns, of two. Positions outside of the image are zeros in x; those of dy are where another
//    tap reads real values, so that a step at the edge masks them, lest an infinity meet that zero.
//  * Where warps are left, slices of warps take turns at the steps, and their sums are added in
//    order at the end. No atomics: each split of the tiles writes its own sums.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_wgrad_plan.h"
#include "cuda/kernels/im2col_lines.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda::im2col_wgrad {

constexpr int kThreads = kBoxThreads;

struct Params {
  Im2colWgradPlan plan;
  // Elements from one to the next.
  int64_t x_batch, dy_batch, x_group, dy_group, x_channel, dy_channel;
  int64_t size;  // of dw
  int in_per_group, out_per_group, kernel_h, kernel_w;
  int rows, columns;  // of x
  int stride_h, stride_w, dilation_h, dilation_w, crop_h, crop_w;
  // A block's index, from the fastest part on.
  Divider by_tap_w, by_tap_h, by_out, by_in, by_group;
  Divider by_tile_w, by_tile_h;
  Divider by_taps, by_taps_w, by_channels;  // a weight's index
  Divider by_warps_m, by_warps_n, by_steps_w;
};

// What a tile leaves of rows and columns.
struct Extent {
  int rows, columns;
};

// A weight of the block.
struct Weight {
  int out, tap_h, tap_w;
};
__device__ __forceinline__ Weight WeightOf(int m, const Params& p) {
  Weight w;
  int tap = m;
  if (p.plan.taps_inside) {
    w.out = m;
    tap = p.by_taps.Split(w.out);
  } else {
    w.out = p.by_channels.Split(tap);
  }
  w.tap_w = p.by_taps_w.Split(tap);
  w.tap_h = tap;
  return w;
}

template <typename E>
__device__ __forceinline__ float OperandOf(float v) {
  if constexpr (im2col::kAsync<E>) {
    return E::Load(v);  // to TF32
  } else {
    return v;
  }
}

// What a thread adds to a step's place to find its operands, in bytes.
template <int FM, int FN>
struct Places {
  int dy[FM][2], x[FN];
  int dy_half, x_half;  // on to the step's second half
};

// sum += one step's products. kWhole: all of its positions are there; else those whose half of the
// step is `wanted`.
template <typename E, bool kWhole, int FM, int FN>
__device__ __forceinline__ void AddStep(float (&sum)[FM][FN][4], SharedPlace dy, SharedPlace x,
                                        const Places<FM, FN>& at, const bool (&wanted)[2]) {
  const SharedPlace dy_halves[2] = {dy, dy + at.dy_half}, x_halves[2] = {x, x + at.x_half};
  float b[FN][2];
#pragma unroll
  for (int j = 0; j < 2 * FN; ++j) {
    b[j / 2][j % 2] = OperandOf<E>(LoadFloat(x_halves[j % 2] + at.x[j / 2]));
  }
#pragma unroll
  for (int i = 0; i < FM; ++i) {
    float a[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float v = OperandOf<E>(LoadFloat(dy_halves[k / 2] + at.dy[i][k % 2]));
      a[k] = kWhole || wanted[k / 2] ? v : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < FN; ++j) tf32::Multiply(sum[i][j], a, b[j][0], b[j][1]);
  }
}

// sum += the products of this warp's slice of a tile.
template <typename E, int FM, int FN>
__device__ __forceinline__ void AddTile(float (&sum)[FM][FN][4], const Im2colStep* steps,
                                        SharedPlace dy, SharedPlace x, const Places<FM, FN>& at,
                                        int slice, const Extent& left, const Im2colWgradPlan& g) {
  const int lane_column = static_cast<int>(threadIdx.x) % 4;
  // Rows follow each other in the table.
  const int count = (left.rows + g.half_row) / (1 + g.half_row) * g.steps_w;
  for (int i = slice; i < count; i += g.slices) {
    const Im2colStep s = steps[i];
    const int columns = left.columns - s.column;
    const bool two_rows = s.row + g.half_row < left.rows;
    if (columns >= 4 + g.half_column && two_rows) {
      AddStep<E, true>(sum, dy + s.dy, x + s.x, at, {true, true});
    } else if (columns > 0) {
      const bool wanted[2] = {lane_column < columns,
                              lane_column + g.half_column < columns && two_rows};
      AddStep<E, false>(sum, dy + s.dy, x + s.x, at, wanted);
    }
  }
}

// Writes the sums of one split: [split][dw].
template <typename E, int FM, int FN>
__global__ void __launch_bounds__(kThreads, 2)
    WgradKernel(const typename E::Type* __restrict__ x, const typename E::Type* __restrict__ dy,
                float* __restrict__ partial, const __grid_constant__ Params p) {
  const Im2colWgradPlan& g = p.plan;
  float* const shared = reinterpret_cast<float*>(SharedMemory());
  Im2colStep* const steps = reinterpret_cast<Im2colStep*>(shared);
  im2col::Line* const x_lines = reinterpret_cast<im2col::Line*>(shared + g.x_lines_at);
  im2col::Line* const dy_lines = reinterpret_cast<im2col::Line*>(shared + g.dy_lines_at);
  float* const boxes = shared + g.boxes_at;

  int split = static_cast<int>(blockIdx.x);
  const int tap_w = p.by_tap_w.Split(split) * g.w.taps, tap_h = p.by_tap_h.Split(split) * g.h.taps;
  const int first_out = p.by_out.Split(split) * g.out, first_in = p.by_in.Split(split) * g.in;
  const int group = p.by_group.Split(split);
  x += group * p.x_group + first_in * p.x_channel;
  dy += group * p.dy_group + first_out * p.dy_channel;
  const int left_in = p.in_per_group - first_in, left_out = p.out_per_group - first_out;
  // Of the first tap from a tile's first position.
  const int reach_h = tap_h * p.dilation_h - p.crop_h, reach_w = tap_w * p.dilation_w - p.crop_w;

  for (int i = threadIdx.x; i < g.steps; i += kThreads) {
    int row = i;
    const int column = p.by_steps_w.Split(row) * (4 + g.half_column);
    row *= 1 + g.half_row;
    steps[i] = {4 * (row * g.h.stride * g.dy.box.row + column * g.w.stride * g.dy.box.column),
                4 * (row * g.x.box.row + column * g.x.box.column), row, column};
  }

  im2col::FillLines(x_lines, g.x, left_in);
  im2col::FillLines(dy_lines, g.dy, left_out);

  // This warp's fragments and this lane's part of them.
  int rest = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = p.by_warps_m.Split(rest), warp_n = p.by_warps_n.Split(rest);
  const int slice = rest;
  const int lane = static_cast<int>(threadIdx.x) % 32, lane_row = lane / 4, lane_column = lane % 4;
  Places<FM, FN> at;
  // Tiles start at multiples of four columns, so that the shift is that of the first.
  const int shift = g.dy.box.Shift(reach_w) + lane_column * g.w.stride * g.dy.box.column;
#pragma unroll
  for (int i = 0; i < 2 * FM; ++i) {
    const int m = (warp_m * FM + i / 2) * 16 + i % 2 * 8 + lane_row;
    const Weight weight = WeightOf(min(m, g.m - 1), p);
    at.dy[i / 2][i % 2] =
        4 * (shift + weight.out * g.dy.box.channel + weight.tap_h * g.h.dilation * g.dy.box.row +
             weight.tap_w * g.w.dilation * g.dy.box.column);
  }
#pragma unroll
  for (int j = 0; j < FN; ++j) {
    const int n = (warp_n * FN + j) * 8 + lane_row;
    at.x[j] = 4 * ((n < g.in ? n : 0) * g.x.box.channel + lane_column * g.x.box.column);
  }
  at.dy_half =
      4 * (g.half_row * g.h.stride * g.dy.box.row + g.half_column * g.w.stride * g.dy.box.column);
  at.x_half = 4 * (g.half_row * g.x.box.row + g.half_column * g.x.box.column);

  float sum[FM][FN][4] = {};
  const int64_t first = split * g.per_split;
  const int64_t last = min(first + g.per_split, g.tiles);
  int buffer = 0;
  // One more turn before the first tile, which copies it.
  for (int64_t index = first - 1; index < last; ++index) {
    if constexpr (im2col::kAsync<E>) CopyAsyncDone();
    __syncthreads();  // this tile is there, and nobody reads the one before
    if (index + 1 < last) {
      int image = static_cast<int>(index + 1);
      const int column = p.by_tile_w.Split(image) * g.w.size;
      const int row = p.by_tile_h.Split(image) * g.h.size;
      float* const to = boxes + (buffer ^ 1) * g.boxes;
      im2col::CopyLines<E>(to, x + image * p.x_batch, g.x, x_lines, row, column, left_in);
      im2col::CopyLines<E>(to + g.dy_at, dy + image * p.dy_batch, g.dy, dy_lines,
                           row * p.stride_h + reach_h, column * p.stride_w + reach_w, left_out);
    }
    if (slice < g.slices && index >= first) {
      int rest_h = static_cast<int>(index);
      const int column = p.by_tile_w.Split(rest_h) * g.w.size;
      const int row = p.by_tile_h.Split(rest_h) * g.h.size;
      const float* const from = boxes + buffer * g.boxes;
      const Extent left{min(p.rows - row, g.h.size), min(p.columns - column, g.w.size)};
      AddTile<E>(sum, steps, PlaceOf(from + g.dy_at), PlaceOf(from), at, slice, left, g);
    }
    buffer ^= 1;
  }
  __syncthreads();

  // The slices' sums, in order.
  constexpr int kSums = FM * FN * 4;
  const int warps = g.warps_m * g.warps_n, warp = warp_n * g.warps_m + warp_m;
  if (slice > 0 && slice < g.slices) {
    float* const to = shared + ((slice - 1) * warps + warp) * (kSums * 32) + lane;
#pragma unroll
    for (int i = 0; i < kSums; ++i) to[i * 32] = sum[i / 4 / FN][i / 4 % FN][i % 4];
  }
  __syncthreads();
  if (slice > 0) return;
  for (int s = 1; s < g.slices; ++s) {
    const float* const from = shared + ((s - 1) * warps + warp) * (kSums * 32) + lane;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i / 4 / FN][i / 4 % FN][i % 4] += from[i * 32];
  }

  partial +=
      split * p.size + int64_t{group} * p.in_per_group * p.out_per_group * p.kernel_h * p.kernel_w;
#pragma unroll
  for (int i = 0; i < 2 * FM; ++i) {
    const int m = (warp_m * FM + i / 2) * 16 + i % 2 * 8 + lane_row;
    const Weight weight = WeightOf(min(m, g.m - 1), p);
    const int out = first_out + weight.out, h = tap_h + weight.tap_h, w = tap_w + weight.tap_w;
    if (m >= g.m || out >= p.out_per_group || h >= p.kernel_h || w >= p.kernel_w) continue;
#pragma unroll
    for (int j = 0; j < 2 * FN; ++j) {
      const int n = (warp_n * FN + j / 2) * 8 + 2 * lane_column + j % 2;
      const int in = first_in + n;
      if (n >= g.in || in >= p.in_per_group) continue;
      partial[((int64_t{in} * p.out_per_group + out) * p.kernel_h + h) * p.kernel_w + w] =
          sum[i / 2][j / 2][i % 2 * 2 + j % 2];
    }
  }
}

inline Params MakeParams(const Problem& problem, const Im2colWgradPlan& plan) {
  const Problem q = transconv::im2col_wgrad::ColumnAsRow(problem);
  const bool first = q.layout == Layout::kNCHW;
  Params p{};
  p.plan = plan;
  p.x_channel = first ? q.h.in * q.w.in : 1;
  p.dy_channel = first ? q.h.out * q.w.out : 1;
  p.x_batch = q.in_channels * q.h.in * q.w.in;
  p.dy_batch = q.out_channels * q.h.out * q.w.out;
  p.x_group = q.in_per_group() * p.x_channel;
  p.dy_group = q.out_per_group() * p.dy_channel;
  p.size = q.in_channels * q.out_per_group() * q.taps();
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.kernel_h = static_cast<int>(q.h.kernel);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.rows = static_cast<int>(q.h.in);
  p.columns = static_cast<int>(q.w.in);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.by_tap_w = Divider(plan.w.tap_blocks);
  p.by_tap_h = Divider(plan.h.tap_blocks);
  p.by_out = Divider(plan.out_blocks);
  p.by_in = Divider(plan.in_blocks);
  p.by_group = Divider(q.groups);
  p.by_tile_w = Divider(plan.w.tiles);
  p.by_tile_h = Divider(plan.h.tiles);
  p.by_taps = Divider(plan.h.taps * plan.w.taps);
  p.by_taps_w = Divider(plan.w.taps);
  p.by_channels = Divider(plan.out);
  p.by_warps_m = Divider(plan.warps_m);
  p.by_warps_n = Divider(plan.warps_n);
  p.by_steps_w = Divider(plan.steps_w);
  return p;
}

}  // namespace transconv::cuda::im2col_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_CUH_
