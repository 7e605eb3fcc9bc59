// Storage types and their compute types: 16-bit floats are computed in float and rounded once.
#ifndef TRANSCONV_CPU_KERNELS_CONVERT_H_
#define TRANSCONV_CPU_KERNELS_CONVERT_H_

#include <cstdint>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "cpu/kernels/simd.h"

namespace transconv::cpu::TRANSCONV_ISA {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename T>
struct ComputeOf {
  using Type = float;
};
template <>
struct ComputeOf<double> {
  using Type = double;
};
template <typename T>
using Compute = typename ComputeOf<T>::Type;

TRANSCONV_INLINE uint32_t Bits(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  return u;
}
TRANSCONV_INLINE float FromBits(uint32_t u) {
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

TRANSCONV_INLINE float Widen(float v) { return v; }
TRANSCONV_INLINE double Widen(double v) { return v; }
TRANSCONV_INLINE float Widen(BF16 v) { return FromBits(static_cast<uint32_t>(v.bits) << 16); }
TRANSCONV_INLINE float Widen(F16 v) {
#ifdef __F16C__
  return _cvtsh_ss(v.bits);
#else
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = v.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FromBits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Subnormals by way of an integer: as a float their bits are subnormal, too, and threads of XLA
  // take those for zeros.
  if (magnitude < 0x400u) return FromBits(sign | Bits(static_cast<float>(magnitude) * 0x1p-24f));
  return FromBits(sign | ((magnitude << 13) + 0x38000000u));
#endif
}

TRANSCONV_INLINE void Narrow(float v, float* out) { *out = v; }
TRANSCONV_INLINE void Narrow(double v, double* out) { *out = v; }
TRANSCONV_INLINE void Narrow(float v, BF16* out) {
  const uint32_t u = Bits(v);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  // A NaN must not be rounded up to infinity or round over to zero.
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  out->bits = static_cast<uint16_t>(nan ? ((u >> 16) | 0x40u) : rounded);
}
TRANSCONV_INLINE void Narrow(float v, F16* out) {
#ifdef __F16C__
  out->bits = static_cast<uint16_t>(_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT));
#else
  const uint32_t u = Bits(v);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x47800000u) {  // 65536 and above
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below the least normal half: let the adder round
    half = Bits(FromBits(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  out->bits = static_cast<uint16_t>(sign | half);
#endif
}

// Rows of n elements.
template <typename T, typename C>
TRANSCONV_INLINE void WidenRow(const T* src, int64_t n, C* dst) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (__is_same(T, F16)) {
    for (; i + 8 <= n; i += 8) {
      _mm256_storeu_ps(dst + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
    }
  }
#endif
  for (; i < n; ++i) dst[i] = Widen(src[i]);
}

template <typename T, typename C>
TRANSCONV_INLINE void NarrowRow(const C* src, int64_t n, T* dst) {
  int64_t i = 0;
#ifdef __F16C__
  if constexpr (__is_same(T, F16)) {
    for (; i + 8 <= n; i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    }
  }
#endif
  for (; i < n; ++i) Narrow(src[i], &dst[i]);
}

// One vector.
template <typename T>
TRANSCONV_INLINE Vec<Compute<T>> LoadWide(const T* p) {
  using C = Compute<T>;
  if constexpr (sizeof(T) == sizeof(C)) {
    return Load(reinterpret_cast<const C*>(p));
  } else {
    alignas(64) C wide[kLanes<C>];
    WidenRow(p, kLanes<C>, wide);
    return Load(wide);
  }
}

template <typename T>
TRANSCONV_INLINE void StoreNarrow(T* p, Vec<Compute<T>> v) {
  using C = Compute<T>;
  if constexpr (sizeof(T) == sizeof(C)) {
    Store(reinterpret_cast<C*>(p), v);
  } else {
    alignas(64) C wide[kLanes<C>];
    Store(wide, v);
    NarrowRow(wide, kLanes<C>, p);
  }
}

// The first `count` lanes, the others zero; nothing beyond them is read.
template <typename T>
TRANSCONV_INLINE Vec<Compute<T>> LoadPart(const T* p, int64_t count) {
  using C = Compute<T>;
#ifdef __AVX512F__
  const unsigned mask = (1u << count) - 1;
  if constexpr (__is_same(T, float)) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
  } else if constexpr (__is_same(T, double)) {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p);
  }
#endif
  alignas(64) C some[kLanes<C>] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = Widen(p[i]);
  return Load(some);
}

// Whether a vector's loads leave lanes out at no cost.
#ifdef __AVX512F__
inline constexpr bool kHaveMasks = true;
#else
inline constexpr bool kHaveMasks = false;
#endif

// Elements first .. first + kLanes - 1 of `length`; zero, and not read, where there are none.
template <typename T>
TRANSCONV_INLINE Vec<Compute<T>> LoadInside(const T* p, int64_t first, int64_t length) {
  using C = Compute<T>;
  const int64_t begin = Min(Max(-first, 0), kLanes<C>);
  const int64_t end = Min(Max(length - first, begin), kLanes<C>);
#ifdef __AVX512F__
  const unsigned mask = (1u << end) - (1u << begin);
  if constexpr (__is_same(T, float)) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p + first);
  } else if constexpr (__is_same(T, double)) {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p + first);
  }
#endif
  alignas(64) C some[kLanes<C>] = {};
  for (int64_t i = begin; i < end; ++i) some[i] = Widen(p[first + i]);
  return Load(some);
}

// The first `count` lanes.
template <typename C>
TRANSCONV_INLINE void StorePart(C* p, Vec<C> v, int64_t count) {
#ifdef __AVX512F__
  const unsigned mask = (1u << count) - 1;
  if constexpr (sizeof(C) == 4) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), v);
  } else {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), v);
  }
#else
  alignas(64) C all[kLanes<C>];
  Store(all, v);
  for (int64_t i = 0; i < count; ++i) p[i] = all[i];
#endif
}

// Without a conversion a short row is a few vectors, for which no library need be called.
template <typename C>
TRANSCONV_INLINE void WidenRow(const C* src, int64_t n, C* dst) {
  int64_t i = 0;
  for (; i + kLanes<C> <= n; i += kLanes<C>) Store(dst + i, Load(src + i));
  if (i < n) StorePart(dst + i, LoadPart(src + i, n - i), n - i);
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_CONVERT_H_
