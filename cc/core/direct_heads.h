// Which problems the kernel for small heads (cuda/kernels/direct_heads.cuh) takes: pure C++.
#ifndef TRANSCONV_CORE_DIRECT_HEADS_H_
#define TRANSCONV_CORE_DIRECT_HEADS_H_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"

namespace transconv::heads {

constexpr int kKernel = 4, kStride = 2, kMostOut = 2;

// Where outputs count from along an axis, and how many pairs of them there are.
inline int64_t FirstPair(const Axis& a) { return FloorDiv(a.crop_lo, kStride); }
inline int64_t Pairs(const Axis& a) {
  return FloorDiv(a.out - 1 + a.crop_lo, kStride) - FirstPair(a) + 1;
}

// Whether there are so many input channels and so few outputs that threads have to share products.
inline bool IsFor(const Problem& q) {
  constexpr int64_t kMostPositions = 4224, kFewestIn = 128, kMostElements = 1 << 26;
  constexpr int64_t kMostWeights = 24 << 10;  // floats of shared memory
  for (const Axis& a : {q.h, q.w}) {
    if (a.kernel != kKernel || a.stride != kStride || a.dilation != 1 || a.in < 1 || a.out < 1 ||
        a.in > kMostPositions || a.out > 4 * kMostPositions || a.crop_lo > kMostPositions ||
        a.crop_lo < -kMostPositions) {
      return false;
    }
  }
  return q.layout == Layout::kNCHW && q.groups == 1 && q.in_channels >= kFewestIn &&
         q.in_channels * q.out_channels * q.taps() <= kMostWeights && q.out_channels >= 1 &&
         q.out_channels <= kMostOut && q.batch >= 1 && q.batch <= kMostPositions &&
         q.batch * Pairs(q.h) * Pairs(q.w) <= kMostPositions &&
         q.in_channels * q.h.in * q.w.in <= kMostElements;
}

}  // namespace transconv::heads

#endif  // TRANSCONV_CORE_DIRECT_HEADS_H_
