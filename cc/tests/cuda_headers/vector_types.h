// Vectors and bits as CUDA's compiler has them without an include.
#ifndef TRANSCONV_TESTS_CUDA_HEADERS_VECTOR_TYPES_H_
#define TRANSCONV_TESTS_CUDA_HEADERS_VECTOR_TYPES_H_

#include <cstdint>
#include <cstring>

#define __align__(bytes) alignas(bytes)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace transconv::emulation {

template <typename To, typename From>
To BitsOf(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

}  // namespace transconv::emulation

inline uint32_t __float_as_uint(float v) { return transconv::emulation::BitsOf<uint32_t>(v); }
inline int __float_as_int(float v) { return transconv::emulation::BitsOf<int>(v); }
inline float __uint_as_float(uint32_t v) { return transconv::emulation::BitsOf<float>(v); }
inline float __int_as_float(int v) { return transconv::emulation::BitsOf<float>(v); }
// Bytes of both, the first one's first, by four digits of `which`.
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}

#endif  // TRANSCONV_TESTS_CUDA_HEADERS_VECTOR_TYPES_H_
