// The input gradient of few results, each of few products (core/direct_results.h says which), as of
// the flow fields that networks for optical flow enlarge. What such problems take are a launch and
// waits for memory: a thread has one result, and asks for all that two channels' taps multiply
// before it does.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_RESULTS_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_RESULTS_CUH_

#include <cstdint>

#include "core/direct_results.h"
#include "core/divider.h"
#include "core/geometry.h"

namespace transconv::cuda::results {

constexpr int kThreads = 128;
constexpr int kTogether = 2;  // channels of which all is asked for at once

struct Params {
  int results;
  int out_channels, out_per_group;
  int dy_rows, dy_columns;
  int taps, kernel_w;
  int stride_h, stride_w, dilation_h, dilation_w, crop_h, crop_w;
  Divider by_columns, by_rows, by_channels, by_group;  // of x
};

static __global__ void __launch_bounds__(kThreads)
    ResultsKernel(const float* __restrict__ dy, const float* __restrict__ weight,
                  float* __restrict__ dx, const __grid_constant__ Params p) {
  using transconv::results::kMostTaps;
  const int index = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (index >= p.results) return;
  int image = index;
  const int column = p.by_columns.Split(image), row = p.by_rows.Split(image);
  const int channel = p.by_channels.Split(image);
  const int group = static_cast<int>(p.by_group.Quotient(static_cast<uint32_t>(channel)));
  const int plane = p.dy_rows * p.dy_columns;
  const float* from = dy + (image * p.out_channels + group * p.out_per_group) * int64_t{plane};
  const float* factors = weight + channel * p.out_per_group * p.taps;

  float sum = 0;
  for (int c = 0; c < p.out_per_group; c += kTogether) {
    float value[kTogether][kMostTaps], factor[kTogether][kMostTaps];
    bool there[kMostTaps];
    int at_row = row * p.stride_h - p.crop_h, at_column = column * p.stride_w - p.crop_w;
    int tap_w = 0;
#pragma unroll
    for (int t = 0; t < kMostTaps; ++t) {
      there[t] = t < p.taps && static_cast<unsigned>(at_row) < static_cast<unsigned>(p.dy_rows) &&
                 static_cast<unsigned>(at_column) < static_cast<unsigned>(p.dy_columns);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const bool wanted = there[t] && c + k < p.out_per_group;
        value[k][t] = wanted ? from[k * plane + at_row * p.dy_columns + at_column] : 0.f;
        factor[k][t] = wanted ? factors[k * p.taps + t] : 0.f;
      }
      at_column += p.dilation_w;
      if (++tap_w < p.kernel_w) continue;
      tap_w = 0;
      at_column -= p.dilation_w * p.kernel_w;
      at_row += p.dilation_h;
    }
    // What is not there is zero on both sides.
#pragma unroll
    for (int t = 0; t < kMostTaps; ++t) {
#pragma unroll
      for (int k = 0; k < kTogether; ++k) sum += value[k][t] * factor[k][t];
    }
    from += kTogether * plane;
    factors += kTogether * p.taps;
  }
  dx[index] = sum;
}

inline Params MakeParams(const Problem& q) {
  Params p{};
  p.results = static_cast<int>(q.batch * q.in_channels * q.h.in * q.w.in);
  p.out_channels = static_cast<int>(q.out_channels);
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.dy_rows = static_cast<int>(q.h.out);
  p.dy_columns = static_cast<int>(q.w.out);
  p.taps = static_cast<int>(q.taps());
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.by_columns = Divider(q.w.in);
  p.by_rows = Divider(q.h.in);
  p.by_channels = Divider(q.in_channels);
  p.by_group = Divider(q.in_per_group());
  return p;
}

}  // namespace transconv::cuda::results

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_RESULTS_CUH_
