// What a call of the Hopper matrix product for kernels as large as their stride passes to its
// kernels: one, and in float32 one that packs weights before it.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_GEMM_CALL_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_GEMM_CALL_CUH_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/dtypes.h"
#include "core/gemm_plan.h"
#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_gemm.cuh"
#include "cuda/kernels/sm90_gemm_params.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_gemm {

// The plan where tensors start as this call's do: it knows of sizes alone.
inline GemmPlan PlanFor(const Call& call, GemmPlan g) {
  const bool forward = call.pass == Pass::kForward;
  const int four = 4 * static_cast<int>(ByteWidth(call.dtype));
  g.vector = Aligned(forward ? call.x : call.y, g.vector);
  g.fours = g.fours && Aligned(call.y, four) == four;
  return g;
}
// Less is no copy, or no whole pixel.
inline int SmallestCopy(const GemmPlan& g, size_t element) {
  return std::max(4, g.values * static_cast<int>(element));
}

inline PackGemmParams PackParamsOf(const Call& call, const GemmPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int row = static_cast<int>(q.out_channels * q.taps());
  PackGemmParams p{};
  p.weight = static_cast<const float*>(call.w);
  p.packed = static_cast<uint8_t*>(call.workspace);
  p.columns = g.columns;
  p.sums = g.lines * g.values;
  p.column_stride = forward ? 1 : row;
  p.sum_stride = forward ? row : 1;
  p.tile_columns = g.tile_columns;
  p.slabs = g.slabs;
  p.fours = g.fours;
  p.vectors = !forward && row % 4 == 0 && Aligned(call.w, 16) == 16;
  return p;
}
// Weights of 16 bits as they are: forward in rows of columns, else in rows of the sum.
inline BoxTensor WeightBoxesOf(const Call& call, const GemmPlan& g, const void* weights) {
  const Problem& q = call.problem;
  const uint64_t row = static_cast<uint64_t>(q.out_channels * q.taps());
  BoxTensor tensor;
  tensor.element = 2;
  tensor.swizzled = true;
  tensor.base = weights;
  tensor.size[0] = row;
  tensor.size[1] = static_cast<uint64_t>(q.in_channels);
  tensor.stride[0] = 2 * row;
  tensor.box[0] = 64;
  tensor.box[1] = call.pass == Pass::kForward ? 64 : static_cast<uint32_t>(g.tile_columns);
  return tensor;
}
inline unsigned PackBlocks(const GemmPlan& g) {
  return static_cast<unsigned>(g.column_tiles * g.slabs * (g.tile_columns / kPackGemmThreads));
}

inline int StageBytes(const GemmPlan& g) {
  return kGemmLineBytes + g.tile_columns * kGemmSlabBytes;
}
// In front of the stages: what a block knows, and its results.
inline int StagesAt(const GemmPlan& g) {
  return kControlBytes + (g.packed ? 0 : StagedBytes(g.tile_columns));
}
inline int Stages(const GemmPlan& g) {
  return std::min((kSm90SharedBytes - StagesAt(g)) / StageBytes(g), kMaxStages);
}
inline int SharedBytes(const GemmPlan& g) { return StagesAt(g) + Stages(g) * StageBytes(g); }

// How results of 16 bits leave. Threads store them themselves where that was as fast: forward,
// where a row's end leaves no vectors of 16 bytes.
inline Staging StagingOf(const Call& call, const void* target) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int element = static_cast<int>(ByteWidth(call.dtype));
  Staging staged{};
  if (element != 2) return staged;
  // What follows one another in the target: a row's pixels, or an image's.
  const int64_t columns = forward ? q.w.kernel : 1;
  const int64_t pixels = forward && q.h.kernel > 1 ? q.w.in : q.h.in * q.w.in;
  int vector = Aligned(target, 16);
  while (pixels * columns * element % vector != 0) vector /= 2;
  for (int log = 0; log <= kMostLogRun; ++log) {
    if (columns != 1 << log || vector < (forward ? 16 : element)) continue;
    staged.vector = vector;
    while (vector << staged.log_vectors < (kStagedPixels * element << log)) ++staged.log_vectors;
    staged.log_run = log;
  }
  return staged;
}

inline GemmParams ParamsOf(const Call& call, const GemmPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int64_t pixels = q.h.in * q.w.in;
  const int width = static_cast<int>(q.w.out);  // of y
  // Of x, a pixel is an element; of y, what its taps reach.
  Pixels x, y;
  x.by_image = y.by_image = Divider(pixels);
  x.by_row = Divider(pixels);
  x.image = q.in_channels * pixels;
  x.row = 0;
  x.column = 1;
  const bool whole = q.h.kernel == 1;
  y.by_row = Divider(whole ? pixels : q.w.in);
  y.image = q.out_channels * q.taps() * pixels;
  y.row = whole ? 0 : static_cast<int>(q.h.kernel) * width;
  y.column = static_cast<int>(q.w.kernel);
  const int64_t y_channel = q.taps() * pixels;

  GemmParams p{};
  p.source = forward ? call.x : call.y;
  p.target = forward ? call.y : call.x;
  p.bias = call.vector;
  p.weights = static_cast<const uint8_t*>(call.workspace);
  p.pixels = static_cast<int>(q.batch * pixels);
  p.from = forward ? x : y;
  p.to = forward ? y : x;
  p.by_line = Divider(forward ? 1 : q.h.kernel);
  p.channel = forward ? pixels : y_channel;
  p.line = forward ? 0 : width;
  p.lines = g.lines;
  p.vector = g.vector;
  p.columns = g.columns;
  p.by_row = Divider(forward ? q.h.kernel : 1);
  p.by_value = Divider(forward ? q.w.kernel : 1);
  p.to_channel = static_cast<int>(forward ? y_channel : pixels);
  p.to_row = forward ? width : 0;
  const int element = static_cast<int>(ByteWidth(call.dtype));
  const bool pairs =
      forward && q.w.kernel % 2 == 0 && Aligned(p.target, 2 * element) == 2 * element;
  p.store = g.fours ? 4 : pairs ? 2 : 1;
  p.staged = StagingOf(call, p.target);
  p.slabs = g.slabs;
  p.splits = g.splits;
  p.stages = Stages(g);
  p.by_column_tile = Divider(g.column_tiles);
  p.tiles = static_cast<int>(g.tiles());
  return p;
}
inline unsigned Blocks(const GemmParams& p, int multiprocessors) {
  return static_cast<unsigned>(p.splits > 1 ? p.tiles * p.splits
                                            : std::min(multiprocessors, p.tiles));
}

}  // namespace transconv::cuda::sm90_gemm

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_GEMM_CALL_CUH_
