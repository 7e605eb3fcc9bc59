// The portable dense kernel for the gradient of the weights: tiles of positions and mma.sync.
//
// A block sums 64 input x 64 output channels of up to three taps over tiles of input positions. The
// cells of x and those of dy that the taps reach, which are the halo of the gradient of x
// (core/tile_plan.h), lie in shared memory as [chunk of 8 channels][cell][8]. Positions are what
// the sum runs over, so both operands are read transposed; a tap is an offset into the cells of dy.
//
// Eight warps take 32 x 16 channels each. A tile's sums leave the truncating accumulators in its
// own scale and are added in float32. With PRODUCTS = 3 the low parts of both operands are
// multiplied too (Ootomo and Yokota, arXiv:2203.03341).
#ifndef TRANSCONV_CUDA_KERNELS_MMA_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_MMA_WGRAD_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/tile_plan.h"
#include "cuda/kernels/mma_cells.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda::mma_wgrad {

using mma_cells::CellParams;
using mma_cells::CellPlace;
using mma_cells::Exchange;
using mma_cells::kThreads;
using mma_cells::Loader;

constexpr int kTaps = 3;  // of a block
constexpr int kChannels = 64;
constexpr int kChunks = kChannels / 8;
constexpr int kExchangeBytes = 256;
static_assert(2 * sizeof(Exchange) <= kExchangeBytes, "the tables start behind it");

struct WgradParams {
  CellParams x, dy;
  float* partial;  // [split][dw]
  int64_t size;    // of dw
  int in_per_group, out_per_group, taps;
  int rows, columns, column_shift;  // of a tile; log2 of columns / 8
  int steps;                        // of 16 positions in a tile
  int tiles, per_split;
  // A block's index, from the fastest part on: taps, output and input channels, group, split.
  Divider by_taps, by_out, by_in, by_group;
  Divider by_strip, by_row;   // a tile's index: strip, row, image
  int table_at, x_at, dy_at;  // in shared memory: the table of dy, the cells
  int first_row, first_column;
  int tap_cell[kMaxTileTaps];
  int16_t tap_kernel[kMaxTileTaps];
};

// A warp's share of a tile: 32 input x 16 output channels as 2 x 2 instructions of 16 x 8 a tap.
template <typename T, int PRODUCTS>
struct Warp {
  using Operand = typename Element<T>::Operand;
  using Sums = float[kTaps][16];

  const WgradParams& p;
  const uint32_t x, dy;  // shared addresses of this lane's rows of the first cells
  const int lane;

  __device__ Warp(const WgradParams& params, uint32_t x_cells, uint32_t dy_cells)
      : p(params),
        x(x_cells + (4 * (threadIdx.x / 32 % 2) + threadIdx.x / 8 % 2) * params.x.chunk_pitch +
          16 * (threadIdx.x % 8)),
        dy(dy_cells + (2 * (threadIdx.x / 64) + threadIdx.x % 32 / 16) * params.dy.chunk_pitch +
           16 * (threadIdx.x % 8)),
        lane(threadIdx.x % 32) {}

  // Cells of the g-th eight positions of a tile, whose rows lie `pitch` cells apart.
  __device__ __forceinline__ int Cell(int g, int pitch) const {
    return (g >> p.column_shift) * pitch + 8 * (g & ((1 << p.column_shift) - 1));
  }

  __device__ __forceinline__ void Products(Sums& sum, const uint32_t (&from_dy)[kTaps],
                                           uint32_t from_x) const {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      mma::LoadMatricesTransposed(a[i], from_x + 2 * i * p.x.chunk_pitch);
    }
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      uint32_t b[4];
      mma::LoadMatricesTransposed(b, from_dy[t]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float (&d)[4] = reinterpret_cast<float (&)[4]>(sum[t][8 * i + 4 * j]);
          mma::Multiply<Operand>(d, a[i], b[2 * j], b[2 * j + 1]);
        }
      }
    }
  }

  // Adds a tile; `tap_cell` are the places of this block's taps.
  __device__ __forceinline__ void Add(Sums& sum, const int (&tap_cell)[kTaps]) const {
    for (int step = 0; step < p.steps; ++step) {
      // Matrices of x are ordered by eight positions and then chunk, those of dy the other way.
      const uint32_t from_x = x + 16 * Cell(2 * step + lane / 16, p.columns);
      const int cell = Cell(2 * step + lane / 8 % 2, p.dy.halo_columns);
      uint32_t from_dy[kTaps];
#pragma unroll
      for (int t = 0; t < kTaps; ++t) from_dy[t] = dy + 16 * (cell + tap_cell[t]);
      if constexpr (PRODUCTS == 3) {
        // The small products first: less is cut off when the large one joins.
        Products(sum, from_dy, from_x + p.x.low_at);
#pragma unroll
        for (int t = 0; t < kTaps; ++t) from_dy[t] += p.dy.low_at;
        Products(sum, from_dy, from_x);
#pragma unroll
        for (int t = 0; t < kTaps; ++t) from_dy[t] -= p.dy.low_at;
      }
      Products(sum, from_dy, from_x);
    }
  }
};

