// The forward pass of pixels of 16 bits (NHWC), few output channels, on the tensor cores.
//
//     y[s i + k - crop, co] = sum over taps and ci of x[i, ci] * w[ci, (co, kh, kw)]
//
// A walker goes down an image (core/im2col_forward_pixels_plan.h). Each of its warps reads its
// columns of a row of x once, from the image to registers, a row ahead and eight channels a load.
// It multiplies them by the weights of every row of taps, and adds to the sums of the rows of
// outputs that these taps reach. The rows that no later row of x reaches are complete but for their
// rows' taps: those go to shared memory, where neighbours are, and threads add up the taps of
// outputs, while the next row is multiplied. The sums of the other rows move up.
//
// Rows outside of the image are not multiplied, and columns outside are not added, lest a weight
// that is an infinity meets their zeros. Every sum has a fixed order.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_PIXELS_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_PIXELS_CUH_

#include <algorithm>
#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_forward_pixels_plan.h"
#include "cuda/kernels/im2col_stage.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::pixels_forward {

constexpr int kThreads = kBoxThreads;

struct Params {
  PixelsForwardPlan plan;
  int64_t x_batch, y_batch;  // elements of an image
  int batch, in_channels, out_channels, kernel_w;
  int rows, columns, y_rows, y_columns;
  int crop_h, crop_w;
  int streams;  // blocks
  Divider by_warps, by_count_v;
};

using Words = im2col::Vector<uint32_t, 4>;

// The weights in the order of operands: of 32 channels, half of a lane's channels and a row of
// taps, two words of either eight columns a lane.
template <int K>
__device__ __forceinline__ void TakeWeightsApart(uint32_t* to, const uint16_t* __restrict__ w,
                                                 const Params& p) {
  const int count = p.plan.chunks * 2 * K * 128;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int lane = i / 4 % 32, row = i / 128 % K, half = i / (128 * K) % 2;
    int out = i / 2 % 2 * 8 + lane / 4;
    const int tap_w = out / p.out_channels;
    out -= tap_w * p.out_channels;
    const int in = i / (256 * K) * 32 + lane % 4 * 8 + half * 4 + i % 2 * 2;
    uint32_t two = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (tap_w >= p.kernel_w || in + j >= p.in_channels) continue;
      const int at = (((in + j) * p.out_channels + out) * K + row) * p.kernel_w + tap_w;
      two |= uint32_t{w[at]} << (16 * j);
    }
    to[i] = two;
  }
}

// A lane's eight channels of its two columns, of 32 channels; zeros where there are none.
__device__ __forceinline__ void LoadChunk(Words (&a)[2], const uint16_t* __restrict__ row,
                                          bool there, int column, int channel, const Params& p) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    a[i] = Words{};
    if (there && column + 8 * i < p.columns && channel < p.in_channels) {
      a[i] = *reinterpret_cast<const Words*>(row + ((column + 8 * i) * p.in_channels + channel));
    }
  }
}

// The outputs of a turn, by a walker's threads: `from` has the products of its rows' taps.
template <typename Operand, int S>
__device__ __forceinline__ void AddTaps(uint16_t* __restrict__ y, const uint16_t* __restrict__ bias,
                                        const float* from, int first_row, int thread,
                                        const Params& p) {
  const PixelsForwardPlan& g = p.plan;
  const int count = S * S * p.out_channels * g.count_v;
  for (int i = thread; i < count; i += 32 * g.warps) {
    int out = i;
    const int v = g.first_v + p.by_count_v.Split(out);
    const int residue = out % S, part = out / S % S;
    out /= S * S;
    const int row = first_row + part, column = v * S + residue - p.crop_w;
    if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.y_rows) ||
        static_cast<unsigned>(column) >= static_cast<unsigned>(p.y_columns)) {
      continue;
    }
    float sum = bias == nullptr ? 0.0f : mma::Widen<Operand>(bias[out]);
    const float* products = from + (part * g.row + (residue * p.out_channels + out) * g.pitch + v);
    int left = v;
    for (int tap = residue; tap < p.kernel_w; tap += S) {
      if (static_cast<unsigned>(left) < static_cast<unsigned>(p.columns)) sum += *products;
      products += S * p.out_channels * g.pitch - 1;
      --left;
    }
    y[(row * p.y_columns + column) * p.out_channels + out] =
        static_cast<uint16_t>(mma::Pack<Operand>(sum, 0.0f));
  }
}

