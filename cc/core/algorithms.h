// The enum of native algorithms, generated from algorithms.def.
#ifndef TRANSCONV_CORE_ALGORITHMS_H_
#define TRANSCONV_CORE_ALGORITHMS_H_

#include <cstdint>

namespace transconv {

enum class Algorithm : int32_t {
#define TRANSCONV_ALGORITHM(name, id, text) name = id,
#include "core/algorithms.def"
#undef TRANSCONV_ALGORITHM
};

struct AlgorithmName {
  Algorithm algorithm;
  const char* text;
};

inline constexpr AlgorithmName kAlgorithms[] = {
#define TRANSCONV_ALGORITHM(name, id, text) {Algorithm::name, text},
#include "core/algorithms.def"
#undef TRANSCONV_ALGORITHM
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_ALGORITHMS_H_
