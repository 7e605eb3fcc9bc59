// Which input gradients the kernel for few results (cuda/kernels/direct_results.cuh) takes: pure
// C++.
#ifndef TRANSCONV_CORE_DIRECT_RESULTS_H_
#define TRANSCONV_CORE_DIRECT_RESULTS_H_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"

namespace transconv::results {

constexpr int kMostTaps = 16;

// Whether a thread may have one result, all of whose products it has itself.
inline bool IsFor(const Problem& q) {
  constexpr int64_t kMostResults = 1 << 16, kMostProducts = 64;  // of a result
  constexpr int64_t kFar = 1 << 14, kMostElements = 1 << 30;
  for (const Axis& a : {q.h, q.w}) {
    if (std::max({a.stride, a.dilation * a.kernel, a.in, a.out, a.crop_lo, -a.crop_lo}) > kFar ||
        std::min(a.in, a.out) < 1) {
      return false;
    }
  }
  if (q.layout != Layout::kNCHW || q.batch < 1 || q.batch > kMostResults || q.in_channels < 1 ||
      q.in_channels > kMostResults || q.out_channels < 1 || q.out_channels > kMostResults) {
    return false;
  }
  return q.taps() >= 1 && q.taps() <= kMostTaps && q.out_per_group() * q.taps() <= kMostProducts &&
         q.batch * q.in_channels <= kMostResults / (q.h.in * q.w.in) &&
         q.batch * q.out_channels <= kMostElements / (q.h.out * q.w.out);
}

}  // namespace transconv::results

#endif  // TRANSCONV_CORE_DIRECT_RESULTS_H_
