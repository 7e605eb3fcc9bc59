// The weight gradient where a pair of channels has few taps and few positions (NCHW): a block adds
// up all of a pair's products, so that one launch is enough. What such problems take are launches
// and waits for memory: a thread asks for what all taps reach from a position before it multiplies.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_PAIRS_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_PAIRS_CUH_

#include <cstdint>

#include "core/direct_wgrad_plan.h"
#include "core/divider.h"
#include "core/geometry.h"

namespace transconv::cuda::direct_wgrad {

constexpr int kPairThreads = 256;

struct PairParams {
  int in_channels, out_channels, in_per_group, out_per_group;
  int x_rows, x_columns, dy_rows, dy_columns;
  int kernel_w, taps, positions;  // positions of all images
  int stride_h, stride_w, dilation_h, dilation_w, crop_h, crop_w;
  Divider by_columns, by_rows, by_out, by_group;
};

// kTaps: at least as many as there are.
template <typename T, typename A, int kTaps>
__global__ void __launch_bounds__(kPairThreads)
    PairsKernel(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dw,
                const __grid_constant__ PairParams p) {
  constexpr int kWarps = kPairThreads / 32;
  __shared__ A sums[kWarps][kTaps];
  int in = static_cast<int>(blockIdx.x);
  const int out_of_group = p.by_out.Split(in);
  int group = in;
  p.by_group.Split(group);
  const int out = group * p.out_per_group + out_of_group;
  A sum[kTaps] = {};
  for (int i = static_cast<int>(threadIdx.x); i < p.positions; i += kPairThreads) {
    int image = i;
    const int column = p.by_columns.Split(image), row = p.by_rows.Split(image);
    const A value =
        static_cast<A>(*(x + (int64_t{image} * p.in_channels + in) * (p.x_rows * p.x_columns) +
                         (row * p.x_columns + column)));
    const T* const plane =
        dy + (int64_t{image} * p.out_channels + out) * (int64_t{p.dy_rows} * p.dy_columns);
    A found[kTaps];
    bool there[kTaps];
    int at_row = row * p.stride_h - p.crop_h, tap_w = 0;
    int at_column = column * p.stride_w - p.crop_w;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      there[t] = t < p.taps && static_cast<unsigned>(at_row) < static_cast<unsigned>(p.dy_rows) &&
                 static_cast<unsigned>(at_column) < static_cast<unsigned>(p.dy_columns);
      found[t] = there[t] ? static_cast<A>(plane[at_row * p.dy_columns + at_column]) : A{0};
      at_column += p.dilation_w;
      if (++tap_w < p.kernel_w) continue;
      tap_w = 0;
      at_column -= p.dilation_w * p.kernel_w;
      at_row += p.dilation_h;
    }
    // What is not there is no product, lest an infinity meet a zero.
#pragma unroll
    for (int t = 0; t < kTaps; ++t) sum[t] += there[t] ? value * found[t] : A{0};
  }
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    for (int step = 16; step > 0; step /= 2) {
      sum[t] += __shfl_down_sync(0xffffffffu, sum[t], step);
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][t] = sum[t];
  }
  __syncthreads();
  const int tap = static_cast<int>(threadIdx.x);
  if (tap >= p.taps) return;
  A all = 0;
  for (int warp = 0; warp < kWarps; ++warp) all += sums[warp][tap];
  dw[int64_t{blockIdx.x} * p.taps + tap] = static_cast<T>(all);
}

inline PairParams MakePairParams(const Problem& q) {
  PairParams p{};
  p.in_channels = static_cast<int>(q.in_channels);
  p.out_channels = static_cast<int>(q.out_channels);
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.x_rows = static_cast<int>(q.h.in);
  p.x_columns = static_cast<int>(q.w.in);
  p.dy_rows = static_cast<int>(q.h.out);
  p.dy_columns = static_cast<int>(q.w.out);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.taps = static_cast<int>(q.taps());
  p.positions = static_cast<int>(q.batch * q.h.in * q.w.in);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.by_columns = Divider(q.w.in);
  p.by_rows = Divider(q.h.in);
  p.by_out = Divider(q.out_per_group());
  p.by_group = Divider(q.in_per_group());
  return p;
}

}  // namespace transconv::cuda::direct_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_WGRAD_PAIRS_CUH_
