// What the tests of the im2col kernels share: element types, drawn data, and the definition.
#ifndef TRANSCONV_TESTS_IM2COL_ORACLE_H_
#define TRANSCONV_TESTS_IM2COL_ORACLE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "core/geometry.h"

namespace transconv::im2col_oracle {

// float32 to TF32 as the instruction rounds: to nearest, ties away from zero.
inline float ToTf32(float v) {
  if (std::isnan(v) || std::isinf(v)) return v;
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof v);
  bits = (bits + 0x1000) & ~uint32_t{0x1fff};
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

struct Single {
  using Type = float;
  static float Load(float v) { return ToTf32(v); }
  static float Widen(float v) { return v; }
  static float Round(float v) { return v; }
  static constexpr float kPoison = -12345;
};

// In place of the GPU's 16-bit types: 64ths, as which all is exact.
struct Narrow {
  using Type = int16_t;
  static float Load(int16_t v) { return static_cast<float>(v) / 64; }
  static float Widen(int16_t v) { return Load(v); }
  static int16_t Round(float v) { return static_cast<int16_t>(v * 64); }
  static constexpr int16_t kPoison = std::numeric_limits<int16_t>::min();
};

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

// Integers whose products and sums are exact; none is zero, so that an infinity stays one.
template <typename E>
std::vector<typename E::Type> Draw(int64_t size, int infinite, std::mt19937* random) {
  std::vector<typename E::Type> values(static_cast<size_t>(size));
  for (auto& v : values) {
    const int drawn = static_cast<int>((*random)() % 8) - 4;
    v = E::Round(static_cast<float>(drawn < 0 ? drawn : drawn + 1));
  }
  if constexpr (std::is_same_v<typename E::Type, float>) {
    for (int i = 0; i < infinite; ++i) {
      values[(*random)() % values.size()] = std::numeric_limits<float>::infinity();
    }
  }
  return values;
}

inline bool Same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

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

}  // namespace transconv::im2col_oracle

#endif  // TRANSCONV_TESTS_IM2COL_ORACLE_H_
