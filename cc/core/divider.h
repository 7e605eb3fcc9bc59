// Division by a number known before the kernel starts: a multiplication and a shift.
// T. Granlund and P. Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
#ifndef TRANSCONV_CORE_DIVIDER_H_
#define TRANSCONV_CORE_DIVIDER_H_

#include <cstdint>

#include "core/geometry.h"

namespace transconv {

// Divides integers from 0 to 2^31 - 1 by a divisor from 1 to 2^31 - 1.
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;

  Divider() = default;
  explicit Divider(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < divisor) ++shift;
    multiplier = static_cast<uint32_t>(
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1);
  }
  TRANSCONV_HOST_DEVICE uint32_t Quotient(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(n, multiplier);
#else
    const uint32_t high = static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32);
#endif
    return (high + n) >> shift;
  }
  // Divides n in place and returns the remainder.
  TRANSCONV_HOST_DEVICE int Split(int& n) const {
    const uint32_t q = Quotient(static_cast<uint32_t>(n));
    const int rest = n - static_cast<int>(q * divisor);
    n = static_cast<int>(q);
    return rest;
  }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_DIVIDER_H_
