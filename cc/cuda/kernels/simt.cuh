// The general kernel of all three passes: a tiled matrix product on the ordinary float units.
//
// Each pass is C[m, n] = sum over k of A[m, k] B[k, n], per group and, in the forward pass, per
// output residue (core/geometry.h):
//
//     forward      m: output channel   n: output position of the residue   k: (tap, input channel)
//     grad_input   m: input channel    n: input position                   k: (tap, output channel)
//     grad_weight  m: input channel    n: output channel                   k: input position, per
//     tap
//
// Operands are gathered into shared memory; zeros of the stride are never multiplied. Positions and
// offsets are 64-bit, every shape, type and layout runs here.
#ifndef TRANSCONV_CUDA_KERNELS_SIMT_CUH_
#define TRANSCONV_CUDA_KERNELS_SIMT_CUH_

#include <cstdint>

#include "core/geometry.h"
#include "core/residue_taps.h"
#include "cuda/primitives/simt.cuh"

namespace transconv::cuda::simt {

// Strides in elements of an image tensor in either layout.
struct ImageStrides {
  int64_t batch, channel, row, column;
  __host__ __device__ ImageStrides(Layout layout, int64_t channels, int64_t height, int64_t width) {
    batch = channels * height * width;
    const bool first = layout == Layout::kNCHW;
    channel = first ? height * width : 1;
    row = first ? width : width * channels;
    column = first ? 1 : channels;
  }
};

constexpr int kThreads = 256;

// A block computes TM x TN outputs, KS terms of the sum at a time; a thread holds RM x RN of them.
template <int TM_, int TN_, int KS_, int RM_, int RN_>
struct TileShape {
  static constexpr int TM = TM_, TN = TN_, KS = KS_, RM = RM_, RN = RN_;
  static constexpr int kThreadsM = TM / RM, kThreadsN = TN / RN;
  static_assert(kThreadsM * kThreadsN == kThreads, "one thread per register tile");
  static_assert(TM * KS % kThreads == 0 || TM * KS < kThreads, "A is loaded in whole rounds");
  static_assert(TN * KS % kThreads == 0, "B is loaded in whole rounds");
};

// One term k of the sum, the same for every column: where it lies relative to a column's origin.
struct Term {
  int32_t row, column;  // what to add to the column's row and column
  int64_t offset;       // what to add to the column's image offset, channel included
  int64_t weight;       // what to add to the row's weight offset
};

// forward and grad_input: gathers `image` (x or dy) over taps and channels.
struct GatherParams {
  Problem problem;
  ImageStrides image;   // of the gathered tensor
  ImageStrides target;  // of the written tensor
  int64_t tiles_m, tiles_n, tiles;
};

// Origin of one column n: its place in the gathered image before any tap.
struct Column {
  int64_t row, column;  // of the gathered image
  int64_t image;        // offset of (row, column), channel 0 of the batch entry
  int64_t target;       // offset in the written tensor, channel 0; negative if there is none
};

template <Pass kPass>
__device__ inline Column ColumnOf(const GatherParams& p, int64_t n, int64_t residue_h,
                                  int64_t residue_w) {
  const Axis& h = p.problem.h;
  const Axis& w = p.problem.w;
  const bool forward = kPass == Pass::kForward;
  const int64_t width = forward ? w.ResidueExtent(residue_w) : w.in;
  const int64_t height = forward ? h.ResidueExtent(residue_h) : h.in;
  Column c{0, 0, 0, -1};
  if (width == 0 || height == 0 || n >= p.problem.batch * height * width) return c;
  const int64_t column = n % width, row = n / width % height, image = n / width / height;
  c.target = image * p.target.batch;
  if (forward) {
    c.row = row;
    c.column = column;
    c.target += (row * h.stride + residue_h) * p.target.row +
                (column * w.stride + residue_w) * p.target.column;
  } else {
    c.row = row * h.stride - h.crop_lo;
    c.column = column * w.stride - w.crop_lo;
    c.target += row * p.target.row + column * p.target.column;
  }
  c.image = image * p.image.batch + c.row * p.image.row + c.column * p.image.column;
  return c;
}

template <typename T, typename Tile, Pass kPass>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(const T* __restrict__ image, const T* __restrict__ weight,
                 const T* __restrict__ bias, T* __restrict__ target,
                 const __grid_constant__ GatherParams p) {
  using A = typename Accumulator<T>::type;
  constexpr bool kForward = kPass == Pass::kForward;
  __shared__ A a_tile[Tile::KS][Tile::TM + 1];
  __shared__ A b_tile[Tile::KS][Tile::TN];
  __shared__ Term terms[Tile::KS];

  const Problem& q = p.problem;
  const int64_t m_per_group = kForward ? q.out_per_group() : q.in_per_group();
  const int64_t c_per_group = kForward ? q.in_per_group() : q.out_per_group();
  const int64_t image_h = kForward ? q.h.in : q.h.out;
  const int64_t image_w = kForward ? q.w.in : q.w.out;
  // Weights are (in, out / groups, kh, kw): strides of the row and of the summed channel.
  const int64_t weight_m = kForward ? q.taps() : q.out_per_group() * q.taps();
  const int64_t weight_c = kForward ? q.out_per_group() * q.taps() : q.taps();

  const int tid = threadIdx.x;
  const int thread_n = tid % Tile::kThreadsN, thread_m = tid / Tile::kThreadsN;

  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    int64_t rest = tile;
    const int64_t tile_m = rest % p.tiles_m;
    rest /= p.tiles_m;
    const int64_t tile_n = rest % p.tiles_n;
    rest /= p.tiles_n;
    const int64_t group = rest % q.groups;
    rest /= q.groups;
    const int64_t residue_w = kForward ? rest % q.w.stride : 0;
    const int64_t residue_h = kForward ? rest / q.w.stride : 0;

    const ResidueTaps taps_h =
        kForward ? TapsOfResidue(q.h, residue_h) : ResidueTaps{0, 1, q.h.kernel};
    const ResidueTaps taps_w =
        kForward ? TapsOfResidue(q.w, residue_w) : ResidueTaps{0, 1, q.w.kernel};
    const int64_t depth = taps_h.count * taps_w.count * c_per_group;
    const int64_t m0 = tile_m * Tile::TM, n0 = tile_n * Tile::TN;
    const int64_t group_weight = group * q.in_per_group() * q.out_per_group() * q.taps();

    // Every thread gathers one fixed set of columns.
    constexpr int kColumns = (Tile::TN + kThreads - 1) / kThreads;
    constexpr int kRowStep = kThreads >= Tile::TN ? kThreads / Tile::TN : 1;
    Column columns[kColumns];
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      columns[j] = ColumnOf<kPass>(p, n0 + tid % Tile::TN + j * kThreads, residue_h, residue_w);
      columns[j].image += group * c_per_group * p.image.channel;
    }

