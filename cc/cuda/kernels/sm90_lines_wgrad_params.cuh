// What the weight gradient from lines passes to its kernel, and what its threads share.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/lines_wgrad_plan.h"

namespace transconv::cuda::sm90_lines_wgrad {

using lines_wgrad::kLineBytes;
using lines_wgrad::kMostStages;
using lines_wgrad::kPositions;
using lines_wgrad::kSteps;

constexpr int kProducers = lines_wgrad::kProducers, kConsumerWarps = 8;
constexpr int kConsumers = 32 * kConsumerWarps, kThreads = kProducers + kConsumers;

struct Params {
  const float *x, *dy;
  float* slots;  // [split][weight], or null: then dw is written
  float* dw;
  int64_t weights;
  int64_t x_image, dy_image;  // elements
  int x_channel, dy_channel;
  int batch, in_h, in_w, out_h, out_w;
  int stride_h, stride_w, dilation_h, dilation_w, top, left, shift;
  int tile_n, tile_h, tile_w, positions;
  int row_pitch, image_pitch, channel_pitch;  // elements
  int window_h, window_w;                     // pixels of dy
  int dy_vector;                              // elements of a copy in the table
  int copies;                                 // of all channels
  Divider by_stage_w, by_stage_h;             // of the positions
  Divider by_copy, by_row, by_tile;           // of the table
  Divider by_tap, by_kx;
  Divider by_rows, by_columns;  // blocks
  int in_per_group, out_per_group;
  int rows;  // of a group
  int block_rows, channels;
  int stages, per_split, blocks;
  int ring, stage_bytes, table_bytes;
  int x_copy, dy_copy;  // bytes of one copy
  bool ragged;          // some stage has fewer than 32 positions
};

inline Params MakeParams(const Problem& q, const LinesWgradPlan& plan) {
  Params p{};
  const auto number = [](int64_t v) { return static_cast<int>(v); };
  p.weights = q.in_channels * plan.weights;
  p.x_channel = number(q.h.in * q.w.in);
  p.dy_channel = number(q.h.out * q.w.out);
  p.x_image = q.in_channels * p.x_channel;
  p.dy_image = q.out_channels * p.dy_channel;
  p.batch = number(q.batch);
  p.in_h = number(q.h.in);
  p.in_w = number(q.w.in);
  p.out_h = number(q.h.out);
  p.out_w = number(q.w.out);
  p.stride_h = number(q.h.stride);
  p.stride_w = number(q.w.stride);
  p.dilation_h = number(q.h.dilation);
  p.dilation_w = number(q.w.dilation);
  p.top = number(-q.h.crop_lo);
  p.left = plan.left;
  p.shift = number(-q.w.crop_lo) - plan.left;
  p.tile_n = plan.tile_n;
  p.tile_h = plan.tile_h;
  p.tile_w = plan.tile_w;
  p.positions = plan.positions();
  p.row_pitch = plan.row_pitch;
  p.image_pitch = plan.image_pitch;
  p.channel_pitch = plan.channel_pitch;
  p.window_h = plan.rows;
  p.window_w = plan.copies * plan.dy_vector;
  p.dy_vector = plan.dy_vector;
  p.copies = number(plan.copies_of_dy());
  p.by_stage_w = Divider(plan.stages_w);
  p.by_stage_h = Divider(plan.stages_h);
  p.by_copy = Divider(plan.copies);
  p.by_row = Divider(plan.rows);
  p.by_tile = Divider(plan.tile_n);
  p.by_tap = Divider(q.taps());
  p.by_kx = Divider(q.w.kernel);
  p.by_rows = Divider(plan.row_blocks);
  p.by_columns = Divider(plan.column_blocks);
  p.in_per_group = number(q.in_per_group());
  p.out_per_group = number(q.out_per_group());
  p.rows = number(plan.weights);
  p.block_rows = number(plan.block_rows);
  p.channels = plan.channels;
  p.stages = number(plan.stages);
  p.per_split = number(plan.per_split);
  p.blocks = number(plan.blocks);
  p.ring = plan.ring;
  p.stage_bytes = number(lines_wgrad::StageBytes(plan));
  p.table_bytes = number(lines_wgrad::TableBytes(plan));
  p.x_copy = 4 * plan.x_vector;
  p.dy_copy = 4 * plan.dy_vector;
  p.ragged = p.positions < kPositions || q.w.in % plan.tile_w != 0 || q.h.in % plan.tile_h != 0 ||
             q.batch % plan.tile_n != 0;
  return p;
}

// A copy of each stage: from where its first position is, and where to.
struct alignas(lines_wgrad::kCopyBytes) Copy {
  int from;  // elements of dy
  int to;    // bytes of the windows
  int16_t n, y, x, channel;
};

// What a block has to do.
struct Work {
  int split, first, count;  // stages
  int group, row, column;   // the first row and column in their group
  __device__ __forceinline__ Work(const Params& p, int columns) {
    int block = static_cast<int>(blockIdx.x);
    split = block / p.blocks;
    block -= split * p.blocks;
    row = p.by_rows.Split(block) * p.block_rows;
    column = p.by_columns.Split(block) * columns;
    group = block;
    first = split * p.per_split;
    count = min(p.per_split, p.stages - first);
  }
};

// The first position of a stage.
struct Origin {
  int n, y, x;
  __device__ __forceinline__ Origin(const Params& p, int stage) {
    x = p.by_stage_w.Split(stage) * p.tile_w;
    y = p.by_stage_h.Split(stage) * p.tile_h;
    n = stage * p.tile_n;
  }
  // Whether all of the stage's positions exist.
  __device__ __forceinline__ bool IsWhole(const Params& p) const {
    return p.positions == kPositions && x + p.tile_w <= p.in_w && y + p.tile_h <= p.in_h &&
           n + p.tile_n <= p.batch;
  }
};

// One of a stage's positions.
struct alignas(8) Position {
  int16_t n, y, x, unused;
  __device__ __forceinline__ static Position Of(const Params& p, int at) {
    const int row = at / p.tile_w, image = row / p.tile_h;
    return {static_cast<int16_t>(image), static_cast<int16_t>(row - image * p.tile_h),
            static_cast<int16_t>(at - row * p.tile_w), 0};
  }
  __device__ __forceinline__ bool Exists(const Params& p, const Origin& from) const {
    return n < p.tile_n && from.n + n < p.batch && from.y + y < p.in_h && from.x + x < p.in_w;
  }
};

// At the start of shared memory; the table of copies and the stages follow.
struct Control {
  uint64_t full[kMostStages], rounded[kMostStages], empty[kMostStages];
  Position position[kPositions];
};
static_assert(sizeof(Control) <= lines_wgrad::kControlBytes);

// A place in the ring of stages.
struct Place {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next(int ring) {
    if (++slot < ring) return;
    slot = 0;
    parity ^= 1;
  }
};

}  // namespace transconv::cuda::sm90_lines_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_PARAMS_CUH_
