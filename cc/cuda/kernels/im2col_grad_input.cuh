// The gradient of x of problems with few channels on one side, on the tensor cores.
//
// The matrix of im2col is never written: the dy that a tile of x reaches lies in shared memory
// (im2col_stage.cuh), and an element of the matrix is at the sum of its pixel's and its tap's
// offset, whatever stride, dilation and layout are. A warp reads them as fragments by plain loads,
// for 16 MF pixels and the block's 8 NF channels; core/im2col_plan.h has the sizes, and pads that
// keep the loads' banks apart.
//
// What is beyond the image is zero in the box; k beyond the last one is zero on both sides, so that
// an infinity never meets it. Pixels and channels that do not exist are computed and not stored.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_plan.h"
#include "cuda/kernels/im2col_stage.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda::im2col {

struct GradInputParams {
  Im2colPlan plan;
  int64_t dy_batch, dy_group, dx_batch, dx_channel;  // elements from one to the next
  int dx_column, width, height;                      // of x
  int in_per_group, out_per_group, taps, kernel_w;
  int stride_h, stride_w, crop_h, crop_w;
  int streams;                         // of tiles, which blocks of the same channels share
  bool pairs;                          // two neighbouring channels of dx are stored at once
  Divider by_n, by_group;              // a block's index: channels, group, stream
  Divider by_tile_w, by_tile_h;        // a tile's: column, row, image
  Divider by_columns;                  // a pixel of a tile
  Divider by_k, by_fast, by_kernel_w;  // a weight of a chunk: k of all steps, k's faster part, tap
};

// Offsets in bytes of the k of two registers of a step.
struct alignas(8) IntPair {
  int value[2];
};

// The weights of a chunk lie in the order of the fragments, [step][fragment][lane][two registers].
// A thread takes every kBoxThreads-th in the order [channel][k], kAhead at a time: all of these
// loads are on their way before the first is waited for. While sums are in registers, few are.
template <int NF>
constexpr int kWeightsAhead = NF == 8   ? 12
                              : NF == 4 ? 6
                              : NF == 2 ? 4
                                        : 2;

template <typename E, int kAhead>
__device__ __forceinline__ void LoadWeights(typename E::Type (&found)[kAhead], int first,
                                            const typename E::Type* __restrict__ weight, int n_left,
                                            int c_left, const GradInputParams& p) {
  const Im2colPlan& g = p.plan;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    int n = first + i * kBoxThreads;
    const bool inside = n < g.weights();
    const int k = p.by_k.Split(n);
    int slow = k;
    const int fast = p.by_fast.Split(slow);
    const int c = g.channels_fastest ? fast : slow, tap = g.channels_fastest ? slow : fast;
    found[i] = 0;
    if (inside && k < g.k && n < n_left && c < c_left) {
      found[i] = weight[(n * p.out_per_group + c) * p.taps + tap];
    }
  }
}

template <typename E, int NF, int kAhead>
__device__ __forceinline__ void PutWeights(float* to, const typename E::Type (&found)[kAhead],
                                           int first, const GradInputParams& p) {
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    int n = first + i * kBoxThreads;
    if (n >= p.plan.weights()) break;
    const int k = p.by_k.Split(n), lane = n % 8 * 4 + k % 4;
    to[(((k >> 3) * NF + (n >> 3)) * 32 + lane) * 2 + (k >> 2) % 2] = E::Load(found[i]);
  }
}

// Those of a chunk from `first` on.
template <typename E, int NF, int kAhead>
__device__ __forceinline__ void StageWeights(float* to, int first,
                                             const typename E::Type* __restrict__ weight,
                                             int n_left, int c_left, const GradInputParams& p) {
#pragma unroll 1
  for (int e = first; e < p.plan.weights(); e += kAhead * kBoxThreads) {
    typename E::Type found[kAhead];
    LoadWeights<E, kAhead>(found, e, weight, n_left, c_left, p);
    PutWeights<E, NF, kAhead>(to, found, e, p);
  }
}

