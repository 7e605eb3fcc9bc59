// The forward pass from many channels to one or two, 4x4 taps at stride 2, of few pixels (NCHW,
// float32). Such problems wait for memory and weights; all else is little.
//
// A thread has two by two outputs of every channel, which four pixels of x meet with four taps
// each, for some of the input channels: it asks for the pixels and the weights of several channels
// before it multiplies them. A channel's weights are a run of memory, the same for half a warp.
// Sums of the four pixels stay apart, so that those outside of the image are left out at the end,
// lest a weight that is an infinity meets their zeros. The block's slices of channels meet in
// shared memory, in order.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_HEADS_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_HEADS_CUH_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/direct_heads.h"
#include "core/divider.h"
#include "core/geometry.h"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::heads {

constexpr int kThreads = 512, kPositions = 16, kSlices = kThreads / kPositions;
using transconv::heads::kStride;

struct Params {
  int in_channels, positions;
  int rows, columns, y_rows, y_columns;
  int first_v, first_u, crop_h, crop_w;
  Divider by_columns, by_rows;  // pairs of outputs
};

// sum[pixel][result] += the products of kCount input channels, kSlices apart. All pixels are asked
// for before the first is multiplied.
template <int kOut, int kCount>
__device__ __forceinline__ void AddChannels(float (&sum)[4][kOut * kStride * kStride],
                                            const float* const (&from)[4], const bool (&there)[4],
                                            SharedPlace weights, int in, int plane) {
  float pixel[kCount][4];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pixel[c][i] = there[i] ? from[i][(in + c * kSlices) * plane] : 0.0f;
    }
  }
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
#pragma unroll
    for (int k = 0; k < 4 * kOut; ++k) {
      uint32_t row[4];
      LoadWords(row, weights + ((in + c * kSlices) * (4 * kOut) + k) * 16);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Tap (k % 4, j) of channel k / 4 belongs to the pixel and the output of these.
        const int i = k % 4 / 2 * 2 + j / 2, result = (k / 4 * 2 + k % 2) * 2 + j % 2;
        float weight;
        memcpy(&weight, &row[j], sizeof(weight));
        sum[i][result] += pixel[c][i] * weight;
      }
    }
  }
}

// kOut: output channels.
template <int kOut>
__global__ void __launch_bounds__(kThreads)
    HeadsKernel(const float* __restrict__ x, const float* __restrict__ w,
                const float* __restrict__ bias, float* __restrict__ y,
                const __grid_constant__ Params p) {
  constexpr int kResults = kOut * kStride * kStride;
  unsigned char* const shared = SharedMemory();
  for (int i = static_cast<int>(threadIdx.x); i < p.in_channels * (4 * kOut); i += kThreads) {
    CopyAsyncBytes<16>(shared + 16 * i, w + 4 * i, true);
  }
  const int at = static_cast<int>(threadIdx.x) % kPositions;
  const int slice = static_cast<int>(threadIdx.x) / kPositions;
  const int position = static_cast<int>(blockIdx.x) * kPositions + at;
  int image = position;
  const int u = p.first_u + p.by_columns.Split(image), v = p.first_v + p.by_rows.Split(image);

  // The pixels (v, u), (v, u - 1), (v - 1, u) and (v - 1, u - 1).
  bool there[4];
  const float* from[4];
  const int plane = p.rows * p.columns;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = v - i / 2, column = u - i % 2;
    there[i] = position < p.positions &&
               static_cast<unsigned>(row) < static_cast<unsigned>(p.rows) &&
               static_cast<unsigned>(column) < static_cast<unsigned>(p.columns);
    from[i] =
        there[i] ? x + (int64_t{image} * p.in_channels * plane + (row * p.columns + column)) : x;
  }
  float sum[4][kResults] = {};
  CopyAsyncDone();
  __syncthreads();  // the weights are there
  constexpr int kAtOnce = 4;
  const SharedPlace weights = PlaceOf(shared);
  int in = slice;
  for (; in + (kAtOnce - 1) * kSlices < p.in_channels; in += kAtOnce * kSlices) {
    AddChannels<kOut, kAtOnce>(sum, from, there, weights, in, plane);
  }
  for (; in < p.in_channels; in += kSlices) {
    AddChannels<kOut, 1>(sum, from, there, weights, in, plane);
  }
  __syncthreads();  // nobody reads them
  float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int r = 0; r < kResults; ++r) {
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) all += there[i] ? sum[i][r] : 0.0f;
    sums[(slice * kResults + r) * kPositions + at] = all;
  }
  __syncthreads();
  const int result = slice;  // of the same position
  if (result >= kResults || position >= p.positions) return;
  const int out = result / 4, row = kStride * v + result / 2 % 2 - p.crop_h;
  const int column = kStride * u + result % 2 - p.crop_w;
  if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.y_rows) ||
      static_cast<unsigned>(column) >= static_cast<unsigned>(p.y_columns)) {
    return;
  }
  float all = bias == nullptr ? 0.0f : bias[out];
  for (int s = 0; s < kSlices; ++s) all += sums[(s * kResults + result) * kPositions + at];
  y[(int64_t{image} * kOut + out) * (p.y_rows * p.y_columns) + (row * p.y_columns + column)] = all;
}

inline int SharedBytes(const Problem& q) {
  const int64_t weights = 64 * q.in_channels * q.out_channels;
  return static_cast<int>(std::max<int64_t>(weights, 16 * kThreads * q.out_channels));
}

inline Params MakeParams(const Problem& q) {
  using transconv::heads::FirstPair, transconv::heads::Pairs;
  Params p{};
  p.in_channels = static_cast<int>(q.in_channels);
  p.positions = static_cast<int>(q.batch * Pairs(q.h) * Pairs(q.w));
  p.rows = static_cast<int>(q.h.in);
  p.columns = static_cast<int>(q.w.in);
  p.y_rows = static_cast<int>(q.h.out);
  p.y_columns = static_cast<int>(q.w.out);
  p.first_v = static_cast<int>(FirstPair(q.h));
  p.first_u = static_cast<int>(FirstPair(q.w));
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.by_columns = Divider(Pairs(q.w));
  p.by_rows = Divider(Pairs(q.h));
  return p;
}

}  // namespace transconv::cuda::heads

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_HEADS_CUH_
