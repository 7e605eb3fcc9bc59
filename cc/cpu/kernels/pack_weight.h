// Forward and grad_input: the weight, packed in the order in which the product reads it.
#ifndef TRANSCONV_CPU_KERNELS_PACK_WEIGHT_H_
#define TRANSCONV_CPU_KERNELS_PACK_WEIGHT_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/transpose.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

inline constexpr int kMaxRows = TRANSCONV_MAX_ROWS;

// Adds to `zero` something that is not zero if one of the values is not finite.
template <typename C>
TRANSCONV_INLINE void CheckFinite(Vec<C> values, Vec<C>* zero) {
  *zero += values * C(0);
}

template <typename C>
TRANSCONV_INLINE bool IsZero(Vec<C> zero) {
  return Sum<C>(zero) == 0;
}

template <typename T>
bool AllFinite(const T* p, int64_t n) {
  using C = Compute<T>;
  constexpr int64_t kL = kLanes<C>;
  Vec<C> zero[4] = {};
  int64_t i = 0;
  for (; i + 4 * kL <= n; i += 4 * kL) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) CheckFinite<C>(LoadWide(p + i + j * kL), &zero[j]);
  }
  C rest = 0;
  for (; i < n; ++i) rest += Widen(p[i]) * C(0);
  return IsZero<C>((zero[0] + zero[1]) + (zero[2] + zero[3])) && rest == 0;
}

// One whole vector from p, of which what lies at or beyond `end` reads as zero.
template <typename T>
TRANSCONV_INLINE Vec<Compute<T>> LoadUpTo(const T* p, const T* end) {
  if (end - p >= kLanes<Compute<T>>) return LoadWide(p);
  return LoadPart(p, Max(end - p, 0));
}

// The rows of one class and chunk: (plane, channel) pairs, the channel fastest, in blocks of
// kMaxRows; the last block is smaller. Weights are packed block by block as [tap][reduced][row],
// once for every `reduced` channels that the packed source tile holds.

// Rows row0 .. of one class, a block at a time. A few reduced channels at a time, so that the lines
// of the weight, each of which holds several taps, are still in the cache when the next tap asks
// for them.
template <typename T>
bool PackRowsOneByOne(const GatherView& v, const ClassView& cls, const T* weight, int64_t chunk,
                      int64_t reduced, int64_t row_begin, Compute<T>* packed) {
  using C = Compute<T>;
  constexpr int64_t kReducedBlock = 64;
  const int64_t rows_total = cls.num_planes * chunk;
  for (int64_t k0 = 0; k0 < reduced; k0 += kReducedBlock) {
    const int64_t k1 = Min(k0 + kReducedBlock, reduced);
    for (int64_t row0 = row_begin; row0 < rows_total; row0 += kMaxRows) {
      const int64_t rows = Min(kMaxRows, rows_total - row0);
      C* out = packed + row0 * cls.num_taps * reduced;
      // Where the taps of each row lie in the weight.
      const T* in[kMaxRows];
      const int64_t* kernel_h[kMaxRows];
      const int64_t* kernel_w[kMaxRows];
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t plane = (row0 + r) / chunk, m = (row0 + r) % chunk;
        in[r] = weight + m * v.weight_produced;
        kernel_h[r] = cls.h->kernel + plane / cls.w->num_residues * cls.h->num_taps;
        kernel_w[r] = cls.w->kernel + plane % cls.w->num_residues * cls.w->num_taps;
      }
      for (int64_t th = 0; th < cls.h->num_taps; ++th) {
        for (int64_t tw = 0; tw < cls.w->num_taps; ++tw) {
          int64_t from[kMaxRows] = {};
          for (int64_t r = 0; r < rows; ++r) {
            from[r] = kernel_h[r][th] * v.kernel_w + kernel_w[r][tw];
          }
          C* o = out + ((th * cls.w->num_taps + tw) * reduced + k0) * rows;
          for (int64_t k = k0; k < k1; ++k, o += rows) {
            for (int64_t r = 0; r < rows; ++r) {
              o[r] = Widen(in[r][from[r] + k * v.weight_reduced]);
            }
          }
        }
      }
    }
  }
  const int64_t rows = rows_total - row_begin;
  return AllFinite(packed + row_begin * cls.num_taps * reduced, rows * cls.num_taps * reduced);
}

// Whether blocks of rows never straddle two planes, so that all their rows have the same taps.
inline bool PlanesAligned(const ClassView& cls, int64_t chunk) {
  return cls.num_planes == 1 || chunk % kMaxRows == 0;
}

