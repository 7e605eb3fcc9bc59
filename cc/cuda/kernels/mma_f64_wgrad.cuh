// float64 on tensor cores, weight gradient: per group a matrix product of
//
//     rows: input channels   columns: (output channel, tap)   sum: positions of x
//
// in the tiles of cuda/kernels/mma_f64.cuh. Blocks share the sum by ranges of positions; their
// parts are added in order (cuda/kernels/sum_splits.cuh).
#ifndef TRANSCONV_CUDA_KERNELS_MMA_F64_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_MMA_F64_WGRAD_CUH_

#include <cstdint>

#include "cuda/kernels/mma_f64.cuh"

namespace transconv::cuda::mma_f64 {

using WgradTile = Tile<2, 2, 4>;

struct WgradParams {
  const double* x;
  const double* dy;
  double* partial;  // [split][dw], or dw where there is one split
  int64_t size;     // of dw
  Image from, by;   // of x, of dy
  int stride_h, stride_w, dilation_h, dilation_w, crop_h, crop_w;
  int in, out, columns;  // of a group; columns are out times the taps
  int positions, per_split;
  // A block's index, from the fastest part on: columns, rows, group, split.
  Divider by_n, by_m, by_group;
  Divider by_width, by_height, by_tap, by_kernel_w;
};

constexpr int kWgradSizeA = WgradTile::kM * kTermPitch, kWgradSizeB = WgradTile::kN * kTermPitch;
constexpr int kWgradBytes =
    8 * kStages * (kWgradSizeA + kWgradSizeB) + static_cast<int>(sizeof(Term)) * WgradTile::kN;

static __global__ void __launch_bounds__(kThreads, kBlocksEach)
    WgradKernel(const __grid_constant__ WgradParams p) {
  // What a column adds to the place of a position in dy; its `weight` is not used.
  Term* const columns = reinterpret_cast<Term*>(SharedMemory());
  double* const ring_a = reinterpret_cast<double*>(columns + WgradTile::kN);
  double* const ring_b = ring_a + kStages * kWgradSizeA;
  const int tid = static_cast<int>(threadIdx.x);

  int split = static_cast<int>(blockIdx.x);
  const int n0 = p.by_n.Split(split) * WgradTile::kN;
  const int m0 = p.by_m.Split(split) * WgradTile::kM;
  const int group = p.by_group.Split(split);
  const int first = split * p.per_split;
  const int last = min(first + p.per_split, p.positions);
  const int stages = (last - first + kTerms - 1) / kTerms;

  if (tid < WgradTile::kN) {
    Term column = {kNowhere, kNowhere, 0, 0};
    if (n0 + tid < p.columns) {
      int channel = n0 + tid;
      int k_h = p.by_tap.Split(channel);
      const int k_w = p.by_kernel_w.Split(k_h);
      column.row = p.dilation_h * k_h - p.crop_h;
      column.column = p.dilation_w * k_w - p.crop_w;
      column.offset = column.row * p.by.row + column.column * p.by.column + channel * p.by.channel;
    }
    columns[tid] = column;
  }
  __syncthreads();

  const int k = tid % kTerms;
  const auto load = [&](int stage) {
    int image = first + stage * kTerms + k;
    const bool exists = image < last;
    if (!exists) image = 0;
    const int column = p.by_width.Split(image), row = p.by_height.Split(image);
    const double* const x = p.x + image * p.from.batch +
                            static_cast<int64_t>(group) * p.in * p.from.channel + row * p.from.row +
                            column * p.from.column;
    double* const a = ring_a + stage % kStages * kWgradSizeA + k;
#pragma unroll
    for (int m = tid / kTerms; m < WgradTile::kM; m += kThreads / kTerms) {
      const bool inside = exists && m0 + m < p.in;
      CopyAsyncBytes<8>(a + m * kTermPitch, x + (inside ? (m0 + m) * p.from.channel : 0), inside);
    }
    const int y_row = exists ? row * p.stride_h : kNowhere, y_column = column * p.stride_w;
    const int64_t y_at = image * p.by.batch + static_cast<int64_t>(group) * p.out * p.by.channel +
                         int64_t{y_row} * p.by.row + int64_t{y_column} * p.by.column;
    double* const b = ring_b + stage % kStages * kWgradSizeB + k;
#pragma unroll
    for (int n = tid / kTerms; n < WgradTile::kN; n += kThreads / kTerms) {
      const Term of = columns[n];
      const bool inside =
          static_cast<unsigned>(y_row + of.row) < static_cast<unsigned>(p.by.height) &&
          static_cast<unsigned>(y_column + of.column) < static_cast<unsigned>(p.by.width);
      CopyAsyncBytes<8>(b + n * kTermPitch, p.dy + (inside ? y_at + of.offset : 0), inside);
    }
  };

#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) load(stage);
    CopyAsyncCommit();
  }
  const Place<WgradTile> place;
  Sums<WgradTile> sum = {};
  for (int stage = 0; stage < stages; ++stage) {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < stages) load(stage + kStages - 1);
    CopyAsyncCommit();
    AddStage<WgradTile, kTermPitch, 1>(sum, ring_a + stage % kStages * kWgradSizeA,
                                       ring_b + stage % kStages * kWgradSizeB, place);
  }

  double* const to = p.partial + split * p.size;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int m = m0 + place.row + 8 * i;
    if (m >= p.in) continue;
    double* const line = to + (static_cast<int64_t>(group) * p.in + m) * p.columns;
#pragma unroll
    for (int j = 0; j < 2 * WgradTile::NT; ++j) {
      const int n = n0 + place.column + 8 * (j / 2) + 2 * place.t + j % 2;
      if (n < p.columns) line[n] = sum[i / 2][j / 2][2 * (i % 2) + j % 2];
    }
  }
}

}  // namespace transconv::cuda::mma_f64

#endif  // TRANSCONV_CUDA_KERNELS_MMA_F64_WGRAD_CUH_
