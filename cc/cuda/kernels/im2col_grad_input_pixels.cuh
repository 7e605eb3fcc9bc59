// The input gradient of pixels of 16 bits (NHWC), few output channels, on the tensor cores.
//
//     dx[i, ci] = sum over taps and co of dy[s i + d k - crop, co] * w[ci, (co, kh, kw)]
//
// What a block does for its channels of all tiles is little: it takes the weights apart into
// operands once, and then copies what a tile's taps reach of dy, as it is in the image and while
// the tile before is multiplied. Where a row of taps starts at an odd element, operands come from a
// copy one element further on (core/im2col_pixels_plan.h). Operands of dy are words at a position
// and a distance from a table; products that are none, beside the last of a row of taps, are
// masked, lest an infinity meet a zero. Columns of an instruction are channels in such an order
// that a lane has eight neighbours of a position to store.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_PIXELS_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_PIXELS_CUH_

#include <algorithm>
#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_pixels_plan.h"
#include "cuda/kernels/im2col_pixels.cuh"
#include "cuda/kernels/im2col_stage.cuh"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::pixels_input {

constexpr int kThreads = kBoxThreads;

struct Params {
  PixelsInputPlan plan;
  pixels::Image dy;
  int64_t x_batch;
  int in_channels, kernel_h, kernel_w;
  int rows, columns;  // of x
  int dilation_h;
  unsigned streams;  // of tiles
  Divider by_in, by_tile_w, by_tile_h, by_groups, by_blocks_w, by_steps, by_words, by_out,
      by_words_row;
};

// Of a channel's weights, the two of a word: taps and channels of a row of taps, side by side.
__device__ __forceinline__ uint32_t WeightsOf(const uint16_t* __restrict__ w, int in, int word,
                                              const Params& p) {
  int tap_h = word;
  const int first = 2 * p.by_words.Split(tap_h), out_channels = p.dy.channels;
  uint32_t two = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int tap_w = first + i;
    const int out = p.by_out.Split(tap_w);
    if (tap_h >= p.kernel_h || tap_w >= p.kernel_w || in >= p.in_channels) continue;
    const int at = ((in * out_channels + out) * p.kernel_h + tap_h) * p.kernel_w + tap_w;
    two |= uint32_t{w[at]} << (16 * i);
  }
  return two;
}

// The weights in the order of operands: of 32 channels, a step and two fragments, four words a
// lane.
__device__ __forceinline__ void TakeWeightsApart(uint32_t* to, const uint16_t* __restrict__ w,
                                                 int first_in, const Params& p) {
  const int count = p.plan.in * p.plan.steps * 8;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int half = i % 2, lane = i / 4 % 32, fragment = i / 128 % 2 * 2 + i / 2 % 2;
    int group = i / 256;
    const int step = p.by_steps.Split(group);
    const int column = lane / 4, word = 8 * step + 4 * half + lane % 4;
    const int in = first_in + 32 * group + column / 2 * 8 + 2 * fragment + column % 2;
    to[i] = WeightsOf(w, in, word, p);
  }
}

// The copy that is an element further on.
__device__ __forceinline__ void CopyFurther(uint32_t* to, const uint32_t* from, const Params& p) {
  const int count = p.plan.dy_bytes / 4;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    to[i] = from[i] >> 16 | from[min(i + 1, count - 1)] << 16;
  }
}

