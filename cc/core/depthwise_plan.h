// How the depthwise kernels (cuda/kernels/depthwise.cuh) share their work: pure C++, tested without
// a GPU.
//
// One channel of the source a group and NCHW, so that a plane of the target comes from one plane of
// the source, `ratio` planes of the target from the same. A thread has one column of the target
// and a band of its rows below each other. Threads are numbered without gaps, columns first, so
// that rows of any width fill warps and neighbours read and write side by side.
//
// Forward, a target o = s u + m - lead with 0 <= m < s is of residue m and takes tap k = m + s j
// from source u + first - j. A thread's rows are of one residue, or of two neighbouring ones, so
// that it has its weights, at most ceil(kernel / s) each way, in registers, and the sources of a
// row serve the next ones. In the gradient of x, source s i - crop + k gives to target i: each row
// of the source goes into the sums of all targets that it has taps with.
#ifndef TRANSCONV_CORE_DEPTHWISE_PLAN_H_
#define TRANSCONV_CORE_DEPTHWISE_PLAN_H_

#include <algorithm>
#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"

namespace transconv {

constexpr int kDepthwiseThreads = 128;  // of a block

// An instance of a kernel. `rows` are the taps of a target each way down, at most in the forward
// pass, and `columns` as many taps across or more. `step`: forward, the residues of a thread; in
// the gradient of x the stride.
struct DepthwiseShape {
  int rows, step, columns;
};
constexpr DepthwiseShape kDepthwiseForward[] = {{1, 2, 1}, {1, 1, 1}, {2, 2, 2}, {2, 1, 2},
                                                {3, 1, 3}, {4, 1, 4}, {5, 1, 5}};
constexpr DepthwiseShape kDepthwiseGradInput[] = {{1, 1, 16}, {2, 2, 2}, {3, 1, 3}, {3, 2, 3},
                                                  {4, 2, 4},  {5, 1, 5}, {5, 2, 5}, {8, 4, 8}};

// Steps down the rows whose sources a thread asks for at once: with 4 to 32 loads.
constexpr int DepthwiseStepsAtOnce(const DepthwiseShape& shape, bool forward) {
  const int rows = shape.columns > 8 ? 1 : shape.columns > 2 || (forward && shape.step > 1) ? 4 : 8;
  return forward ? rows : (rows + shape.step - 1) / shape.step;
}

struct DepthwiseAxis {
  int source = 0, target = 0, kernel = 0, stride = 1, crop = 0;
  int lead = 0, first = 0;  // forward: the crop is s first + lead, 0 <= lead < s
  int steps = 0;            // targets of a residue, or targets
  Divider by_stride;

  DepthwiseAxis() = default;
  DepthwiseAxis(const Axis& axis, bool forward)
      : source(static_cast<int>(forward ? axis.in : axis.out)),
        target(static_cast<int>(forward ? axis.out : axis.in)),
        kernel(static_cast<int>(axis.kernel)),
        stride(static_cast<int>(axis.stride)),
        crop(static_cast<int>(axis.crop_lo)),
        first(static_cast<int>(FloorDiv(crop, stride))),
        by_stride(stride) {
    lead = crop - stride * first;
    steps = forward ? static_cast<int>(CeilDiv(int64_t{target} + lead, stride)) : target;
  }
};

struct DepthwisePlan {
  const char* reason = nullptr;  // why there is none

