// In place of CUDA's header, which a machine without CUDA lacks: what the kernels use of it and of
// cuda_bf16.h, with the CPU backend's conversions.
#ifndef TRANSCONV_TESTS_CUDA_HEADERS_CUDA_FP16_H_
#define TRANSCONV_TESTS_CUDA_HEADERS_CUDA_FP16_H_

#define TRANSCONV_ISA generic
#define TRANSCONV_VECTOR_BYTES 16
#include "cpu/kernels/convert.h"

namespace transconv::emulation {

template <typename Storage>
struct Number {
  Storage storage;
  Number() = default;
  explicit Number(float v) { cpu::generic::Narrow(v, &storage); }
  explicit operator float() const { return cpu::generic::Widen(storage); }
};
template <typename Storage>
struct alignas(4) NumberPair {
  Number<Storage> x, y;
};

}  // namespace transconv::emulation

using __half = transconv::emulation::Number<transconv::cpu::generic::F16>;
using __half2 = transconv::emulation::NumberPair<transconv::cpu::generic::F16>;
using __nv_bfloat16 = transconv::emulation::Number<transconv::cpu::generic::BF16>;
using __nv_bfloat162 = transconv::emulation::NumberPair<transconv::cpu::generic::BF16>;

inline __half __float2half_rn(float v) { return __half(v); }
inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
inline float __half2float(__half v) { return static_cast<float>(v); }
inline float __low2float(__half2 v) { return static_cast<float>(v.x); }
inline float __high2float(__half2 v) { return static_cast<float>(v.y); }
inline float __bfloat162float(__nv_bfloat16 v) { return static_cast<float>(v); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}

#endif  // TRANSCONV_TESTS_CUDA_HEADERS_CUDA_FP16_H_
