// The bias gradient as a pass of its own: sums of dy per channel, for any type and layout.
//
// A block sums a stretch of one image for a few channels; the stretches are then added in order.
#ifndef TRANSCONV_CUDA_KERNELS_GRAD_BIAS_CUH_
#define TRANSCONV_CUDA_KERNELS_GRAD_BIAS_CUH_

#include <cstdint>

#include "cuda/primitives/simt.cuh"

namespace transconv::cuda::grad_bias {

constexpr int kThreads = 256;
constexpr int kLanes = 32;  // channels of a block in NHWC

struct Params {
  const void* dy;
  void* partial;                                 // [stretch][channel]
  int64_t channels, pixels, stretch, stretches;  // of one image
  int64_t blocks;
};

// NCHW: one channel of one stretch.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumPlaneKernel(const __grid_constant__ Params p) {
  using A = typename Accumulator<T>::type;
  for (int64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const int64_t channel = block % p.channels, part = block / p.channels;
    const int64_t image = part / p.stretches, first = part % p.stretches * p.stretch;
    const int64_t last = first + p.stretch < p.pixels ? first + p.stretch : p.pixels;
    const T* plane = static_cast<const T*>(p.dy) + (image * p.channels + channel) * p.pixels;
    A sum[4] = {};
    int64_t i = first + threadIdx.x;
    for (; i + 3 * kThreads < last; i += 4 * kThreads) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[k] += Load(plane + i + k * kThreads);
    }
    for (; i < last; i += kThreads) sum[0] += Load(plane + i);
    const A total = BlockSum<kThreads>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    if (threadIdx.x == 0) static_cast<A*>(p.partial)[part * p.channels + channel] = total;
  }
}

// NHWC: kLanes channels of one stretch.
template <typename T>
__global__ void __launch_bounds__(kThreads) SumPixelsKernel(const __grid_constant__ Params p) {
  using A = typename Accumulator<T>::type;
  __shared__ A sums[kThreads / kLanes][kLanes];
  const int64_t groups = (p.channels + kLanes - 1) / kLanes;
  const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
  for (int64_t block = blockIdx.x; block < p.blocks; block += gridDim.x) {
    const int64_t channel = block % groups * kLanes + lane, part = block / groups;
    const int64_t image = part / p.stretches, first = part % p.stretches * p.stretch;
    const int64_t last = first + p.stretch < p.pixels ? first + p.stretch : p.pixels;
    A sum = 0;
    if (channel < p.channels) {
      const T* at = static_cast<const T*>(p.dy) + image * p.pixels * p.channels + channel;
      for (int64_t i = first + row; i < last; i += kThreads / kLanes)
        sum += Load(at + i * p.channels);
    }
    sums[row][lane] = sum;
    __syncthreads();
    if (row == 0 && channel < p.channels) {
      A total = 0;
      for (int r = 0; r < kThreads / kLanes; ++r) total += sums[r][lane];
      static_cast<A*>(p.partial)[part * p.channels + channel] = total;
    }
    __syncthreads();
  }
}

}  // namespace transconv::cuda::grad_bias

#endif  // TRANSCONV_CUDA_KERNELS_GRAD_BIAS_CUH_
