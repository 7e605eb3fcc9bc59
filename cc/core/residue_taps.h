// Which taps of an axis reach an output residue (core/geometry.h).
#ifndef TRANSCONV_CORE_RESIDUE_TAPS_H_
#define TRANSCONV_CORE_RESIDUE_TAPS_H_

#include <cstdint>

#include "core/geometry.h"

namespace transconv {

TRANSCONV_HOST_DEVICE constexpr int64_t Gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t t = a % b;
    a = b;
    b = t;
  }
  return a;
}

// first, first + step, ... (count of them).
struct ResidueTaps {
  int64_t first, step, count;
};

TRANSCONV_HOST_DEVICE constexpr ResidueTaps TapsOfResidue(const Axis& axis, int64_t residue) {
  const int64_t step = axis.stride / Gcd(axis.stride, axis.dilation);
  for (int64_t k = 0; k < step && k < axis.kernel; ++k) {
    if (axis.TapOf(k).residue == residue) return {k, step, (axis.kernel - k + step - 1) / step};
  }
  return {0, step, 0};
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_RESIDUE_TAPS_H_
