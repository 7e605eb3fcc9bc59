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
std::vector<typename E::Type> Draw(size_t size, std::mt19937* random) {
  std::vector<typename E::Type> values(size, E::kPoison);
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
    source = Draw<E>(definition::Size(q, forward), random);
    weight = Draw<E>(definition::WeightSize(q), random);
    if (with_bias) bias = Draw<E>(static_cast<size_t>(q.out_channels), random);
    want.resize(definition::Size(q, !forward), Sum(0));
    if (forward && with_bias) {
      definition::ForAllOfY(q, [&](size_t y, size_t c) { want[y] = E::Load(&bias[c]); });
    }
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
};

}  // namespace transconv::direct_oracle

#endif  // TRANSCONV_TESTS_DIRECT_ORACLE_H_
