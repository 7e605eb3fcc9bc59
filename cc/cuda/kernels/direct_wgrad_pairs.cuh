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

constexpr int PowerOfTwoFrom(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Adds up what the lanes of a warp have: every step halves the taps that a lane goes on with, so
// that N sums take N and a few exchanges, not five each. Returns the sum of tap lane / (32 / N).
template <int N, int STEP = 16, typename A, int SUMS>
__device__ __forceinline__ A SumLanes(A (&sum)[SUMS]) {
  static_assert(N <= 32 && (N & (N - 1)) == 0, "a tap for every 32 / N lanes");
  if constexpr (N == 1) {
    A all = sum[0];
#pragma unroll
    for (int step = STEP; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
    return all;
  } else {
    const bool upper = (threadIdx.x & STEP) != 0;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      const A given = upper ? sum[i] : sum[i + N / 2];
      const A kept = upper ? sum[i + N / 2] : sum[i];
      sum[i] = kept + __shfl_xor_sync(0xffffffffu, given, STEP);
    }
    return SumLanes<N / 2, STEP / 2>(sum);
  }
}

// kTaps: at least as many as there are.
template <typename T, typename A, int kTaps>
__global__ void __launch_bounds__(kPairThreads)
    PairsKernel(const T* __restrict__ x, const T* __restrict__ dy, T* __restrict__ dw,
                const __grid_constant__ PairParams p) {
  constexpr int kWarps = kPairThreads / 32, kSums = PowerOfTwoFrom(kTaps);
  constexpr int kLanes = 32 / kSums;  // that have the same tap in the end
  __shared__ A sums[kWarps][kSums];
  int in = static_cast<int>(blockIdx.x);
  const int out_of_group = p.by_out.Split(in);
  int group = in;
  p.by_group.Split(group);
  const int out = group * p.out_per_group + out_of_group;
  A sum[kSums] = {};
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
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const A of_tap = SumLanes<kSums>(sum);
  if (lane % kLanes == 0) sums[threadIdx.x / 32][lane / kLanes] = of_tap;
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
