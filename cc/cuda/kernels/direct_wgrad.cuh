// The weight gradient of few channels a group, on the ordinary float units.
//
// A block holds some taps, input channels and output channels of one group in registers, and walks
// over tiles of input positions (core/direct_wgrad_plan.h). A tile's x and the dy that its taps
// reach are brought into shared memory once, channels side by side, so that a thread reads RM
// values of x and RN of dy for RM x RN products. Where few combinations of taps and channels leave
// threads over, slices of threads take different positions of the tile, and their sums are added in
// a fixed order at the end.
//
//     dw[k] += x[i] * dy[s i + d k - lo]     per axis
//
// Relative to a tile's first position and first tap that is a multiple of gcd(s, d), and only these
// rows and columns of dy are loaded.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_CUH_

#include <cstdint>

#include "core/direct_wgrad_plan.h"
#include "core/divider.h"
#include "core/geometry.h"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::direct_wgrad {

constexpr int kThreads = DirectWgradPlan::kThreads;

// An image tensor, in elements.
struct Image {
  int64_t batch;
  int channel, row, column;
  int height, width;
};

struct Params {
  DirectWgradPlan plan;
  Image x, dy;
  int in_per_group, out_per_group, kernel_h, kernel_w;
  int stride_h, stride_w, dilation_h, dilation_w, crop_h, crop_w;
  int64_t size;  // of dw
  // A block's index, from the fastest part on: taps of a row, rows of taps, output and input
  // channels, group, split.
  Divider by_tap_w, by_tap_h, by_n, by_m, by_group;
  Divider by_tile_w, by_tile_h;           // a tile's index: column, row, image
  Divider by_columns, by_rows;            // a position of x in a tile
  Divider by_halo_columns, by_halo_rows;  // one of dy
  Divider by_threads_n, by_threads_m, by_taps, by_slices;
};

// A thread's channels in shared memory. Four of them are aligned to 16 bytes.
template <typename A, int COUNT>
struct Channels {
  A value[COUNT];
};
template <typename A>
struct alignas(16) Channels<A, 4> {
  A value[4];
};

// `COUNT` channels of one position, `first` being the first; those that do not exist are zeros.
template <typename T, typename A, int COUNT>
__device__ __forceinline__ void CopyChannels(A* to, const T* from, int channel, int first,
                                             int channels, bool inside) {
  Channels<A, COUNT> found;
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const bool exists = inside && first + k < channels;
    found.value[k] = exists ? static_cast<A>(from[(first + k) * channel]) : A(0);
  }
  *reinterpret_cast<Channels<A, COUNT>*>(to) = found;
}

// Positions that a thread loads at a time. float64 has the registers for more than two.
template <typename A>
constexpr int LoadsAtOnce(int channels) {
  return sizeof(A) == 8 && channels == 1 ? 4 : 2;
}

// Blocks of a multiprocessor, whose loads and products overlap: as many as registers allow.
template <typename A>
constexpr int BlocksAtOnce(int rm, int rn) {
  if (sizeof(A) == 8) return rm * rn == 1 ? 4 : 2;
  return rm * rn == 16 ? 3 : 4;
}

template <typename T, typename A, int RM, int RN>
struct Block {
  const Params& p;
  const T* const x;
  const T* const dy;
  A* const shared_x;
  A* const shared_dy;
  int tap_h, tap_w, m, n, group;  // the first of each

  __device__ void LoadX(const T* image, int row, int column) const {
    const DirectWgradPlan& g = p.plan;
    const int channels = min(p.in_per_group - m, g.m);
    const int count = g.threads_m * g.h.size * g.w.size;
#pragma unroll(LoadsAtOnce<A>(RM))
    for (int i = threadIdx.x; i < count; i += kThreads) {
      int rest = i;
      const int c = p.by_columns.Split(rest), r = p.by_rows.Split(rest);
      const bool inside = row + r < p.x.height && column + c < p.x.width;
      CopyChannels<T, A, RM>(shared_x + (r * g.w.size + c) * g.x_pitch + rest * RM,
                             image + (row + r) * p.x.row + (column + c) * p.x.column, p.x.channel,
                             rest * RM, channels, inside);
    }
  }

