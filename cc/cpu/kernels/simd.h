// Vectors by the compiler's own extension, in the namespace of the instruction set being compiled.
#ifndef TRANSCONV_CPU_KERNELS_SIMD_H_
#define TRANSCONV_CPU_KERNELS_SIMD_H_

#include <cstdint>

#define TRANSCONV_INLINE inline __attribute__((always_inline))

namespace transconv::cpu::TRANSCONV_ISA {

// GCC ignores attributes on a dependent typedef, hence one specialisation per type.
template <typename C>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(TRANSCONV_VECTOR_BYTES)));
  typedef int32_t Mask __attribute__((vector_size(TRANSCONV_VECTOR_BYTES)));
  typedef float Unaligned
      __attribute__((vector_size(TRANSCONV_VECTOR_BYTES), aligned(4), may_alias));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(TRANSCONV_VECTOR_BYTES)));
  typedef int64_t Mask __attribute__((vector_size(TRANSCONV_VECTOR_BYTES)));
  typedef double Unaligned
      __attribute__((vector_size(TRANSCONV_VECTOR_BYTES), aligned(8), may_alias));
};

template <typename C>
using Vec = typename VectorOf<C>::Type;
template <typename C>
using MaskVec = typename VectorOf<C>::Mask;

template <typename C>
inline constexpr int64_t kLanes = TRANSCONV_VECTOR_BYTES / static_cast<int64_t>(sizeof(C));

template <typename C>
TRANSCONV_INLINE Vec<C> Load(const C* p) {
  return *reinterpret_cast<const typename VectorOf<C>::Unaligned*>(p);
}

template <typename C>
TRANSCONV_INLINE void Store(C* p, Vec<C> v) {
  *reinterpret_cast<typename VectorOf<C>::Unaligned*>(p) = v;
}

template <typename C>
TRANSCONV_INLINE Vec<C> Broadcast(C value) {
  // Subtracting zero changes no value and is left out. Adding it would turn -0 into 0, so it would
  // be done, in every inner loop.
  return value - Vec<C>{};
}

template <typename C>
TRANSCONV_INLINE C Sum(Vec<C> v) {
  C sum = 0;
  for (int64_t i = 0; i < kLanes<C>; ++i) sum += v[i];
  return sum;
}

TRANSCONV_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
TRANSCONV_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
// Floor division by a positive number.
TRANSCONV_INLINE int64_t Floor(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}
TRANSCONV_INLINE int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_SIMD_H_