    A acc[Tile::RM][Tile::RN] = {};
    for (int64_t k0 = 0; k0 < depth; k0 += Tile::KS) {
      if (tid < Tile::KS) {
        const int64_t k = k0 + tid;
        const int64_t c = k % c_per_group, tap = k / c_per_group;
        const int64_t k_w = taps_w.first + taps_w.step * (tap % taps_w.count);
        const int64_t k_h = taps_h.first + taps_h.step * (tap / taps_w.count);
        Term t;
        t.row = static_cast<int32_t>(kForward ? -q.h.TapOf(k_h).shift : q.h.dilation * k_h);
        t.column = static_cast<int32_t>(kForward ? -q.w.TapOf(k_w).shift : q.w.dilation * k_w);
        t.offset = t.row * p.image.row + t.column * p.image.column + c * p.image.channel;
        t.weight = k < depth ? c * weight_c + k_h * q.w.kernel + k_w : -1;
        terms[tid] = t;
      }
      __syncthreads();
      for (int e = tid; e < Tile::TM * Tile::KS; e += kThreads) {
        const int m = e % Tile::TM, k = e / Tile::TM;
        const int64_t offset = terms[k].weight;
        a_tile[k][m] = offset >= 0 && m0 + m < m_per_group
                           ? Load(weight + group_weight + (m0 + m) * weight_m + offset)
                           : A(0);
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const Column& c = columns[j];
#pragma unroll
        for (int i = 0; i < Tile::KS / kRowStep; ++i) {
          const int k = tid / Tile::TN + i * kRowStep;
          const Term& t = terms[k];
          const int64_t row = c.row + t.row, column = c.column + t.column;
          const bool inside = c.target >= 0 && t.weight >= 0 && row >= 0 && row < image_h &&
                              column >= 0 && column < image_w;
          b_tile[k][tid % Tile::TN + j * kThreads] =
              inside ? Load(image + c.image + t.offset) : A(0);
        }
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < Tile::KS; ++k) {
        A a[Tile::RM], b[Tile::RN];
#pragma unroll
        for (int i = 0; i < Tile::RM; ++i) a[i] = a_tile[k][thread_m + i * Tile::kThreadsM];
#pragma unroll
        for (int j = 0; j < Tile::RN; ++j) b[j] = b_tile[k][thread_n + j * Tile::kThreadsN];
#pragma unroll
        for (int i = 0; i < Tile::RM; ++i) {
#pragma unroll
          for (int j = 0; j < Tile::RN; ++j) acc[i][j] += a[i] * b[j];
        }
      }
      __syncthreads();
    }

#pragma unroll
    for (int j = 0; j < Tile::RN; ++j) {
      const int64_t n = n0 + thread_n + j * Tile::kThreadsN;
      const Column c = ColumnOf<kPass>(p, n, residue_h, residue_w);
      if (c.target < 0) continue;
#pragma unroll
      for (int i = 0; i < Tile::RM; ++i) {
        const int64_t m = m0 + thread_m + i * Tile::kThreadsM;
        if (m >= m_per_group) continue;
        const int64_t channel = group * m_per_group + m;
        A v = acc[i][j];
        if (kForward && bias != nullptr) v += Load(bias + channel);
        Store(target + c.target + channel * p.target.channel, v);
      }
    }
  }
}

