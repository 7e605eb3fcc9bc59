// The weight gradient of pixels of 16 bits (NHWC), few output channels, on the tensor cores.
//
//     dw[ci, (co, kh, kw)] = sum over positions of x[ci, i] * dy[co, s i + d k - crop]
//
// A block takes input channels (rows, 16 a fragment) and all weights of each (columns, 8 a
// fragment), and sums over tiles of positions, 16 a step (core/im2col_wgrad_pixels_plan.h). x is
// read once, dy almost once, so that memory is the limit where all else is little: both are copied
// as they are, and nothing waits for them.
//
//  * An operand of x is eight channels of eight pixels, which the load transposes.
//  * An operand of dy is two positions side by side, which are so in a plane of the columns of one
//    residue by the stride, in a copy of it that is shifted where the tap's distance is odd. dy is
//    taken apart into such planes a tile ahead, while others multiply.
//  * An operand's address is what the weight contributes, which a thread keeps in a register, and
//    what the step contributes.
//  * Positions outside of the image are zeros in x; those of dy are where another tap reads real
//    values, so that a step at the edge masks them, lest an infinity meet that zero.
//  * Where warps are left, slices of warps take turns at the steps, and their sums are added in
//    order at the end. No atomics: each split of the tiles writes its own sums.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_PIXELS_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_PIXELS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_wgrad_pixels_plan.h"
#include "cuda/kernels/im2col_pixels.cuh"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::pixels_wgrad {

constexpr int kThreads = kBoxThreads;
using transconv::pixels_wgrad::kStep;

struct Params {
  PixelsWgradPlan plan;
  pixels::Image dy;
  int64_t x_batch;  // elements of an image
  int x_row;        // and of a row
  int in_channels, kernel_h, kernel_w;
  int rows, columns;  // of x
  int dilation_h, dilation_w;
  Divider by_in, by_tile_w, by_tile_h;        // a block's and a tile's index
  Divider by_chunks, by_columns, by_vectors;  // what threads copy
  Divider by_halo_w, by_stride_w, by_steps_w;
  Divider by_taps, by_taps_w, by_out;  // a weight's index
  Divider by_warps_m, by_warps_n;
};

using pixels::Tile;
__device__ __forceinline__ Tile TileOf(int64_t index, const Params& p) {
  Tile t;
  t.image = static_cast<int>(index);
  t.column = p.by_tile_w.Split(t.image) * p.plan.w.size;
  t.row = p.by_tile_h.Split(t.image) * p.plan.h.size;
  return t;
}

// A weight of an input channel.
struct Weight {
  int out, tap_h, tap_w;
};
__device__ __forceinline__ Weight WeightOf(int n, const Params& p) {
  Weight w;
  int tap = n;
  if (p.plan.taps_inside) {
    w.out = n;
    tap = p.by_taps.Split(w.out);
  } else {
    w.out = p.by_out.Split(tap);
  }
  w.tap_w = p.by_taps_w.Split(tap);
  w.tap_h = tap;
  return w;
}

// A tile of x. Of the block's channels `left` are there.
__device__ __forceinline__ void CopyX(uint16_t* to, const uint16_t* __restrict__ x, const Tile& t,
                                      int left, const Params& p) {
  const PixelsWgradPlan& g = p.plan;
  int pixel = static_cast<int>(threadIdx.x);
  const int channel = p.by_chunks.Split(pixel) * 8;
  if (pixel >= g.at_once) return;
  const uint16_t* const from = x + t.image * p.x_batch + channel;
  const bool there = channel < left;
  const int pixels = g.h.size * g.w.size;
#pragma unroll 4
  for (; pixel < pixels; pixel += g.at_once) {
    int row = pixel;
    const int column = p.by_columns.Split(row);
    const int at_row = t.row + row, at_column = t.column + column;
    const bool wanted = there && at_row < p.rows && at_column < p.columns;
    CopyAsyncBytes<16>(to + (pixel * (g.pixel / 2) + channel),
                       from + (wanted ? at_row * p.x_row + at_column * p.in_channels : 0), wanted);
  }
}

