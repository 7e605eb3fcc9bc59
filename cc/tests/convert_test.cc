// Conversions of float16 without instructions for them, on a thread that takes subnormal floats for
// zeros, as those of XLA do.
#define TRANSCONV_ISA generic
#define TRANSCONV_VECTOR_BYTES 16
#include "cpu/kernels/convert.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace {

using namespace transconv::cpu::generic;

// By the definition of the format.
double Value(uint32_t bits) {
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  const int exponent = static_cast<int>(bits >> 10 & 0x1fu);
  const double fraction = bits & 0x3ffu;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

}  // namespace

int main() {
#ifdef __SSE2__
  constexpr unsigned kSubnormalsAreZeros = 0x8040;  // results and operands
  _mm_setcsr(_mm_getcsr() | kSubnormalsAreZeros);
#endif
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    F16 half;
    half.bits = static_cast<uint16_t>(bits);
    const double want = Value(bits);
    const float got = Widen(half);
    if (std::isnan(want) ? !std::isnan(got) : want != static_cast<double>(got)) {
      std::printf("convert_test: %04x is %g, got %g\n", bits, want, static_cast<double>(got));
      return 1;
    }
    F16 back;
    Narrow(got, &back);
    if (!std::isnan(want) && back.bits != bits) {
      std::printf("convert_test: %04x came back as %04x\n", bits, back.bits);
      return 1;
    }
  }
  std::printf("convert_test: 65536 values\n");
}
