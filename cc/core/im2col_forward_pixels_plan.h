// How the forward pass of pixels of 16 bits (cuda/kernels/im2col_forward_pixels.cuh) cuts a
// problem: pure C++.
//
// Of the product that a row of taps makes of a row of x, the rows are 16 columns of x, the columns
// the row's taps and output channels, 16 at most, and what is summed are input channels. A walker,
// a warp for each 16 columns, goes down an image's rows; a block has as many walkers as there are
// warps, side by side.
#ifndef TRANSCONV_CORE_IM2COL_FORWARD_PIXELS_PLAN_H_
#define TRANSCONV_CORE_IM2COL_FORWARD_PIXELS_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/geometry.h"
#include "core/im2col_box.h"
#include "core/im2col_pixels.h"

namespace transconv {

struct PixelsForwardPlan {
  const char* reason = nullptr;
  int chunks = 1;                // of 32 input channels
  int warps = 1, walkers = 8;    // of a walker, of a block
  int first_row = 0, turns = 1;  // of x, outside of the image or not, and how many rows to walk
  int first_v = 0, count_v = 1;  // columns of x that outputs count from
  // Floats of shared memory from one (tap, channel)'s products of a row to the next, of all rows of
  // outputs that a turn completes, and of a walker, which has them twice.
  int pitch = 20, row = 320, each = 640;
  int sums_at = 0, shared_bytes = 0;  // bytes; weights come first
};

namespace pixels_forward {

// Kernels and strides that there are instances for, each with up to kMostChunks.
struct Kind {
  int kernel, stride;
};
constexpr Kind kKinds[] = {{4, 2}, {5, 1}, {5, 2}};
constexpr int kMostChunks = 4, kColumns = 16;

inline const char* Declines(const Problem& q) {
  if (const char* reason = pixels::Declines(q)) return reason;
  if (q.in_channels > 32 * kMostChunks) return "takes up to 128 input channels";
  const auto known = [&q](const Kind& kind) {
    return q.h.kernel == kind.kernel && q.h.stride == kind.stride;
  };
  if (std::none_of(std::begin(kKinds), std::end(kKinds), known) || q.w.stride != q.h.stride ||
      q.h.dilation != 1 || q.w.dilation != 1) {
    return "has no instance for the taps";
  }
  if (q.w.kernel * q.out_channels > kColumns) return "has more than 16 products of a row of taps";
  if (q.w.in > 128) return "takes rows of up to 128 columns";
  if (q.h.crop_lo < -64 || q.w.crop_lo < -64 || q.h.crop_lo > 64 || q.w.crop_lo > 64 ||
      q.h.out > 64 * (q.h.in + 8) || q.w.out > 64 * (q.w.in + 8)) {
    return "reaches too far";
  }
  return nullptr;
}

}  // namespace pixels_forward

// For element types of two bytes.
inline PixelsForwardPlan PlanPixelsForward(const Problem& q, int most_shared = 96 << 10) {
  using namespace pixels_forward;
  PixelsForwardPlan p;
  p.reason = Declines(q);
  if (p.reason != nullptr) return p;
  const int stride = static_cast<int>(q.h.stride);
  p.chunks = static_cast<int>(CeilDiv(q.in_channels, 32));
  p.warps = static_cast<int>(CeilDiv(q.w.in, 16));
  p.walkers = kBoxThreads / 32 / p.warps;
  p.first_row = static_cast<int>(std::min<int64_t>(FloorDiv(q.h.crop_lo, stride), 0));
  p.turns = static_cast<int>(FloorDiv(q.h.out - 1 + q.h.crop_lo, stride)) - p.first_row + 1;
  p.first_v = static_cast<int>(FloorDiv(q.w.crop_lo, stride));
  p.count_v = static_cast<int>(FloorDiv(q.w.out - 1 + q.w.crop_lo, stride)) - p.first_v + 1;
  // Lanes that store two rows of products of eight columns meet different banks.
  p.pitch = 16 * p.warps + 4;
  p.row = kColumns * p.pitch;
  p.each = stride * p.row;
  p.sums_at = p.chunks * 2 * static_cast<int>(q.h.kernel) * 512;
  p.shared_bytes = p.sums_at + 2 * p.walkers * p.each * 4;
  if (p.shared_bytes > most_shared) p.reason = "exceeds shared memory";
  return p;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_FORWARD_PIXELS_PLAN_H_
