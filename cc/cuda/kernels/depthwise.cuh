// The depthwise kernels: the forward pass and the gradient of x where a plane of the target comes
// from one plane of the source, on the ordinary float units.
//
// Such a problem is as fast as memory, and only loads that are on their way keep memory busy. So
// there is no shared memory and no barrier: a thread has the weights of its column in registers and
// walks down a band of rows (core/depthwise_plan.h has whose). It asks for all sources of some rows
// at once and only then multiplies. Neighbours read the same lines, which the first-level cache
// holds; what is read twice there is little beside what memory gives.
//
// Sources outside the image, and taps that a column does not have, are not read and count as zeros:
// a source's infinity stays where it is, a weight's makes nan where it meets the padding. Sums have
// a fixed order.
#ifndef TRANSCONV_CUDA_KERNELS_DEPTHWISE_CUH_
#define TRANSCONV_CUDA_KERNELS_DEPTHWISE_CUH_

#include <cstdint>

#include "core/depthwise_plan.h"

namespace transconv::cuda::depthwise {

// The columns of a row of the source that a thread reads: a bit for each.
template <int kColumns, typename E>
__device__ __forceinline__ void LoadColumns(typename E::Sum (&value)[kColumns],
                                            const typename E::Type* from, uint32_t bits) {
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    value[k] = bits >> k & 1 ? E::Load(from + k) : typename E::Sum(0);
  }
}

// E has the element's Type, its Sum, and Load and Store between them. The others are a
// DepthwiseShape's.
template <typename E, int kRows, int kResidues, int kColumns>
__global__ void __launch_bounds__(kDepthwiseThreads)
    DepthwiseForward(const typename E::Type* __restrict__ image,
                     const typename E::Type* __restrict__ weight,
                     const typename E::Type* __restrict__ bias,
                     typename E::Type* __restrict__ target,
                     const __grid_constant__ DepthwisePlan p) {
  using A = typename E::Sum;
  constexpr int kBefore = kRows - 1;  // rows that a target takes besides its own
  constexpr int kAtOnce = DepthwiseStepsAtOnce({kRows, kResidues, kColumns}, true);
  const int index =
      static_cast<int>(blockIdx.x) * kDepthwiseThreads + static_cast<int>(threadIdx.x);
  if (index >= p.threads) return;
  const DepthwiseItem item(p, index);

  int column = item.column + p.w.lead;
  const int residue_w = p.w.by_stride.Split(column);
  column += p.w.first;
  const int end = min(item.row + p.rows, p.h.steps);
  // The rows that its targets read and the image has.
  const unsigned rows = static_cast<unsigned>(max(min(end + p.h.first, p.h.source), 0));
  weight += int64_t{item.channel} * p.h.kernel * p.w.kernel;
  unsigned limit[kColumns];  // rows of a column: none where it is not there
  A factor[kResidues][kRows][kColumns];
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    const int tap_w = residue_w + p.w.stride * k;
    const bool there = item.residue < p.h.kernel && tap_w < p.w.kernel;
    const bool inside = static_cast<unsigned>(column - k) < static_cast<unsigned>(p.w.source);
    limit[k] = there && inside ? rows : 0;
#pragma unroll
    for (int m = 0; m < kResidues; ++m) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int tap_h = item.residue + m + p.h.stride * j;
        factor[m][j][k] =
            there && tap_h < p.h.kernel ? E::Load(weight + (tap_h * p.w.kernel + tap_w)) : A(0);
      }
    }
  }
  const A shift = bias != nullptr ? E::Load(bias + item.channel) : A(0);

  bool all_rows[kResidues];
  int step[kResidues];  // counted from the residue's first in the image
  unsigned steps[kResidues];
#pragma unroll
  for (int m = 0; m < kResidues; ++m) {
    const int residue = item.residue + m;
    all_rows[m] = residue + p.h.stride * kBefore < p.h.kernel;
    const int before = residue < p.h.lead ? 1 : 0;
    const int beyond = (p.h.steps - 1) * p.h.stride + residue - p.h.lead >= p.h.target ? 1 : 0;
    step[m] = item.row - before;
    steps[m] = static_cast<unsigned>(max(min(end, p.h.steps - beyond) - before, 0));
  }
  int row = item.row + p.h.first - kBefore;  // the next to load
  image += int64_t{item.source} * p.h.source * p.w.source + int64_t{row} * p.w.source + column;
  target += int64_t{item.plane} * p.h.target * p.w.target + item.column +
            int64_t{item.row * p.h.stride + item.residue - p.h.lead} * p.w.target;
  const int64_t hop_target = int64_t{p.h.stride} * p.w.target;
  const auto load = [&](A(&value)[kColumns]) {
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      value[k] = static_cast<unsigned>(row) < limit[k] ? E::Load(image - k) : A(0);
    }
    ++row;
    image += p.w.source;
  };
  A value[kBefore + kAtOnce][kColumns], next[kAtOnce][kColumns];