// grad_weight: one (tap, group, split) of dw, summed over a range of input positions.
struct ReduceParams {
  Problem problem;
  ImageStrides x, y;
  int64_t tiles_m, tiles_n, tiles;
  int64_t positions;  // batch * height * width of x
  int64_t splits, per_split;
};

// Writes partial sums, [split][dw in its own order], in the accumulator's type.
template <typename T, typename Tile>
__global__ void __launch_bounds__(kThreads)
    GradWeightKernel(const T* __restrict__ x, const T* __restrict__ dy,
                     typename Accumulator<T>::type* __restrict__ partial,
                     const __grid_constant__ ReduceParams p) {
  using A = typename Accumulator<T>::type;
  __shared__ A a_tile[Tile::KS][Tile::TM + 1];
  __shared__ A b_tile[Tile::KS][Tile::TN + 1];
  __shared__ int64_t offset_x[Tile::KS], offset_y[Tile::KS];

  const Problem& q = p.problem;
  const int64_t in = q.in_per_group(), out = q.out_per_group();
  const bool channels_first = q.layout == Layout::kNCHW;
  const int tid = threadIdx.x;
  const int thread_n = tid % Tile::kThreadsN, thread_m = tid / Tile::kThreadsN;

  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    int64_t rest = tile;
    const int64_t tap = rest % q.taps();
    rest /= q.taps();
    const int64_t tile_m = rest % p.tiles_m;
    rest /= p.tiles_m;
    const int64_t tile_n = rest % p.tiles_n;
    rest /= p.tiles_n;
    const int64_t group = rest % q.groups;
    const int64_t split = rest / q.groups;
    const int64_t m0 = tile_m * Tile::TM, n0 = tile_n * Tile::TN;
    const int64_t shift_h = q.h.dilation * (tap / q.w.kernel) - q.h.crop_lo;
    const int64_t shift_w = q.w.dilation * (tap % q.w.kernel) - q.w.crop_lo;
    const int64_t first = split * p.per_split;
    const int64_t last = first + p.per_split < p.positions ? first + p.per_split : p.positions;

    A acc[Tile::RM][Tile::RN] = {};
    for (int64_t k0 = first; k0 < last; k0 += Tile::KS) {
      if (tid < Tile::KS) {
        const int64_t k = k0 + tid;
        const int64_t column = k % q.w.in, row = k / q.w.in % q.h.in, image = k / q.w.in / q.h.in;
        const int64_t y_row = row * q.h.stride + shift_h, y_column = column * q.w.stride + shift_w;
        const bool inside =
            k < last && y_row >= 0 && y_row < q.h.out && y_column >= 0 && y_column < q.w.out;
        offset_x[tid] = inside ? image * p.x.batch + row * p.x.row + column * p.x.column : -1;
        offset_y[tid] = inside ? image * p.y.batch + y_row * p.y.row + y_column * p.y.column : -1;
      }
      __syncthreads();
      // Neighbouring lanes take what is contiguous: positions in NCHW, channels in NHWC.
      for (int e = tid; e < Tile::TM * Tile::KS; e += kThreads) {
        const int k = channels_first ? e % Tile::KS : e / Tile::TM;
        const int m = channels_first ? e / Tile::KS : e % Tile::TM;
        a_tile[k][m] = offset_x[k] >= 0 && m0 + m < in
                           ? Load(x + offset_x[k] + (group * in + m0 + m) * p.x.channel)
                           : A(0);
      }
      for (int e = tid; e < Tile::TN * Tile::KS; e += kThreads) {
        const int k = channels_first ? e % Tile::KS : e / Tile::TN;
        const int n = channels_first ? e / Tile::KS : e % Tile::TN;
        b_tile[k][n] = offset_y[k] >= 0 && n0 + n < out
                           ? Load(dy + offset_y[k] + (group * out + n0 + n) * p.y.channel)
                           : A(0);
      }
      __syncthreads();
#pragma unroll 8
      for (int k = 0; k < Tile::KS; ++k) {
        A a[Tile::RM], b[Tile::RN];
#pragma unroll
        for (int i = 0; i < Tile::RM; ++i) a[i] = a_tile[k][thread_m + i * Tile::kThreadsM];
#pragma unroll
        for (int j = 0; j < Tile::RN; ++j) b[j] = b_tile[k][thread_n + j * Tile::kThreadsN];
#pragma unroll
        for (int i = 0; i < Tile::RM; ++i) {
#pragma unroll
          for (int j = 0; j < Tile::RN; ++j) acc[i][j] += a[i] * b[j];
        }
      }
      __syncthreads();
    }
    const int64_t size = q.in_channels * out * q.taps();
#pragma unroll
    for (int i = 0; i < Tile::RM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::RN; ++j) {
        const int64_t m = m0 + thread_m + i * Tile::kThreadsM;
        const int64_t n = n0 + thread_n + j * Tile::kThreadsN;
        if (m < in && n < out) {
          partial[split * size + ((group * in + m) * out + n) * q.taps() + tap] = acc[i][j];
        }
      }
    }
  }
}

