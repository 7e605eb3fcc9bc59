// The definition of a transposed convolution, for the tests of kernels: which elements meet.
#ifndef TRANSCONV_TESTS_DEFINITION_H_
#define TRANSCONV_TESTS_DEFINITION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/geometry.h"

namespace transconv::definition {

// Of x, or of y.
inline size_t At(const Problem& q, bool is_x, int64_t n, int64_t c, int64_t y, int64_t x) {
  const Axis &h = q.h, &w = q.w;
  const int64_t channels = is_x ? q.in_channels : q.out_channels;
  const int64_t height = is_x ? h.in : h.out, width = is_x ? w.in : w.out;
  return static_cast<size_t>(q.layout == Layout::kNCHW
                                 ? ((n * channels + c) * height + y) * width + x
                                 : ((n * height + y) * width + x) * channels + c);
}

// Calls f(x index, w index, y index) for all that meet.
template <typename F>
void ForAll(const Problem& q, const F& f) {
  for (int64_t n = 0; n < q.batch; ++n) {
    for (int64_t c = 0; c < q.in_channels; ++c) {
      for (int64_t m = 0; m < q.out_per_group(); ++m) {
        const int64_t out = c / q.in_per_group() * q.out_per_group() + m;
        for (int64_t k = 0; k < q.h.kernel; ++k) {
          for (int64_t l = 0; l < q.w.kernel; ++l) {
            const int64_t tap = ((c * q.out_per_group() + m) * q.h.kernel + k) * q.w.kernel + l;
            for (int64_t i = 0; i < q.h.in; ++i) {
              const int64_t y = q.h.stride * i + q.h.dilation * k - q.h.crop_lo;
              if (y < 0 || y >= q.h.out) continue;
              for (int64_t j = 0; j < q.w.in; ++j) {
                const int64_t x = q.w.stride * j + q.w.dilation * l - q.w.crop_lo;
                if (x < 0 || x >= q.w.out) continue;
                f(At(q, true, n, c, i, j), static_cast<size_t>(tap), At(q, false, n, out, y, x));
              }
            }
          }
        }
      }
    }
  }
}

inline Axis MakeAxis(int64_t in, int64_t kernel, int64_t stride, int64_t dilation, int64_t lo,
                     int64_t hi) {
  const int64_t out = stride * (in - 1) + dilation * (kernel - 1) + 1 - lo - hi;
  return {in, std::max<int64_t>(out, 1), kernel, stride, dilation, lo};
}

inline Problem MakeProblem(int64_t batch, int64_t groups, int64_t in, int64_t out, const Axis& h,
                           const Axis& w) {
  Problem q;
  q.batch = batch;
  q.groups = groups;
  q.in_channels = groups * in;
  q.out_channels = groups * out;
  q.h = h;
  q.w = w;
  return q;
}

}  // namespace transconv::definition

#endif  // TRANSCONV_TESTS_DEFINITION_H_