// Channels m .. m + kMaxRows - 1 of all classes whose planes are aligned: reads the taps of a
// channel as vectors, and transposes as many of them as make whole vectors of rows.
template <typename T>
bool PackBlock(const GatherView& v, const T* weight, const T* end, int64_t chunk, int64_t reduced,
               int64_t m, Compute<T>* packed) {
  using C = Compute<T>;
  constexpr int64_t kL = kLanes<C>;
  if constexpr (kL % kMaxRows == 0) {
    constexpr int64_t kReduced = kL / kMaxRows;
    Vec<C> zero = {};
    for (int64_t t0 = 0; t0 < v.taps; t0 += kL) {
      const int64_t taps = Min(kL, v.taps - t0);
      C* to[kL] = {};  // where the taps of this vector go; null: elsewhere
      for (int64_t c = 0; c < v.num_classes; ++c) {
        const ClassView& cls = v.classes[c];
        if (!PlanesAligned(cls, chunk)) continue;
        for (int64_t plane = 0; plane < cls.num_planes; ++plane) {
          const int64_t* kh = cls.h->kernel + plane / cls.w->num_residues * cls.h->num_taps;
          const int64_t* kw = cls.w->kernel + plane % cls.w->num_residues * cls.w->num_taps;
          C* block = packed + cls.first_weight * chunk * reduced +
                     (plane * chunk + m) * cls.num_taps * reduced;
          for (int64_t t = 0; t < cls.num_taps; ++t) {
            const int64_t tap = kh[t / cls.w->num_taps] * v.kernel_w + kw[t % cls.w->num_taps] - t0;
            if (tap >= 0 && tap < taps) to[tap] = block + t * reduced * kMaxRows;
          }
        }
      }
      const T* in = weight + m * v.weight_produced + t0;
      for (int64_t k = 0; k < reduced; k += kReduced) {
        const int64_t count = Min(kReduced, reduced - k);
        Vec<C> rows[kL];
#pragma GCC unroll 16
        for (int64_t i = 0; i < kL; ++i) {
          const int64_t r = i % kMaxRows, extra = i / kMaxRows;
          rows[i] = extra < count
                        ? LoadUpTo(in + r * v.weight_produced + (k + extra) * v.weight_reduced, end)
                        : Vec<C>{};
        }
#pragma GCC unroll 16
        for (int64_t i = 0; i < kL; ++i) CheckFinite<C>(rows[i], &zero);
        Transpose<C>(rows);
        for (int64_t t = 0; t < taps; ++t) {
          if (to[t] == nullptr) continue;
          if (count == kReduced) {
            Store(to[t] + k * kMaxRows, rows[t]);
          } else {
            StorePart(to[t] + k * kMaxRows, rows[t], count * kMaxRows);
          }
        }
      }
    }
    return IsZero<C>(zero);
  }
  return true;
}

// Returns whether all weights are finite. Of weights that belong to others it may look at a few,
// so that a false is certain to come from some weight of the tensor, but not from this item's.
template <typename T>
bool PackWeight(const GatherView& v, int64_t item) {
  using C = Compute<T>;
  const int64_t k0 = item % v.num_depths * v.depth, reduced = Min(v.depth, v.reduced - k0);
  item /= v.num_depths;
  const int64_t chunk_index = item % v.num_chunks, g = item / v.num_chunks;
  const int64_t m0 = chunk_index * v.chunk, chunk = Min(v.chunk, v.produced - m0);
  const T* weight = static_cast<const T*>(v.weight) + g * v.weight_group + m0 * v.weight_produced +
                    k0 * v.weight_reduced;
  const T* end = static_cast<const T*>(v.weight) + v.groups * v.weight_group;
  C* packed =
      static_cast<C*>(v.packed_weight) + ((g * v.produced + m0) * v.reduced + chunk * k0) * v.taps;
  bool finite = true;
  // With few taps most of a vector would be someone else's.
  const bool by_blocks = kLanes<C> % kMaxRows == 0 && 4 * v.taps >= kLanes<C>;
  const int64_t whole = by_blocks ? chunk / kMaxRows * kMaxRows : 0;
  for (int64_t m = 0; m < whole; m += kMaxRows) {
    finite &= PackBlock<T>(v, weight, end, chunk, reduced, m, packed);
  }
  for (int64_t c = 0; c < v.num_classes; ++c) {
    const ClassView& cls = v.classes[c];
    const int64_t done = PlanesAligned(cls, chunk) ? whole * cls.num_planes : 0;
    finite &= PackRowsOneByOne<T>(v, cls, weight, chunk, reduced, done,
                                  packed + cls.first_weight * chunk * reduced);
  }
  return finite;
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_PACK_WEIGHT_H_