// Few channels a group: a block sums one (in channel, out channel, tap, split) of dw.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    GradWeightPairKernel(const T* __restrict__ x, const T* __restrict__ dy,
                         typename Accumulator<T>::type* __restrict__ partial,
                         const __grid_constant__ ReduceParams p) {
  using A = typename Accumulator<T>::type;
  const Problem& q = p.problem;
  const int64_t out = q.out_per_group();
  const int64_t size = q.in_channels * out * q.taps();
  for (int64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int64_t entry = tile % size, split = tile / size;
    const int64_t tap = entry % q.taps(), channel_x = entry / q.taps() / out;
    const int64_t channel_y = channel_x / q.in_per_group() * out + entry / q.taps() % out;
    const int64_t shift_h = q.h.dilation * (tap / q.w.kernel) - q.h.crop_lo;
    const int64_t shift_w = q.w.dilation * (tap % q.w.kernel) - q.w.crop_lo;
    const int64_t first = split * p.per_split;
    const int64_t last = first + p.per_split < p.positions ? first + p.per_split : p.positions;
    A sum = 0;
    for (int64_t k = first + threadIdx.x; k < last; k += kThreads) {
      const int64_t column = k % q.w.in, row = k / q.w.in % q.h.in, image = k / q.w.in / q.h.in;
      const int64_t y_row = row * q.h.stride + shift_h, y_column = column * q.w.stride + shift_w;
      if (y_row < 0 || y_row >= q.h.out || y_column < 0 || y_column >= q.w.out) continue;
      sum += Load(x + image * p.x.batch + row * p.x.row + column * p.x.column +
                  channel_x * p.x.channel) *
             Load(dy + image * p.y.batch + y_row * p.y.row + y_column * p.y.column +
                  channel_y * p.y.channel);
    }
    sum = BlockSum<kThreads>(sum);
    if (threadIdx.x == 0) partial[tile] = sum;
  }
}

}  // namespace transconv::cuda::simt

#endif  // TRANSCONV_CUDA_KERNELS_SIMT_CUH_