// One step of eight k. kLast: those from `left` on do not exist.
template <int MF, int NF, bool kLast>
__device__ __forceinline__ void MultiplyStep(float (&sum)[MF][NF][4],
                                             const unsigned char* const (&pixel)[2 * MF],
                                             const IntPair* offsets,
                                             const Vector<float, 2>* weights, int left) {
  const IntPair offset = *offsets;
  const int t = static_cast<int>(threadIdx.x) % 4;
  const bool there[2] = {!kLast || t < left, !kLast || t + 4 < left};
  float a[MF][4];
#pragma unroll
  for (int i = 0; i < MF; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      a[i][j] = 0.0f;
      if (there[j / 2]) {
        a[i][j] = *reinterpret_cast<const float*>(pixel[2 * i + j % 2] + offset.value[j / 2]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < NF; ++n) {
    const Vector<float, 2> b = weights[n * 32];
#pragma unroll
    for (int i = 0; i < MF; ++i) tf32::Multiply(sum[i][n], a[i], b.value[0], b.value[1]);
  }
}

// Stores a warp's sums; `m` is the first of its pixels in the tile.
template <typename E, int MF, int NF>
__device__ __forceinline__ void StoreSums(typename E::Type* to, const float (&sum)[MF][NF][4],
                                          int m, int row, int column, int n_left,
                                          const GradInputParams& p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, n = lane % 4 * 2;
  to += n * p.dx_channel;
#pragma unroll
  for (int i = 0; i < 2 * MF; ++i) {
    int r = m + i * 8 + lane / 4;
    const int c = p.by_columns.Split(r);
    if (r >= p.plan.rows || row + r >= p.height || column + c >= p.width) continue;
    typename E::Type* const at = to + ((row + r) * p.width + column + c) * p.dx_column;
#pragma unroll
    for (int j = 0; j < NF; ++j) {
      const float first = sum[i / 2][j][i % 2 * 2], second = sum[i / 2][j][i % 2 * 2 + 1];
      const int64_t next = int64_t{j} * 8 * p.dx_channel;
      if (p.pairs) {
        if (n + 8 * j < n_left) {
          StoreGlobal<typename E::Type, 2>(at + next, {{E::Round(first), E::Round(second)}});
        }
      } else {
        if (n + 8 * j < n_left) at[next] = E::Round(first);
        if (n + 8 * j + 1 < n_left) at[next + p.dx_channel] = E::Round(second);
      }
    }
  }
}

// Blocks of a multiprocessor by registers: before 9.0 four fragments of channels need more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <int NF>
constexpr int kGradInputBlocks = NF >= 4 ? 2 : 3;
#else
template <int NF>
constexpr int kGradInputBlocks = NF >= 8 ? 2 : 3;
#endif

// A tile's first pixel.
struct Origin {
  int image, row, column;
};

template <typename E, int MF, int NF>
__global__ void __launch_bounds__(kBoxThreads, kGradInputBlocks<NF>)
    GradInputKernel(const typename E::Type* __restrict__ dy,
                    const typename E::Type* __restrict__ weight, typename E::Type* __restrict__ dx,
                    const __grid_constant__ GradInputParams p) {
  const Im2colPlan& g = p.plan;
  unsigned char* const shared = SharedMemory();
  float* const weights = reinterpret_cast<float*>(shared);
  IntPair* const offsets = reinterpret_cast<IntPair*>(shared + g.offsets_at);
  float* const box = reinterpret_cast<float*>(shared + g.box_at);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  int stream = static_cast<int>(blockIdx.x);
  const int n = p.by_n.Split(stream) * NF * 8;
  const int group = p.by_group.Split(stream);
  const int n_left = p.in_per_group - n, first_channel = group * p.in_per_group + n;
  dy += group * p.dy_group;
  dx += first_channel * p.dx_channel;
  weight += int64_t{first_channel} * p.out_per_group * p.taps;

  // The first weights are on their way while the first box is staged.
  constexpr int kAhead = kWeightsAhead<NF>;
  typename E::Type first_weights[kAhead];
  if (g.held) LoadWeights<E, kAhead>(first_weights, thread, weight, n_left, p.out_per_group, p);
  for (int k = thread; k < g.steps * 8; k += kBoxThreads) {
    int slow = k, at = 0;
    const int fast = p.by_fast.Split(slow);
    if (k < g.k) {
      int tap_h = g.channels_fastest ? slow : fast;
      const int tap_w = p.by_kernel_w.Split(tap_h);
      at = (g.channels_fastest ? fast : slow) * g.box.channel + tap_h * g.tap_row +
           tap_w * g.tap_column;
    }
    offsets[k / 8 * 4 + k % 4].value[k / 4 % 2] = at * static_cast<int>(sizeof(float));
  }
  const auto origin = [&](int tile) {
    int image = tile;
    const int column = p.by_tile_w.Split(image) * g.columns;
    const int row = p.by_tile_h.Split(image) * g.rows;
    return Origin{image, row, column};
  };
  const auto stage = [&](const Origin& at, int chunk) {
    StageBox<E>(box, dy + at.image * p.dy_batch, g.box, at.row * p.stride_h - p.crop_h,
                at.column * p.stride_w - p.crop_w, chunk * g.chunk);
  };
  if (stream < g.tiles) stage(origin(stream), 0);
  if (g.held) {
    PutWeights<E, NF, kAhead>(weights, first_weights, thread, p);
    for (int chunk = 0; chunk < g.chunks; ++chunk) {
      StageWeights<E, NF, kAhead>(
          weights + chunk * g.weights(), thread + (chunk == 0 ? kAhead * kBoxThreads : 0),
          weight + chunk * g.chunk * p.taps, n_left, p.out_per_group - chunk * g.chunk, p);
    }
  }

  for (int tile = stream; tile < g.tiles; tile += p.streams) {
    const Origin place = origin(tile);
    for (int round = 0; round < g.rounds; ++round) {
      const int piece = round * Im2colPlan::kWarps + warp;
      // Pixels beyond the tile's last read the first one's dy.
      const unsigned char* pixel[2 * MF];
#pragma unroll
      for (int i = 0; i < 2 * MF; ++i) {
        int r = piece * (16 * MF) + i * 8 + lane / 4;
        int c = p.by_columns.Split(r);
        if (r >= g.rows) r = c = 0;
        pixel[i] = reinterpret_cast<const unsigned char*>(
            box + (g.box.Shift(place.column * p.stride_w - p.crop_w) + r * g.pixel_row +
                   c * g.pixel_column));
      }
      float sum[MF][NF][4] = {};
      for (int chunk = 0; chunk < g.chunks; ++chunk) {
        if (round == 0) {
          if (tile != stream || chunk > 0) {
            __syncthreads();
            stage(place, chunk);
          }
          if (!g.held) {
            const int c = chunk * g.chunk;
            StageWeights<E, NF, 2>(weights, thread, weight + c * p.taps, n_left,
                                   p.out_per_group - c, p);
          }
          __syncthreads();
        }
        if (piece >= g.pieces) continue;
        const IntPair* at = offsets + lane % 4;
        const Vector<float, 2>* w = reinterpret_cast<const Vector<float, 2>*>(
                                        weights + (g.held ? chunk * g.weights() : 0)) +
                                    lane;
        int step = g.k / 8;
        // Two at a time, so that the second's loads do not wait for the first's products.
        for (; step > 1; step -= 2) {
          MultiplyStep<MF, NF, false>(sum, pixel, at, w, 8);
          MultiplyStep<MF, NF, false>(sum, pixel, at + 4, w + NF * 32, 8);
          at += 8;
          w += 2 * NF * 32;
        }
        if (step > 0) {
          MultiplyStep<MF, NF, false>(sum, pixel, at, w, 8);
          at += 4;
          w += NF * 32;
        }
        if (g.k % 8 != 0) MultiplyStep<MF, NF, true>(sum, pixel, at, w, g.k % 8);
      }
      if (piece < g.pieces) {
        StoreSums<E, MF, NF>(dx + place.image * p.dx_batch, sum, piece * (16 * MF), place.row,
                             place.column, n_left, p);
      }
    }
  }
}

// `pairs`: whether dx is aligned to two elements.
inline GradInputParams MakeGradInputParams(const Problem& q, const Im2colPlan& plan, bool pairs,
                                           int64_t blocks) {
  const bool first = q.layout == Layout::kNCHW;
  const int64_t x_size = q.h.in * q.w.in, y_size = q.h.out * q.w.out;
  GradInputParams p{};
  p.plan = plan;
  p.dy_batch = q.out_channels * y_size;
  p.dy_group = q.out_per_group() * (first ? y_size : 1);
  p.dx_batch = q.in_channels * x_size;
  p.dx_channel = first ? x_size : 1;
  p.dx_column = static_cast<int>(first ? 1 : q.in_channels);
  p.width = static_cast<int>(q.w.in);
  p.height = static_cast<int>(q.h.in);
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.taps = static_cast<int>(q.taps());
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  const int64_t each = q.groups * plan.n_blocks;
  p.streams =
      static_cast<int>(std::clamp<int64_t>(blocks / each, 1, std::max<int64_t>(plan.tiles, 1)));
  p.pairs = pairs && !first && q.in_per_group() % 2 == 0;
  p.by_n = Divider(plan.n_blocks);
  p.by_group = Divider(q.groups);
  p.by_tile_w = Divider(plan.tiles_w);
  p.by_tile_h = Divider(plan.tiles_h);
  p.by_columns = Divider(plan.columns);
  p.by_k = Divider(plan.steps * 8);
  p.by_fast = Divider(plan.channels_fastest ? plan.chunk : q.taps());
  p.by_kernel_w = Divider(q.w.kernel);
  return p;
}

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_CUH_
