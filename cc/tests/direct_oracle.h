// What the tests of the kernels without tensor cores compare with: element types that show a value
// that is stored twice or never, and results by the definition.
#ifndef TRANSCONV_TESTS_DIRECT_ORACLE_H_
#define TRANSCONV_TESTS_DIRECT_ORACLE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "definition.h"

namespace transconv::direct_oracle {

// An output is poisoned until it is stored, once.
inline void Expect(bool poisoned) {
  if (!poisoned) std::printf("direct_oracle: stored twice\n"), std::exit(1);
}

template <typename T>
struct Element {
  using Type = T;
  using Sum = T;
  static constexpr T kPoison = std::numeric_limits<T>::quiet_NaN();
  static T Load(const T* from) { return *from; }
  static void Store(T* to, T value) {
    Expect(std::isnan(*to));
    *to = value;
  }
};

// In place of the GPU's 16-bit types: summed in float, stored in 64ths, as which all is exact.
struct Narrow {
  using Type = int16_t;
  using Sum = float;
  static constexpr Type kPoison = std::numeric_limits<Type>::min();
  static float Load(const Type* from) { return static_cast<float>(*from) / 64; }
  static void Store(Type* to, float value) {
    Expect(*to == kPoison);
    *to = static_cast<Type>(value * 64);
  }
};

// Values whose products and sums are exact in float.
template <typename E>
std::vector<typename E::Type> Draw(int64_t size, std::mt19937* random) {
  std::vector<typename E::Type> values(static_cast<size_t>(size), E::kPoison);
  for (auto& v : values) {
    E::Store(&v, static_cast<typename E::Sum>(static_cast<int>((*random)() % 17) - 8) / 8);
  }
  return values;
}

// A problem's operands, and what a pass makes of them.
template <typename E>
struct Example {
  using Sum = typename E::Sum;
  std::vector<typename E::Type> source, weight, bias;
  std::vector<Sum> want;

  Example(const Problem& q, Pass pass, bool with_bias, std::mt19937* random) {
    const bool forward = pass == Pass::kForward;
    const int64_t x_size = q.batch * q.in_channels * q.h.in * q.w.in;
    const int64_t y_size = q.batch * q.out_channels * q.h.out * q.w.out;
    source = Draw<E>(forward ? x_size : y_size, random);
    weight = Draw<E>(q.in_channels * q.out_per_group() * q.taps(), random);
    if (with_bias) bias = Draw<E>(q.out_channels, random);
    want.resize(static_cast<size_t>(forward ? y_size : x_size), Sum(0));
    if (forward && with_bias) AddBias(q);
    definition::ForAll(q, [&](size_t x, size_t w, size_t y) {
      want[forward ? y : x] += E::Load(&source[forward ? x : y]) * E::Load(&weight[w]);
    });
  }

  const typename E::Type* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }

  // What is wrong with a result, or null.
  const char* Compare(const std::vector<typename E::Type>& got) const {
    static char text[96];
    for (size_t i = 0; i < want.size(); ++i) {
      if (got[i] != E::kPoison && E::Load(&got[i]) == want[i]) continue;
      std::snprintf(text, sizeof(text), "element %d is %g, not %g", static_cast<int>(i),
                    static_cast<double>(E::Load(&got[i])), static_cast<double>(want[i]));
      return text;
    }
    return nullptr;
  }

 private:
  void AddBias(const Problem& q) {
    for (int64_t n = 0; n < q.batch; ++n) {
      for (int64_t c = 0; c < q.out_channels; ++c) {
        for (int64_t y = 0; y < q.h.out; ++y) {
          for (int64_t x = 0; x < q.w.out; ++x) {
            want[definition::At(q, false, n, c, y, x)] = E::Load(&bias[static_cast<size_t>(c)]);
          }
        }
      }
    }
  }
};

}  // namespace transconv::direct_oracle

#endif  // TRANSCONV_TESTS_DIRECT_ORACLE_H_