template <typename Operand, int FM, int FN>
__global__ void __launch_bounds__(kThreads, 2)
    GradInputPixelsKernel(const uint16_t* __restrict__ dy, const uint16_t* __restrict__ w,
                          uint16_t* __restrict__ x, const __grid_constant__ Params p) {
  const PixelsInputPlan& g = p.plan;
  unsigned char* const shared = SharedMemory();
  PixelsOperand* const table = reinterpret_cast<PixelsOperand*>(shared);
  uint32_t* const weights = reinterpret_cast<uint32_t*>(shared + g.weights_at);
  const auto box = [&](int turn) { return shared + (g.dy_at + turn % 2 * g.dy_bytes); };
  uint32_t* const further = reinterpret_cast<uint32_t*>(shared + g.copy_at);

  int stream = static_cast<int>(blockIdx.x);
  const int first_in = p.by_in.Split(stream) * g.in;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int lane_row = lane / 4, lane_column = lane % 4;
  const auto tile_of = [&](int64_t index) {
    pixels::Tile t;
    t.image = static_cast<int>(index);
    t.column = p.by_tile_w.Split(t.image) * g.w.size;
    t.row = p.by_tile_h.Split(t.image) * g.h.size;
    return t;
  };
  const auto copy = [&](int turn, int64_t index) {
    pixels::CopyRows(box(turn), dy, tile_of(index), g.h.halo, g.vectors, g.vector, g.row,
                     p.by_words_row, p.dy);
  };

  if (stream < g.tiles) copy(0, stream);
  for (int i = static_cast<int>(threadIdx.x); i < 4 * g.steps; i += kThreads) {
    PixelsOperand operand{};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int tap_h = i / 4 * 8 + 4 * half + i % 4;
      const int at = p.by_words.Split(tap_h);
      if (tap_h >= p.kernel_h) continue;
      operand.at[half] = static_cast<uint32_t>(tap_h * p.dilation_h * g.row + 4 * at);
      operand.mask[half] = 2 * at + 1 == p.kernel_w * p.dy.channels ? 0xffffu : 0xffffffffu;
    }
    table[i] = operand;
  }
  TakeWeightsApart(weights, w, first_in, p);

  const SharedPlace from_table = PlaceOf(table + lane_column);
  const SharedPlace from_weights = PlaceOf(weights + 4 * lane);
  const int position = p.dy.stride_w * p.dy.channels;  // elements from one to the next
  int turn = 0;
  for (int64_t index = stream; index < g.tiles; index += p.streams, ++turn) {
    CopyAsyncDone();
    __syncthreads();  // dy is there, and nobody reads the tile before
    if (index + p.streams < g.tiles) copy(turn + 1, index + p.streams);
    CopyFurther(further, reinterpret_cast<const uint32_t*>(box(turn)), p);
    __syncthreads();

    const pixels::Tile tile = tile_of(index);
    const int shift = pixels::ShiftOf(tile, g.vector, p.dy);
    // The same for all units, as eight positions are an even number of elements.
    const int first = shift + lane_row * position;
    const SharedPlace place =
        first % 2 == 0 ? PlaceOf(box(turn)) + 2 * first : PlaceOf(further) + 2 * (first - 1);
    for (int unit = warp; unit < g.units; unit += kThreads / 32) {
      int row = unit;
      const int group = p.by_groups.Split(row);
      const int column = p.by_blocks_w.Split(row) * (16 * FM);
      if (tile.row + row >= p.rows || tile.column + column >= p.columns) continue;
      const SharedPlace from = place + (row * p.dy.stride_h * g.row + 2 * column * position);
      float sum[FM][FN][4] = {};
      SharedPlace b_from = from_weights + group * (FN / 4) * g.steps * 1024;
      for (int step = 0; step < g.steps; ++step, b_from += 1024) {
        uint32_t b[FN / 2][4], operand[4];
        LoadWords(operand, from_table + step * 64);
#pragma unroll
        for (int j = 0; j < FN / 2; ++j) {
          LoadWords(b[j], b_from + (j / 2 * g.steps * 1024 + j % 2 * 512));
        }
#pragma unroll
        for (int i = 0; i < FM; ++i) {
          uint32_t a[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            a[k] = LoadWord(from + (operand[k / 2] + 2 * position * (16 * i + 8 * (k % 2)))) &
                   operand[2 + k / 2];
          }
#pragma unroll
          for (int j = 0; j < FN; ++j) {
            mma::Multiply<Operand>(sum[i][j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
      const int in = first_in + 8 * (group * FN + lane_column);
#pragma unroll
      for (int i = 0; i < 2 * FM; ++i) {
        const int at = tile.column + column + 8 * i + lane_row;
        if (at >= p.columns) continue;
        uint16_t* const to =
            x + tile.image * p.x_batch + (int64_t{tile.row + row} * p.columns + at) * p.in_channels;
#pragma unroll
        for (int j = 0; j < FN / 4; ++j) {
          if (in + 32 * j >= p.in_channels) continue;
          im2col::Vector<uint32_t, 4> words;
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float (&pair)[4] = sum[i / 2][4 * j + k];
            words.value[k] = mma::Pack<Operand>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
          }
          im2col::StoreGlobal(reinterpret_cast<uint32_t*>(to + (in + 32 * j)), words);
        }
      }
    }
  }
}

inline Params MakeParams(const Problem& problem, const PixelsInputPlan& plan, unsigned blocks) {
  const Problem q = transconv::im2col_wgrad::ColumnAsRow(problem);
  Params p{};
  p.plan = plan;
  p.dy = pixels::ImageOfY(q);
  p.x_batch = q.h.in * q.w.in * q.in_channels;
  p.in_channels = static_cast<int>(q.in_channels);
  p.kernel_h = static_cast<int>(q.h.kernel);
  p.kernel_w = static_cast<int>(q.w.kernel);
  p.rows = static_cast<int>(q.h.in);
  p.columns = static_cast<int>(q.w.in);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.streams = static_cast<unsigned>(
      std::clamp<int64_t>(blocks / plan.in_blocks, 1, std::max<int64_t>(plan.tiles, 1)));
  p.by_in = Divider(plan.in_blocks);
  p.by_tile_w = Divider(plan.w.tiles);
  p.by_tile_h = Divider(plan.h.tiles);
  p.by_groups = Divider(plan.groups);
  p.by_blocks_w = Divider(plan.blocks_w);
  p.by_steps = Divider(plan.steps);
  p.by_words = Divider(plan.words);
  p.by_out = Divider(q.out_channels);
  p.by_words_row = Divider(plan.vectors);
  return p;
}

}  // namespace transconv::cuda::pixels_input

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_GRAD_INPUT_PIXELS_CUH_
