// Interleaving of up to eight planes in registers.
#ifndef TRANSCONV_CPU_KERNELS_SHUFFLE_H_
#define TRANSCONV_CPU_KERNELS_SHUFFLE_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/simd.h"

namespace transconv::cpu::TRANSCONV_ISA {

// GCC has a shuffle of two vectors by a run-time index; without AVX2 it would be emulated.
#if !defined(__clang__) && TRANSCONV_VECTOR_BYTES >= 32
inline constexpr bool kHaveShuffle = true;
template <typename C>
TRANSCONV_INLINE Vec<C> Shuffle(Vec<C> a, Vec<C> b, MaskVec<C> index) {
  return __builtin_shuffle(a, b, index);
}
#else
inline constexpr bool kHaveShuffle = false;
template <typename C>
TRANSCONV_INLINE Vec<C> Shuffle(Vec<C> a, Vec<C>, MaskVec<C>) {
  return a;
}
#endif

inline constexpr int64_t kMaxShuffleSplit = 8;

// Output vector t of `split` takes lanes from all inputs, one more input per step:
// v = shuffle(v, input[i], index[t][i - 1]).
template <typename C>
struct ShuffleTable {
  MaskVec<C> index[kMaxShuffleSplit][kMaxShuffleSplit - 1];

  // `source(t, lane)` gives the input and its lane.
  template <typename F>
  TRANSCONV_INLINE void Fill(int64_t split, F source) {
    for (int64_t t = 0; t < split; ++t) {
      for (int64_t i = 1; i < split; ++i) {
        MaskVec<C> steps;
        for (int64_t lane = 0; lane < kLanes<C>; ++lane) {
          const int64_t input = source(t, lane) / kLanes<C>, from = source(t, lane) % kLanes<C>;
          const int64_t kept = i == 1 && input == 0 ? from : lane;
          steps[lane] = static_cast<decltype(steps[0] + 0)>(input == i ? kLanes<C> + from : kept);
        }
        index[t][i - 1] = steps;
      }
    }
  }

  // Planes into a row.
  TRANSCONV_INLINE void FillJoin(int64_t split) {
    Fill(split, [split](int64_t t, int64_t lane) {
      const int64_t j = t * kLanes<C> + lane;
      return j % split * kLanes<C> + j / split;
    });
  }
  // A row into planes.
  TRANSCONV_INLINE void FillSplit(int64_t split) {
    Fill(split, [split](int64_t t, int64_t lane) { return lane * split + t; });
  }
};

template <typename C, int kSplit>
TRANSCONV_INLINE Vec<C> ShuffleAll(const Vec<C>* in, const MaskVec<C>* index) {
  Vec<C> v = in[0];
#pragma GCC unroll 8
  for (int i = 1; i < kSplit; ++i) v = Shuffle<C>(v, in[i], index[i - 1]);
  return v;
}

// planes[i][q] + bias to out[kSplit*q + i]; runs over the end by less than kLanes elements of each.
template <typename C, int kSplit>
void Join(const ShuffleTable<C>& table, const C* const* planes, int64_t count, C bias, C* out) {
  for (int64_t q = 0; q < count; q += kLanes<C>) {
    Vec<C> in[kSplit];
#pragma GCC unroll 8
    for (int i = 0; i < kSplit; ++i) in[i] = Load(planes[i] + q) + Broadcast(bias);
#pragma GCC unroll 8
    for (int t = 0; t < kSplit; ++t) {
      Store(out + kSplit * q + t * kLanes<C>, ShuffleAll<C, kSplit>(in, table.index[t]));
    }
  }
}

// As Join, but the planes start at element `at`, and elements skip .. skip + length - 1 of the row
// are written, to `out`, and no others.
template <typename C, int kSplit>
void JoinPart(const ShuffleTable<C>& table, const C* const* planes, int64_t at, int64_t count,
              C bias, int64_t skip, int64_t length, C* out) {
  constexpr int64_t kL = kLanes<C>;
  for (int64_t q = 0; q < count; q += kL) {
    Vec<C> in[kSplit];
#pragma GCC unroll 8
    for (int i = 0; i < kSplit; ++i) in[i] = Load(planes[i] + at + q) + Broadcast(bias);
    const int64_t first = kSplit * q - skip;
    const bool whole = first >= 0 && first + kSplit * kL <= length;
#pragma GCC unroll 8
    for (int t = 0; t < kSplit; ++t) {
      const Vec<C> v = ShuffleAll<C, kSplit>(in, table.index[t]);
      const int64_t to = first + t * kL, some = Min(kL, length - to);
      if (whole) {
        Store(out + to, v);
      } else if (to >= 0) {
        if (some > 0) StorePart(out + to, v, some);
      } else {
        for (int64_t i = -to; i < some; ++i) out[to + i] = v[i];
      }
    }
  }
}

// `in` of kSplit vectors to one vector of each listed plane.
template <typename C, int kSplit>
TRANSCONV_INLINE void SplitBlock(const ShuffleTable<C>& table, const Vec<C>* in, int64_t num_planes,
                                 const int64_t* planes, C* out, int64_t plane_stride) {
  if (num_planes == kSplit) {
#pragma GCC unroll 8
    for (int p = 0; p < kSplit; ++p) {
      Store(out + p * plane_stride, ShuffleAll<C, kSplit>(in, table.index[p]));
    }
    return;
  }
  for (int64_t p = 0; p < num_planes; ++p) {
    Store(out + p * plane_stride, ShuffleAll<C, kSplit>(in, table.index[planes[p]]));
  }
}

// Lane i of the result comes from lane source(i) of a and b, laid end to end.
template <typename C, typename F>
TRANSCONV_INLINE Vec<C> ShuffleBy(Vec<C> a, Vec<C> b, F source) {
  MaskVec<C> index;
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<C>; ++i) index[i] = source(i);
  return Shuffle<C>(a, b, index);
}