// Takes a tile's rows of dy apart into planes.
__device__ __forceinline__ void TakeApart(uint16_t* to, const uint16_t* from, const Tile& t,
                                          const Params& p) {
  const PixelsWgradPlan& g = p.plan;
  const int count = g.h.halo * g.w.halo, row_from = g.vectors * (g.vector / 2);
  from += pixels::ShiftOf(t, g.vector, p.dy);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    int row = i;
    int column = p.by_halo_w.Split(row);
    const uint16_t* const pixel = from + (row * row_from + column * p.dy.channels);
    const int residue = p.by_stride_w.Split(column);
    uint16_t* const place = to + (row * g.row + residue * g.residue + column);
    // The first column is not read in the shifted copy.
    const int second = g.copy != 0 && column > 0 ? g.copy - 1 : 0;
#pragma unroll 3
    for (int c = 0; c < p.dy.channels; ++c) {
      const uint16_t v = pixel[c];
      place[c * g.channel] = v;
      place[c * g.channel + second] = v;
    }
  }
}

// Of a step's positions that a lane has in one word, those that are there.
__device__ __forceinline__ uint32_t MaskOf(int left) {
  return left >= 2 ? 0xffffffffu : left == 1 ? 0xffffu : 0u;
}

// sum += one step's products. `left`: how many of the positions from this lane's first on are
// there.
template <typename Operand, bool kWhole, int FM, int FN>
__device__ __forceinline__ void AddStep(float (&sum)[FM][FN][4], SharedPlace x, SharedPlace dy,
                                        const int (&at)[FN], int left) {
  uint32_t b[FN][2];
#pragma unroll
  for (int j = 0; j < FN; ++j) {
    const SharedPlace from = dy + at[j];
    b[j][0] = LoadWord(from);
    b[j][1] = LoadWord(from + kStep);
    if constexpr (!kWhole) {
      b[j][0] &= MaskOf(left);
      b[j][1] &= MaskOf(left - kStep / 2);
    }
  }
#pragma unroll
  for (int i = 0; i < FM; ++i) {
    uint32_t a[4];
    mma::LoadMatricesTransposed(a, x + 32 * i);
#pragma unroll
    for (int j = 0; j < FN; ++j) mma::Multiply<Operand>(sum[i][j], a, b[j][0], b[j][1]);
  }
}