// K: rows of taps, NC: chunks of 32 input channels.
template <typename Operand, int K, int S, int NC>
__global__ void __launch_bounds__(kThreads, 2)
    ForwardPixelsKernel(const uint16_t* __restrict__ x, const uint16_t* __restrict__ w,
                        const uint16_t* __restrict__ bias, uint16_t* __restrict__ y,
                        const __grid_constant__ Params p) {
  const PixelsForwardPlan& g = p.plan;
  unsigned char* const shared = SharedMemory();
  int walker = static_cast<int>(threadIdx.x) / 32;
  const int warp = p.by_warps.Split(walker);
  const bool walks = walker < g.walkers;
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
  const int column = 16 * warp + lane / 4, channel = 8 * t;
  float* const sums =
      reinterpret_cast<float*>(shared + g.sums_at) + (walks ? walker : 0) * (2 * g.each);

  TakeWeightsApart<K>(reinterpret_cast<uint32_t*>(shared), w, p);
  const SharedPlace weights = PlaceOf(shared) + 16 * lane;

  const int first = static_cast<int>(blockIdx.x) * g.walkers, apart = p.streams * g.walkers;
  Words a[NC][2];
  const auto row_of = [&](int image, int row) {
    return x + (image * p.x_batch + int64_t{row} * p.columns * p.in_channels);
  };
  const auto there = [&](int image, int row) {
    return walks && image < p.batch && static_cast<unsigned>(row) < static_cast<unsigned>(p.rows);
  };
  {
    const bool wanted = there(first + walker, g.first_row);
    const uint16_t* const from = wanted ? row_of(first + walker, g.first_row) : x;
#pragma unroll
    for (int c = 0; c < NC; ++c) LoadChunk(a[c], from, wanted, column, channel + 32 * c, p);
  }
  __syncthreads();  // the weights are there

  int buffer = 0;
  for (int images = first; images < p.batch; images += apart) {
    const int image = images + walker;
    float sum[K][2][4] = {};
    for (int turn = 0; turn < g.turns; ++turn) {
      const int row = g.first_row + turn;
      const bool last = turn + 1 == g.turns;
      const int next_image = last ? image + apart : image, next_row = last ? g.first_row : row + 1;
      const bool wanted = there(next_image, next_row), now = there(image, row);
      const uint16_t* const next = wanted ? row_of(next_image, next_row) : x;
#pragma unroll
      for (int c = 0; c < NC; ++c) {
        if (now) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t operand[4] = {a[c][0].value[2 * half], a[c][1].value[2 * half],
                                         a[c][0].value[2 * half + 1], a[c][1].value[2 * half + 1]};
#pragma unroll
            for (int k = 0; k < K; ++k) {
              uint32_t b[4];
              LoadWords(b, weights + ((c * 2 + half) * K + k) * 512);
              mma::Multiply<Operand>(sum[k][0], operand, b[0], b[1]);
              mma::Multiply<Operand>(sum[k][1], operand, b[2], b[3]);
            }
          }
        }
        // Of the next row, when this one's have been multiplied.
        LoadChunk(a[c], next, wanted, column, channel + 32 * c, p);
      }
      float* const to = sums + buffer * g.each;
      if (walks) {
#pragma unroll
        for (int i = 0; i < S * 8; ++i) {
          const int product = i / 4 % 2 * 8 + 2 * t + i % 2;
          to[i / 8 * g.row + product * g.pitch + column + i / 2 % 2 * 8] =
              sum[i / 8][i / 4 % 2][i % 4];
        }
      }
#pragma unroll
      for (int k = 0; k < K; ++k) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          sum[k][i / 4][i % 4] = k + S < K ? sum[(k + S) % K][i / 4][i % 4] : 0;
      }
      // All are there; and what was there two turns ago has been read.
      __syncthreads();
      if (walks && image < p.batch) {
        AddTaps<Operand, S>(y + image * p.y_batch, bias, to, row * S - p.crop_h, 32 * warp + lane,
                            p);
      }
      buffer ^= 1;
    }
  }
}

inline Params MakeParams(const Problem& q, const PixelsForwardPlan& plan, unsigned blocks) {
  Params p{};
  p.plan = plan;
  p.x_batch = q.h.in * q.w.in * q.in_channels;
  p.y_batch = q.h.out * q.w.out * q.out_channels;
  p.batch = static_cast<int>(q.batch);
  p.in_channels = static_cast<int>(q.in_channels);
  p.out_channels = static_cast<int>(q.out_channels);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.rows = static_cast<int>(q.h.in);
  p.columns = static_cast<int>(q.w.in);
  p.y_rows = static_cast<int>(q.h.out);
  p.y_columns = static_cast<int>(q.w.out);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.streams = static_cast<int>(
      std::clamp<int64_t>(blocks, 1, std::max<int64_t>(CeilDiv(q.batch, plan.walkers), 1)));
  p.by_warps = Divider(plan.warps);
  p.by_count_v = Divider(plan.count_v);
  return p;
}

}  // namespace transconv::cuda::pixels_forward

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_PIXELS_CUH_
