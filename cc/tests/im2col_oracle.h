// What the tests of the im2col kernels share: element types and drawn data.
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

#include "definition.h"

namespace transconv::im2col_oracle {

using definition::At, definition::Describe, definition::ForAll, definition::ForAllOfY;
using definition::MakeAxis, definition::MakeProblem, definition::Size, definition::WeightSize;

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

// In place of the GPU's 16-bit types: halves, as which all is exact.
struct Narrow {
  using Type = int16_t;
  static float Load(int16_t v) { return static_cast<float>(v) / 2; }
  static float Widen(int16_t v) { return Load(v); }
  static int16_t Round(float v) { return static_cast<int16_t>(v * 2); }
  static constexpr int16_t kPoison = std::numeric_limits<int16_t>::min();
};

// Integers whose products and sums are exact; none is zero, so that an infinity stays one.
template <typename E>
std::vector<typename E::Type> Draw(size_t size, int infinite, std::mt19937* random) {
  std::vector<typename E::Type> values(size);
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

}  // namespace transconv::im2col_oracle

#endif  // TRANSCONV_TESTS_IM2COL_ORACLE_H_