  DepthwiseAxis h, w;
  DepthwiseShape shape = {};
  int rows = 1;      // of a thread, of one residue
  int residues = 1;  // of a thread
  int channels = 0;  // planes of the target of one image
  int threads = 0, blocks = 0;
  Divider by_columns, by_residues, by_bands, by_channels, by_ratio;
};

// What one thread has.
struct DepthwiseItem {
  int column, residue, row, channel;  // residue, row: the first, the row as a step of its axis
  int plane, source;                  // of the target and of the source
  TRANSCONV_HOST_DEVICE DepthwiseItem(const DepthwisePlan& p, int index) {
    column = p.by_columns.Split(index);
    residue = p.by_residues.Split(index) * p.residues;
    row = p.by_bands.Split(index) * p.rows;
    plane = index;
    channel = p.by_channels.Split(index);
    source = static_cast<int>(p.by_ratio.Quotient(static_cast<uint32_t>(plane)));
  }
};

// `wanted` threads are as many as hide the latency of memory; fewer have more rows to themselves.
inline DepthwisePlan PlanDepthwise(Pass pass, const Problem& q, int64_t wanted = 132 * 1792) {
  DepthwisePlan p;
  const bool forward = pass == Pass::kForward;
  p.reason = "computes the forward pass and the gradient of x";
  if (pass == Pass::kGradWeight) return p;
  p.reason = "is for images whose channels are outermost";
  if (q.layout != Layout::kNCHW) return p;
  p.reason = "is for one channel of the source a group";
  const int64_t sources = forward ? q.in_per_group() : q.out_per_group();
  const int64_t ratio = forward ? q.out_per_group() : q.in_per_group();
  if (sources != 1 || q.batch < 1) return p;
  p.reason = "is for taps side by side";
  for (const Axis& axis : {q.h, q.w}) {
    if (axis.dilation != 1 && axis.kernel > 1) return p;
  }
  p.reason = "sizes exceed 32 bits";
  constexpr int64_t kLong = int64_t{1} << 24, kMost = int64_t{1} << 30;
  for (const Axis& axis : {q.h, q.w}) {
    for (const int64_t size : {axis.in, axis.out, axis.kernel, axis.stride}) {
      if (size > kLong) return p;
    }
    if (axis.crop_lo > kLong || axis.crop_lo < -kLong) return p;
    if (axis.in > kMost / axis.stride) return p;
  }
  // What a thread steps down at once.
  if (8 * q.h.stride * std::max(q.w.in, q.w.out) > kMost) return p;
  if (q.h.in * q.w.in > kMost || q.h.out * q.w.out > kMost) return p;
  const int64_t channels = forward ? q.out_channels : q.in_channels;
  if (q.batch > kMost || channels > kMost / q.batch) return p;

  p.h = DepthwiseAxis(q.h, forward);
  p.w = DepthwiseAxis(q.w, forward);
  p.channels = static_cast<int>(channels);
  // A thread's weights are as much work as four rows.
  p.reason = "is for images of several rows";
  if (forward && p.h.target < 4) return p;
  p.reason = "no instance has as many taps";
  const int64_t rows = forward ? CeilDiv(q.h.kernel, q.h.stride) : q.h.kernel;
  const int64_t columns = forward ? CeilDiv(q.w.kernel, q.w.stride) : q.w.kernel;
  const auto choose = [&](const auto& shapes) {
    for (const DepthwiseShape& shape : shapes) {
      const bool step =
          forward ? q.h.stride % shape.step == 0 : rows == 1 || shape.step == q.h.stride;
      if (!step || shape.rows != rows || shape.columns < columns) continue;
      p.shape = shape;
      p.reason = nullptr;
      return;
    }
  };
  if (forward) {
    choose(kDepthwiseForward);
  } else {
    choose(kDepthwiseGradInput);
  }
  if (p.reason != nullptr) return p;

  p.residues = forward ? p.shape.step : 1;
  const int64_t residues =
      forward ? CeilDiv(std::min(p.h.stride, p.h.target + p.h.lead), p.residues) : 1;
  const int64_t of_row = q.batch * channels * residues;
  // Two rows at least: a thread's weights are as many loads as a row's sources.
  int64_t most = forward ? 32 : 16;
  const auto threads = [&] { return of_row * CeilDiv(p.h.steps, most) * p.w.target; };
  while (most > 2 && threads() < wanted) most /= 2;
  // Whole turns of loads: the last targets of a band of the gradient of x need a few rows more.
  const int at_once = DepthwiseStepsAtOnce(p.shape, forward);
  const int more = forward ? 0 : (p.shape.rows - 1) / p.shape.step;
  const int64_t even = CeilDiv(p.h.steps, CeilDiv(p.h.steps, most));
  p.rows = static_cast<int>(CeilDiv(even + more, at_once) * at_once) - more;
  const int64_t bands = CeilDiv(p.h.steps, p.rows);
  p.reason = "threads exceed 32 bits";
  if (of_row > kMost / bands || of_row * bands > kMost / p.w.target) return p;
  p.reason = nullptr;
  p.threads = static_cast<int>(of_row * bands * p.w.target);
  p.blocks = static_cast<int>(CeilDiv(p.threads, kDepthwiseThreads));
  p.by_columns = Divider(p.w.target);
  p.by_residues = Divider(residues);
  p.by_bands = Divider(bands);
  p.by_channels = Divider(channels);
  p.by_ratio = Divider(ratio);
  return p;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_DEPTHWISE_PLAN_H_