// Writes the sums of one split: [split][dw].
template <typename Operand, int FM, int FN>
__global__ void __launch_bounds__(kThreads, 2)
    PixelsKernel(const uint16_t* __restrict__ x, const uint16_t* __restrict__ dy,
                 float* __restrict__ partial, const __grid_constant__ Params p) {
  const PixelsWgradPlan& g = p.plan;
  unsigned char* const x_boxes = SharedMemory();
  unsigned char* const dy_boxes = x_boxes + 2 * g.x_bytes;
  unsigned char* const planes = dy_boxes + 2 * g.dy_bytes;
  const auto box = [](unsigned char* first, int bytes, int64_t index) {
    return reinterpret_cast<uint16_t*>(first + (index & 1) * bytes);
  };

  int split = static_cast<int>(blockIdx.x);
  const int first_in = p.by_in.Split(split) * g.in, left_in = p.in_channels - first_in;
  x += first_in;

  // This warp's fragments and this lane's part of them.
  int slice = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = p.by_warps_m.Split(slice), warp_n = p.by_warps_n.Split(slice);
  const int lane = static_cast<int>(threadIdx.x) % 32, lane_row = lane / 4, lane_column = lane % 4;
  int at[FN];
#pragma unroll
  for (int j = 0; j < FN; ++j) {
    const int n = (warp_n * FN + j) * 8 + lane_row;
    const Weight weight = WeightOf(min(n, g.weights - 1), p);
    int shift = weight.tap_w * p.dilation_w;
    const int residue = p.by_stride_w.Split(shift);
    at[j] = 2 * (weight.out * g.channel + weight.tap_h * p.dilation_h * g.row +
                 residue * g.residue + (shift % 2 == 0 ? shift : g.copy + shift - 1)) +
            4 * lane_column;
  }
  // Matrices are channels 0 to 7 and 8 to 15 of positions 0 to 7, and then of 8 to 15.
  const int x_at = (lane / 16 * 8 + lane % 8) * g.pixel + lane / 8 % 2 * 16 + warp_m * (FM * 32);

  float sum[FM][FN][4] = {};
  const int64_t first = split * g.per_split;
  const int64_t last = min(first + g.per_split, g.tiles);
  // Two more turns before the first tile: one copies its dy, one its x and takes dy apart.
  for (int64_t index = first - 2; index < last; ++index) {
    CopyAsyncDone();
    __syncthreads();  // what was copied is there, and nobody reads the tile before
    const int64_t next = index + 1;
    if (next >= first && next < last) {
      CopyX(box(x_boxes, g.x_bytes, next), x, TileOf(next, p), left_in, p);
    }
    if (index + 2 < last) {
      pixels::CopyRows(dy_boxes + (index & 1) * g.dy_bytes, dy, TileOf(index + 2, p), g.h.halo,
                       g.vectors, g.vector, g.vectors * g.vector, p.by_vectors, p.dy);
    }
    if (next >= first && next < last) {
      TakeApart(box(planes, g.planes_bytes, next), box(dy_boxes, g.dy_bytes, next), TileOf(next, p),
                p);
    }
    if (index < first || slice >= g.slices) continue;
    const Tile tile = TileOf(index, p);
    const SharedPlace from = PlaceOf(box(x_boxes, g.x_bytes, index)) + x_at;
    const SharedPlace from_dy = PlaceOf(box(planes, g.planes_bytes, index));
    const int count = min(p.rows - tile.row, g.h.size) * g.steps_w;
    for (int i = slice; i < count; i += g.slices) {
      int row = i;
      const int column = p.by_steps_w.Split(row) * kStep;
      const SharedPlace step_x = from + (row * g.w.size + column) * g.pixel;
      const SharedPlace step_dy = from_dy + 2 * (row * p.dy.stride_h * g.row + column);
      const int left = p.columns - tile.column - column;
      if (left >= kStep) {
        AddStep<Operand, true>(sum, step_x, step_dy, at, 0);
      } else if (left > 0) {
        AddStep<Operand, false>(sum, step_x, step_dy, at, left - 2 * lane_column);
      }
    }
  }
  __syncthreads();

  // The slices' sums, in order.
  constexpr int kSums = FM * FN * 4;
  const int warps = g.warps_m * g.warps_n, warp = warp_n * g.warps_m + warp_m;
  float* const shared = reinterpret_cast<float*>(SharedMemory());
  if (slice > 0 && slice < g.slices) {
    float* const to = shared + ((slice - 1) * warps + warp) * (kSums * 32) + lane;
#pragma unroll
    for (int i = 0; i < kSums; ++i) to[i * 32] = sum[i / 4 / FN][i / 4 % FN][i % 4];
  }
  __syncthreads();
  if (slice > 0) return;
  for (int s = 1; s < g.slices; ++s) {
    const float* const other = shared + ((s - 1) * warps + warp) * (kSums * 32) + lane;
#pragma unroll
    for (int i = 0; i < kSums; ++i) sum[i / 4 / FN][i / 4 % FN][i % 4] += other[i * 32];
  }

  partial += int64_t{split} * p.in_channels * g.weights;
#pragma unroll
  for (int j = 0; j < 2 * FN; ++j) {
    const int n = (warp_n * FN + j / 2) * 8 + 2 * lane_column + j % 2;
    if (n >= g.weights) continue;
    const Weight w = WeightOf(n, p);
    const int place = (w.out * p.kernel_h + w.tap_h) * p.kernel_w + w.tap_w;
#pragma unroll
    for (int i = 0; i < 2 * FM; ++i) {
      const int in = (warp_m * FM + i / 2) * 16 + i % 2 * 8 + lane_row;
      if (in >= min(g.in, left_in)) continue;
      partial[int64_t{first_in + in} * g.weights + place] = sum[i / 2][j / 2][i % 2 * 2 + j % 2];
    }
  }
}

inline Params MakeParams(const Problem& problem, const PixelsWgradPlan& plan) {
  const Problem q = transconv::im2col_wgrad::ColumnAsRow(problem);
  Params p{};
  p.plan = plan;
  p.dy = pixels::ImageOfY(q);
  p.x_row = static_cast<int>(q.w.in * q.in_channels);
  p.x_batch = q.h.in * p.x_row;
  p.in_channels = static_cast<int>(q.in_channels);
  p.kernel_h = static_cast<int>(q.h.kernel);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.rows = static_cast<int>(q.h.in);
  p.columns = static_cast<int>(q.w.in);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.by_in = Divider(plan.in_blocks);
  p.by_tile_w = Divider(plan.w.tiles);
  p.by_tile_h = Divider(plan.h.tiles);
  p.by_chunks = Divider(plan.chunks);
  p.by_columns = Divider(plan.w.size);
  p.by_vectors = Divider(plan.vectors);
  p.by_halo_w = Divider(plan.w.halo);
  p.by_stride_w = Divider(q.w.stride);
  p.by_steps_w = Divider(plan.steps_w);
  p.by_taps = Divider(q.taps());
  p.by_taps_w = Divider(q.w.kernel);
  p.by_out = Divider(q.out_channels);
  p.by_warps_m = Divider(plan.warps_m);
  p.by_warps_n = Divider(plan.warps_n);
  return p;
}

}  // namespace transconv::cuda::pixels_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_WGRAD_PIXELS_CUH_
