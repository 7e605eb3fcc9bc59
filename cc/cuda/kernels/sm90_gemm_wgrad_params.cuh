// What the weight gradient as one matrix product passes to its kernel, and what its threads share.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/gemm_wgrad_plan.h"
#include "cuda/primitives/box.cuh"

namespace transconv::cuda::sm90_gemm_wgrad {

using Tile = GemmWgradTile;

constexpr int kProducerWarps = 4, kConsumerWarps = 8;
constexpr int kProducers = 32 * kProducerWarps, kConsumers = 32 * kConsumerWarps;
constexpr int kThreads = 32 * (kProducerWarps + kConsumerWarps);
constexpr int kMostStages = 6;

struct Params {
  BoxMap x_boxes;
  const char *x, *dy;
  float* slots;  // [split][weight], or null: then dw is written
  void* dw;
  int64_t weights;
  // Bytes between neighbours.
  int64_t x_image, x_channel, dy_image, dy_channel, dy_row, dy_line;
  Divider by_image, by_row, by_tap;  // pixels of an image, of a row; ky
  Divider by_rows, by_columns;       // blocks
  int pixels;                        // of all images
  int in_per_group, out_per_group;
  int rows, lines;  // of a group
  int stages, per_split, blocks;
  int cluster;              // blocks that add their sums
  int x_vector, dy_vector;  // bytes of one copy
  bool boxed;               // then x comes as boxes: a stage's pixels of a tile's channels
  bool pairs;               // dw may be written in pairs
};

inline Params MakeParams(const Problem& q, const GemmWgradPlan& plan, int element) {
  Params p{};
  p.weights = q.in_channels * plan.rows;
  p.x_channel = plan.image() * element;
  p.x_image = q.in_channels * p.x_channel;
  p.dy_line = plan.w.out * element;
  p.dy_row = plan.h.kernel * p.dy_line;
  p.dy_channel = plan.h.in * p.dy_row;
  p.dy_image = q.out_channels * p.dy_channel;
  p.by_image = Divider(plan.image());
  p.by_row = Divider(plan.w.in);
  p.by_tap = Divider(plan.h.kernel);
  p.by_rows = Divider(plan.row_blocks);
  p.by_columns = Divider(plan.column_blocks);
  p.pixels = static_cast<int>(q.batch * plan.image());
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.rows = static_cast<int>(plan.rows);
  p.lines = static_cast<int>(plan.lines);
  p.stages = static_cast<int>(plan.stages);
  p.per_split = static_cast<int>(plan.per_split);
  p.blocks = static_cast<int>(plan.blocks);
  p.cluster = static_cast<int>(plan.cluster());
  p.x_vector = plan.x_vector;
  p.dy_vector = plan.dy_vector;
  return p;
}
inline BoxTensor XBoxesOf(const void* x, const Problem& q, const GemmWgradPlan& plan) {
  BoxTensor tensor;
  tensor.base = x;
  tensor.element = static_cast<uint32_t>(plan.element);
  tensor.swizzled = true;
  const uint64_t channels = static_cast<uint64_t>(q.in_channels);
  tensor.size[0] = static_cast<uint64_t>(plan.image());
  tensor.size[1] = channels;
  tensor.size[2] = static_cast<uint64_t>(q.batch);
  tensor.stride[0] = tensor.size[0] * tensor.element;
  tensor.stride[1] = tensor.stride[0] * channels;
  tensor.box[0] = static_cast<uint32_t>(Tile::Pixels(plan.element));
  tensor.box[1] = static_cast<uint32_t>(plan.columns);
  return tensor;
}

struct Control {
  int64_t line[Tile::kRows];  // bytes of dy from its first channel to a line of the tile
  uint64_t full[kMostStages], rounded[kMostStages], empty[kMostStages];
};
constexpr int kControlBytes = 2048;
static_assert(sizeof(Control) <= kControlBytes, "the stages start behind it");
static_assert(kControlBytes % 1024 == 0 && Tile::Bytes(128) % 1024 == 0, "as a swizzle needs");

constexpr int SharedBytes(int columns) {
  return kControlBytes + Tile::Stages(columns) * Tile::Bytes(columns);
}

// What a block has to do.
struct Work {
  int split, first, count;  // stages
  int group, row, column;   // the first row and column in their group
  __device__ __forceinline__ Work(const Params& p, int columns) {
    int block = static_cast<int>(blockIdx.x);
    if (p.cluster > 1) {
      split = block % p.cluster;
      block /= p.cluster;
    } else {
      split = block / p.blocks;
      block -= split * p.blocks;
    }
    row = p.by_rows.Split(block) * Tile::kRows;
    column = p.by_columns.Split(block) * columns;
    group = block;
    first = split * p.per_split;
    count = min(p.per_split, p.stages - first);
  }
};

// A place in the ring of stages.
template <int kStages>
struct Place {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++slot < kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

}  // namespace transconv::cuda::sm90_gemm_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_PARAMS_CUH_