  __device__ void LoadDy(const T* image, int row, int column) const {
    const DirectWgradPlan& g = p.plan;
    const int channels = min(p.out_per_group - n, g.n);
    const int count = g.threads_n * g.h.halo * g.w.halo;
#pragma unroll(LoadsAtOnce<A>(RN))
    for (int i = threadIdx.x; i < count; i += kThreads) {
      int rest = i;
      const int c = p.by_halo_columns.Split(rest), r = p.by_halo_rows.Split(rest);
      const int y = row + r * g.h.unit, at = column + c * g.w.unit;
      const bool inside = y >= 0 && y < p.dy.height && at >= 0 && at < p.dy.width;
      CopyChannels<T, A, RN>(shared_dy + (r * g.w.halo + c) * g.dy_pitch + rest * RN,
                             image + int64_t{y} * p.dy.row + int64_t{at} * p.dy.column,
                             p.dy.channel, rest * RN, channels, inside);
    }
  }

  // Adds the products of one tile's rows and columns from `first` on, by the slices' steps.
  __device__ __forceinline__ void Add(A (&sum)[RM][RN], const A* from_x, const A* from_dy, int rows,
                                      int columns, int first_row, int first_column) const {
    const DirectWgradPlan& g = p.plan;
    const int step_x = g.w.slices * g.x_pitch, step_dy = g.w.slices * g.w.stride * g.dy_pitch;
    for (int r = first_row; r < rows; r += g.h.slices) {
      const A* at_x = from_x + (r * g.w.size + first_column) * g.x_pitch;
      const A* at_dy =
          from_dy + (r * g.h.stride * g.w.halo + first_column * g.w.stride) * g.dy_pitch;
#pragma unroll 4
      for (int c = first_column; c < columns; c += g.w.slices) {
        const auto a = *reinterpret_cast<const Channels<A, RM>*>(at_x);
        const auto b = *reinterpret_cast<const Channels<A, RN>*>(at_dy);
#pragma unroll
        for (int i = 0; i < RM; ++i) {
#pragma unroll
          for (int j = 0; j < RN; ++j) sum[i][j] += a.value[i] * b.value[j];
        }
        at_x += step_x;
        at_dy += step_dy;
      }
    }
  }
};

