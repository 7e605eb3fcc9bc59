// The definition of a transposed convolution, for the tests: which elements meet; and how tests
// make problems and name them.
#ifndef TRANSCONV_TESTS_DEFINITION_H_
#define TRANSCONV_TESTS_DEFINITION_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

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

// Elements of x, or of y.
inline size_t Size(const Problem& q, bool is_x) {
  return static_cast<size_t>(is_x ? q.batch * q.in_channels * q.h.in * q.w.in
                                  : q.batch * q.out_channels * q.h.out * q.w.out);
}
inline size_t WeightSize(const Problem& q) {
  return static_cast<size_t>(q.in_channels * q.out_per_group() * q.taps());
}

// Calls f(y index, channel) for all of y.
template <typename F>
void ForAllOfY(const Problem& q, const F& f) {
  for (int64_t n = 0; n < q.batch; ++n) {
    for (int64_t c = 0; c < q.out_channels; ++c) {
      for (int64_t y = 0; y < q.h.out; ++y) {
        for (int64_t x = 0; x < q.w.out; ++x) f(At(q, false, n, c, y, x), static_cast<size_t>(c));
      }
    }
  }
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

inline Axis MakeAxis(int64_t in, int64_t kernel, int64_t lo, int64_t hi) {
  return MakeAxis(in, kernel, 1, 1, lo, hi);
}

// With numbers by draw(least, most), up to these.
template <typename Draw>
Axis DrawAxis(const Draw& draw, int in, int kernel, int stride, int dilation) {
  for (;;) {
    Axis a;
    a.in = draw(1, in);
    a.kernel = draw(1, kernel);
    a.stride = draw(1, stride);
    a.dilation = draw(1, dilation);
    a.crop_lo = draw(-3, 5);
    a.out = (a.in - 1) * a.stride + a.dilation * (a.kernel - 1) + 1 - a.crop_lo - draw(-3, 5);
    if (a.out > 0) return a;
  }
}

inline Problem MakeProblem(int64_t batch, int64_t groups, int64_t in, int64_t out, const Axis& h,
                           const Axis& w, Layout layout = Layout::kNCHW) {
  Problem q;
  q.batch = batch;
  q.groups = groups;
  q.in_channels = groups * in;
  q.out_channels = groups * out;
  q.h = h;
  q.w = w;
  q.layout = layout;
  return q;
}

inline void Describe(const Problem& q) {
  const auto number = [](int64_t v) { return static_cast<long long>(v); };
  std::printf("batch %lld channels %lld %lld groups %lld %s\n", number(q.batch),
              number(q.in_channels), number(q.out_channels), number(q.groups),
              q.layout == Layout::kNHWC ? "NHWC" : "NCHW");
  for (const Axis& a : {q.h, q.w}) {
    std::printf("in %lld out %lld kernel %lld stride %lld dilation %lld crop %lld\n", number(a.in),
                number(a.out), number(a.kernel), number(a.stride), number(a.dilation),
                number(a.crop_lo));
  }
}

}  // namespace transconv::definition

#endif  // TRANSCONV_TESTS_DEFINITION_H_
