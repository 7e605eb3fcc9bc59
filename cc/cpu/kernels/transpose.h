// Transposes in registers.
#ifndef TRANSCONV_CPU_KERNELS_TRANSPOSE_H_
#define TRANSCONV_CPU_KERNELS_TRANSPOSE_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/simd.h"

namespace transconv::cpu::TRANSCONV_ISA {

template <typename C, int kDistance>
TRANSCONV_INLINE void Butterfly(Vec<C>* v) {
  if constexpr (kDistance < kLanes<C>) {
    MaskVec<C> low, high;
#pragma GCC unroll 16
    for (int j = 0; j < kLanes<C>; ++j) {
      low[j] = j & kDistance ? kLanes<C> + j - kDistance : j;
      high[j] = j & kDistance ? kLanes<C> + j : j + kDistance;
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<C>; ++i) {
      if (i & kDistance) continue;
      const Vec<C> a = v[i], b = v[i + kDistance];
#if defined(__clang__)
      for (int j = 0; j < kLanes<C>; ++j) {
        v[i][j] = j & kDistance ? b[j - kDistance] : a[j];
        v[i + kDistance][j] = j & kDistance ? b[j] : a[j + kDistance];
      }
#else
      v[i] = __builtin_shuffle(a, b, low);
      v[i + kDistance] = __builtin_shuffle(a, b, high);
#endif
    }
    Butterfly<C, kDistance * 2>(v);
  }
}

// A square of kLanes vectors, in registers.
template <typename C>
TRANSCONV_INLINE void Transpose(Vec<C>* v) {
  Butterfly<C, 1>(v);
}

// out[c][r] = in[r][c]; reads of `in` may run over the end of a row, up to a whole vector.
template <typename C>
void TransposeBlock(const C* in, int64_t in_pitch, int64_t rows, int64_t columns, C* out,
                    int64_t out_pitch) {
  constexpr int64_t kL = kLanes<C>;
  const int64_t whole = rows / kL * kL;
  // Rows of `out` one after the other, which may be a power of two apart.
  for (int64_t c = 0; c < columns; c += kL) {
    for (int64_t r = 0; r < whole; r += kL) {
      Vec<C> v[kL];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kL; ++i) v[i] = Load(in + (r + i) * in_pitch + c);
      Transpose<C>(v);
      const int64_t count = Min(kL, columns - c);
      for (int64_t j = 0; j < count; ++j) Store(out + (c + j) * out_pitch + r, v[j]);
    }
  }
  for (int64_t r = whole; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * out_pitch + r] = in[r * in_pitch + c];
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_TRANSPOSE_H_