// kSplit vectors that follow each other in a row to one vector of each plane, and back. The lanes
// are constants here, so that no table is needed; even splits are halved.
template <typename C, int kSplit>
TRANSCONV_INLINE void SplitVectorsOf(Vec<C>* v) {
  constexpr int kL = kLanes<C>;
  if constexpr (kSplit % 2 == 0) {
    Vec<C> even[kSplit / 2], odd[kSplit / 2];
#pragma GCC unroll 4
    for (int i = 0; i < kSplit / 2; ++i) {
      even[i] = ShuffleBy<C>(v[2 * i], v[2 * i + 1], [](int j) { return 2 * j; });
      odd[i] = ShuffleBy<C>(v[2 * i], v[2 * i + 1], [](int j) { return 2 * j + 1; });
    }
    SplitVectorsOf<C, kSplit / 2>(even);
    SplitVectorsOf<C, kSplit / 2>(odd);
#pragma GCC unroll 4
    for (int i = 0; i < kSplit / 2; ++i) {
      v[2 * i] = even[i];
      v[2 * i + 1] = odd[i];
    }
  } else if constexpr (kSplit > 1) {
    Vec<C> out[kSplit];
#pragma GCC unroll 8
    for (int p = 0; p < kSplit; ++p) {
      out[p] = v[0];
#pragma GCC unroll 8
      for (int i = 1; i < kSplit; ++i) {
        out[p] = ShuffleBy<C>(out[p], v[i], [p, i](int j) {
          const int from = j * kSplit + p;
          return from / kL == i ? kL + from % kL : i == 1 && from < kL ? from : j;
        });
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < kSplit; ++p) v[p] = out[p];
  }
}

template <typename C, int kSplit>
TRANSCONV_INLINE void JoinVectorsOf(Vec<C>* v) {
  constexpr int kL = kLanes<C>;
  if constexpr (kSplit % 2 == 0) {
    Vec<C> even[kSplit / 2], odd[kSplit / 2];
#pragma GCC unroll 4
    for (int i = 0; i < kSplit / 2; ++i) {
      even[i] = v[2 * i];
      odd[i] = v[2 * i + 1];
    }
    JoinVectorsOf<C, kSplit / 2>(even);
    JoinVectorsOf<C, kSplit / 2>(odd);
#pragma GCC unroll 4
    for (int i = 0; i < kSplit / 2; ++i) {
      v[2 * i] = ShuffleBy<C>(even[i], odd[i], [](int j) { return j / 2 + j % 2 * kL; });
      v[2 * i + 1] =
          ShuffleBy<C>(even[i], odd[i], [](int j) { return kL / 2 + j / 2 + j % 2 * kL; });
    }
  } else if constexpr (kSplit > 1) {
    Vec<C> out[kSplit];
#pragma GCC unroll 8
    for (int t = 0; t < kSplit; ++t) {
      out[t] = v[0];
#pragma GCC unroll 8
      for (int i = 1; i < kSplit; ++i) {
        out[t] = ShuffleBy<C>(out[t], v[i], [t, i](int j) {
          const int to = t * kL + j, plane = to % kSplit, from = to / kSplit;
          return plane == i ? kL + from : i == 1 && plane == 0 ? from : j;
        });
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kSplit; ++t) v[t] = out[t];
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_SHUFFLE_H_