// Writes the sums of one split: [split][dw].
template <typename T, typename A, int RM, int RN>
__global__ void __launch_bounds__(kThreads, BlocksAtOnce<A>(RM, RN))
    WgradKernel(const T* x, const T* dy, A* partial, const __grid_constant__ Params p) {
  const DirectWgradPlan& g = p.plan;
  A* const shared = reinterpret_cast<A*>(SharedMemory());
  int split = static_cast<int>(blockIdx.x);
  const int tap_w = p.by_tap_w.Split(split) * g.w.taps, tap_h = p.by_tap_h.Split(split) * g.h.taps;
  const int n = p.by_n.Split(split) * g.n, m = p.by_m.Split(split) * g.m;
  const int group = p.by_group.Split(split);
  const Block<T, A, RM, RN> block{p, x, dy, shared, shared + g.dy_at, tap_h, tap_w, m, n, group};

  // This thread's channels and tap, and its slice of the positions.
  int rest = static_cast<int>(threadIdx.x);
  const int thread_n = p.by_threads_n.Split(rest), thread_m = p.by_threads_m.Split(rest);
  const int tap = p.by_taps.Split(rest);
  const int slice = rest;
  int slice_h = slice;
  const int slice_w = p.by_slices.Split(slice_h);
  const int slices = g.h.slices * g.w.slices;
  const int my_h = tap / g.w.taps, my_w = tap - my_h * g.w.taps;
  const A* const from_x = shared + thread_m * RM;
  const A* const from_dy = shared + g.dy_at +
                           (my_h * g.h.dilation * g.w.halo + my_w * g.w.dilation) * g.dy_pitch +
                           thread_n * RN;

  A sum[RM][RN] = {};
  const int64_t first = split * g.per_split;
  const int64_t last = min(first + g.per_split, g.tiles);
  for (int64_t index = first; index < last; ++index) {
    int image = static_cast<int>(index);
    const int column = p.by_tile_w.Split(image) * g.w.size;
    const int row = p.by_tile_h.Split(image) * g.h.size;
    block.LoadX(x + image * p.x.batch + int64_t{group * p.in_per_group + m} * p.x.channel, row,
                column);
    block.LoadDy(dy + image * p.dy.batch + int64_t{group * p.out_per_group + n} * p.dy.channel,
                 row * p.stride_h + tap_h * p.dilation_h - p.crop_h,
                 column * p.stride_w + tap_w * p.dilation_w - p.crop_w);
    __syncthreads();
    if (slice < slices) {
      block.Add(sum, from_x, from_dy, min(p.x.height - row, g.h.size),
                min(p.x.width - column, g.w.size), slice_h, slice_w);
    }
    __syncthreads();
  }

  // The slices' sums, in order.
  const int combination = static_cast<int>(threadIdx.x) - slice * g.combinations;
  if (slice > 0 && slice < slices) {
    A* const to = shared + ((slice - 1) * g.combinations + combination) * (RM * RN);
#pragma unroll
    for (int i = 0; i < RM * RN; ++i) to[i] = sum[i / RN][i % RN];
  }
  __syncthreads();
  if (slice > 0) return;
  for (int s = 1; s < slices; ++s) {
    const A* const from = shared + ((s - 1) * g.combinations + combination) * (RM * RN);
#pragma unroll
    for (int i = 0; i < RM * RN; ++i) sum[i / RN][i % RN] += from[i];
  }
  const int kernel_h = tap_h + my_h, kernel_w = tap_w + my_w;
  if (kernel_h >= p.kernel_h || kernel_w >= p.kernel_w) return;
  A* const to = partial + split * p.size + kernel_h * p.kernel_w + kernel_w;
#pragma unroll
  for (int i = 0; i < RM; ++i) {
    const int in = m + thread_m * RM + i;
    if (in >= p.in_per_group) continue;
#pragma unroll
    for (int j = 0; j < RN; ++j) {
      const int out = n + thread_n * RN + j;
      if (out >= p.out_per_group) continue;
      to[((int64_t{group} * p.in_per_group + in) * p.out_per_group + out) * p.kernel_h *
         p.kernel_w] = sum[i][j];
    }
  }
}

inline Params MakeParams(const Problem& q, const DirectWgradPlan& plan) {
  const bool first = q.layout == Layout::kNCHW;
  const auto image = [&](int64_t channels, int64_t height, int64_t width) {
    return Image{channels * height * width,
                 static_cast<int>(first ? height * width : 1),
                 static_cast<int>(first ? width : width * channels),
                 static_cast<int>(first ? 1 : channels),
                 static_cast<int>(height),
                 static_cast<int>(width)};
  };
  Params p{};
  p.plan = plan;
  p.x = image(q.in_channels, q.h.in, q.w.in);
  p.dy = image(q.out_channels, q.h.out, q.w.out);
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.kernel_h = static_cast<int>(q.h.kernel);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.size = q.in_channels * q.out_per_group() * q.taps();
  p.by_tap_w = Divider(plan.w.tap_blocks);
  p.by_tap_h = Divider(plan.h.tap_blocks);
  p.by_n = Divider(plan.n_blocks);
  p.by_m = Divider(plan.m_blocks);
  p.by_group = Divider(q.groups);
  p.by_tile_w = Divider(plan.w.tiles);
  p.by_tile_h = Divider(plan.h.tiles);
  p.by_columns = Divider(plan.w.size);
  p.by_rows = Divider(plan.h.size);
  p.by_halo_columns = Divider(plan.w.halo);
  p.by_halo_rows = Divider(plan.h.halo);
  p.by_threads_n = Divider(plan.threads_n);
  p.by_threads_m = Divider(plan.threads_m);
  p.by_taps = Divider(plan.h.taps * plan.w.taps);
  p.by_slices = Divider(plan.w.slices);
  return p;
}

}  // namespace transconv::cuda::direct_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_CUH_