template <typename T, int PRODUCTS>
__global__ void __launch_bounds__(kThreads) WgradKernel(const __grid_constant__ WgradParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Exchange* const exchange = reinterpret_cast<Exchange*>(shared);
  const uint32_t x_cells = ptx::SharedAddress(shared + p.x_at);
  const uint32_t dy_cells = ptx::SharedAddress(shared + p.dy_at);
  Loader<T, PRODUCTS, 1> x{p.x, reinterpret_cast<CellPlace*>(shared + kExchangeBytes), x_cells,
                           exchange[0]};
  Loader<T, PRODUCTS, 1> dy{p.dy, reinterpret_cast<CellPlace*>(shared + p.table_at), dy_cells,
                            exchange[1]};
  const Warp<T, PRODUCTS> warp(p, x_cells, dy_cells);

  int split = blockIdx.x;
  const int first_tap = p.by_taps.Split(split) * kTaps;
  const int out_block = p.by_out.Split(split) * kChannels;
  const int in_block = p.by_in.Split(split) * kChannels;
  const int group = p.by_group.Split(split);
  int tap_cell[kTaps];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) tap_cell[t] = p.tap_cell[min(first_tap + t, p.taps - 1)];

  typename Warp<T, PRODUCTS>::Sums sum = {};
  const int last = min((split + 1) * p.per_split, p.tiles);
  for (int index = split * p.per_split; index < last; ++index) {
    int image = index;
    const int column = p.by_strip.Split(image) * p.columns;
    const int row = p.by_row.Split(image) * p.rows;
    x.Build(row, column);
    dy.Build(p.dy.step_h * (row + p.first_row), p.dy.step_w * (column + p.first_column));
    __syncthreads();
    x.Load(static_cast<const char*>(p.x.image) + image * p.x.batch +
               (static_cast<int64_t>(group) * p.in_per_group + in_block) * p.x.channel,
           kChunks, p.in_per_group - in_block, true);
    dy.Load(static_cast<const char*>(p.dy.image) + image * p.dy.batch +
                (static_cast<int64_t>(group) * p.out_per_group + out_block) * p.dy.channel,
            kChunks, p.out_per_group - out_block, true);
    typename Warp<T, PRODUCTS>::Sums part = {};
    warp.Add(part, tap_cell);
    // Two factors: the product of both scales may leave float32's range.
    const bool scaled = sizeof(T) == 4;
    const float scale_x = scaled ? PowerOfTwo(x.exponent - kTargetExponent) : 1.f;
    const float scale_dy = scaled ? PowerOfTwo(dy.exponent - kTargetExponent) : 1.f;
#pragma unroll
    for (int i = 0; i < kTaps * 16; ++i) {
      sum[i / 16][i % 16] += part[i / 16][i % 16] * scale_x * scale_dy;
    }
    __syncthreads();
  }

  const int lane = threadIdx.x % 32, warp_index = threadIdx.x / 32;
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    if (first_tap + t >= p.taps) continue;
    float* const to = p.partial + split * p.size + p.tap_kernel[first_tap + t];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int in = in_block + 32 * (warp_index % 2) + 16 * (i / 8) + 8 * (i / 2 % 2) + lane / 4;
      const int out = out_block + 16 * (warp_index / 2) + 8 * (i / 4 % 2) + 2 * (lane % 4) + i % 2;
      if (in < p.in_per_group && out < p.out_per_group) {
        to[((static_cast<int64_t>(group) * p.in_per_group + in) * p.out_per_group + out) * p.taps] =
            sum[t][i];
      }
    }
  }
}

}  // namespace transconv::cuda::mma_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_MMA_WGRAD_CUH_