#pragma unroll
  for (int i = 0; i < kBefore + kAtOnce; ++i) load(value[i]);
  for (int at = item.row; at < end; at += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) load(next[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int m = 0; m < kResidues; ++m) {
        A sum = shift;
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          if (j == kBefore && !all_rows[m]) continue;
#pragma unroll
          for (int k = 0; k < kColumns; ++k) sum += factor[m][j][k] * value[kBefore + i - j][k];
        }
        if (static_cast<unsigned>(step[m]) < steps[m]) E::Store(target + m * p.w.target, sum);
        ++step[m];
      }
      target += hop_target;
    }
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
#pragma unroll
      for (int i = 0; i < kBefore; ++i) value[i][k] = value[kAtOnce + i][k];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) value[kBefore + i][k] = next[i][k];
    }
  }
}

// With one row of taps the problem's stride is of no matter, as a row of the source that has a tap
// has one target.
template <typename E, int kRows, int kStride, int kColumns>
__global__ void __launch_bounds__(kDepthwiseThreads)
    DepthwiseGradInput(const typename E::Type* __restrict__ image,
                       const typename E::Type* __restrict__ weight,
                       typename E::Type* __restrict__ target,
                       const __grid_constant__ DepthwisePlan p) {
  using A = typename E::Sum;
  constexpr int kOpen = (kRows + kStride - 1) / kStride;  // targets that a source row has taps with
  constexpr int kSteps = DepthwiseStepsAtOnce({kRows, kStride, kColumns}, false);
  constexpr int kAtOnce = kSteps * kStride;
  // The next rows are on their way while these are multiplied, where registers hold both.
  constexpr bool kAhead = kRows * kColumns <= 32;
  const int index =
      static_cast<int>(blockIdx.x) * kDepthwiseThreads + static_cast<int>(threadIdx.x);
  if (index >= p.threads) return;
  const DepthwiseItem item(p, index);

  const int column = item.column * p.w.stride - p.w.crop;
  weight += int64_t{item.channel} * kRows * p.w.kernel;
  uint32_t columns = 0;
  A factor[kRows][kColumns];
#pragma unroll
  for (int k = 0; k < kColumns; ++k) {
    const bool there = k < p.w.kernel;
    if (there && static_cast<unsigned>(column + k) < static_cast<unsigned>(p.w.source)) {
      columns |= 1u << k;
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      factor[j][k] = there ? E::Load(weight + (j * p.w.kernel + k)) : A(0);
    }
  }

  image += int64_t{item.source} * p.h.source * p.w.source;
  target += int64_t{item.plane} * p.h.target * p.w.target + item.column;
  const int end = min(item.row + p.rows, p.h.steps);
  const int stride = kRows == 1 ? p.h.stride : kStride;
  const int past = (end - 1) * stride - p.h.crop + kRows;
  const unsigned limit = static_cast<unsigned>(max(min(past, p.h.source), 0));
  int row = item.row * stride - p.h.crop;
  image += int64_t{row} * p.w.source + column;
  const auto load = [&](A(&value)[kAtOnce][kColumns]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = i / kStride * stride + i % kStride;
      LoadColumns<kColumns, E>(value[i], image + at * p.w.source,
                               static_cast<unsigned>(row + at) < limit ? columns : 0);
    }
    row += kSteps * stride;
    image += kSteps * stride * p.w.source;
  };
  A sum[kOpen] = {};                // of the targets that are open, the newest first
  int at = item.row - (kOpen - 1);  // the target that the next row of the source completes
  target += int64_t{at} * p.w.target;
  const auto multiply = [&](const A(&value)[kAtOnce][kColumns]) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int r = 0; r < kStride; ++r) {
#pragma unroll
        for (int j = 0; j < kOpen; ++j) {
          const int tap = r + kStride * j;
          if (tap >= kRows) continue;
#pragma unroll
          for (int k = 0; k < kColumns; ++k) sum[j] += factor[tap][k] * value[i * kStride + r][k];
        }
      }
      if (at >= item.row && at < end) E::Store(target, sum[kOpen - 1]);
      ++at;
      target += p.w.target;
#pragma unroll
      for (int j = kOpen - 1; j > 0; --j) sum[j] = sum[j - 1];
      sum[0] = A(0);
    }
  };
  A value[kAtOnce][kColumns];
  if constexpr (kAhead) {
    A next[kAtOnce][kColumns];
    load(value);
    while (true) {
      load(next);
      multiply(value);
      if (at >= end) return;
      load(value);
      multiply(next);
      if (at >= end) return;
    }
  }
  while (at < end) {
    load(value);
    multiply(value);
  }
}

}  // namespace transconv::cuda::depthwise

#endif  // TRANSCONV_CUDA_KERNELS_DEPTHWISE_CUH_
