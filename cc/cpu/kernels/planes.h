// Rows: split into residue planes, joined from them, and transposed between channel orders.
#ifndef TRANSCONV_CPU_KERNELS_PLANES_H_
#define TRANSCONV_CPU_KERNELS_PLANES_H_

#include <cstdint>
#include <type_traits>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/shuffle.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/transpose.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

struct Range {
  int64_t begin, end;
};

// Which of the elements q0 .. q0 + count - 1 of a plane lie inside the tensor, relative to q0.
TRANSCONV_INLINE Range ValidElements(const SideView& side, int64_t plane, int64_t q0,
                                     int64_t count) {
  const int64_t first = -Floor(plane - side.lo, side.split);  // ceil((lo - plane) / split)
  const int64_t last = Floor(side.len - 1 + side.lo - plane, side.split);
  const int64_t begin = Max(first - q0, 0), end = Min(last + 1 - q0, count);
  return begin < end ? Range{begin, end} : Range{0, 0};
}

// Positions of the tensor that elements q0 .. q0 + count - 1 of all planes cover.
TRANSCONV_INLINE Range WrittenRange(const SideView& side, int64_t q0, int64_t count) {
  const int64_t begin = Max(side.split * q0 - side.lo, 0);
  const int64_t end = Min(side.split * (q0 + count) - side.lo, side.len);
  return {begin, Max(begin, end)};
}

template <typename C>
TRANSCONV_INLINE void FillRow(C* out, int64_t n, C value) {
  // Most fills are of a few zeros beside a row: by hand, or the compiler would call memset.
  int64_t i = 0;
  for (; i + kLanes<C> <= n; i += kLanes<C>) Store(out + i, Broadcast(value));
  if (i < n) StorePart(out + i, Broadcast(value), n - i);
}

template <typename T>
TRANSCONV_INLINE void Fill(T* out, int64_t n, Compute<T> value) {
  for (int64_t i = 0; i < n; ++i) Narrow(value, &out[i]);
}

template <typename T, typename C>
TRANSCONV_INLINE void AddRow(const C* in, int64_t n, C bias, T* out) {
  if constexpr (sizeof(T) == sizeof(C)) {
    int64_t i = 0;
    for (; i + kLanes<C> <= n; i += kLanes<C>) Store(out + i, Load(in + i) + Broadcast(bias));
    if (i < n) StorePart(out + i, LoadPart(in + i, n - i) + Broadcast(bias), n - i);
  } else {
    for (int64_t i = 0; i < n; ++i) Narrow(in[i] + bias, &out[i]);
  }
}

// SplitVectors for less than one vector.
template <typename T, typename C, int kSplit>
void SplitShort(const ShuffleTable<C>& table, const T* in, int64_t begin, int64_t end,
                int64_t num_planes, const int64_t* planes, C* out, int64_t plane_stride) {
  const int64_t length = (end - begin - 1) * kSplit + planes[num_planes - 1] + 1;
  Vec<C> v[kSplit];
#pragma GCC unroll 8
  for (int i = 0; i < kSplit; ++i) {
    v[i] = LoadPart(in + i * kLanes<C>, Max(0, Min(kLanes<C>, length - i * kLanes<C>)));
  }
  for (int64_t p = 0; p < num_planes; ++p) {
    StorePart(out + p * plane_stride + begin, ShuffleAll<C, kSplit>(v, table.index[planes[p]]),
              end - begin);
  }
}

// The whole vectors of SplitRow: elements begin .. end - 1, of which all planes are inside.
template <typename T, typename C, int kSplit>
void SplitVectors(const ShuffleTable<C>& table, const T* in, int64_t begin, int64_t end,
                  int64_t num_planes, const int64_t* planes, C* out, int64_t plane_stride) {
  for (int64_t q = begin;;) {
    Vec<C> v[kSplit];
#pragma GCC unroll 8
    for (int i = 0; i < kSplit; ++i) {
      v[i] = LoadWide(in + (q - begin) * kSplit + i * kLanes<C>);
    }
    SplitBlock<C, kSplit>(table, v, num_planes, planes, out + q, plane_stride);
    if (q + kLanes<C> >= end) break;
    q = Min(q + kLanes<C>, end - kLanes<C>);
  }
}

// Calls f with the split as a constant.
template <typename F>
TRANSCONV_INLINE void WithSplit(int64_t split, F f) {
  switch (split) {
    case 1:
      return f(std::integral_constant<int, 1>());
    case 2:
      return f(std::integral_constant<int, 2>());
    case 3:
      return f(std::integral_constant<int, 3>());
    case 4:
      return f(std::integral_constant<int, 4>());
    case 5:
      return f(std::integral_constant<int, 5>());
    case 6:
      return f(std::integral_constant<int, 6>());
    case 7:
      return f(std::integral_constant<int, 7>());
    default:
      return f(std::integral_constant<int, 8>());
  }
}

// What SplitRow needs to know that is the same for all rows of a tile.
template <typename C>
struct RowSplitter {
  static constexpr int64_t kMostKnown = 64;

  RowSplitter(const AxisView& axis, int64_t q0, int64_t pitch)
      : side(axis.src),
        q0(q0),
        pitch(pitch),
        num_planes(axis.num_src_planes),
        planes(axis.src_planes) {
    for (int64_t p = 0; p < Min(num_planes, kMostKnown); ++p) {
      known[p] = ValidElements(side, planes[p], q0, pitch);
    }
    if (kHaveShuffle && side.split > 1 && side.split <= kMaxShuffleSplit) {
      table.FillSplit(side.split);
      // A tensor of a few positions may miss the first or the last plane altogether.
      const Range first = ValidElements(side, 0, q0, pitch);
      const Range last = ValidElements(side, side.split - 1, q0, pitch);
      if (first.begin < first.end && last.begin < last.end) common = {first.begin, last.end};
    }
    if (common.begin == 0 && common.end == pitch) {
      whole = num_planes <= kMostKnown;
      for (int64_t p = 0; p < Min(num_planes, kMostKnown); ++p) {
        whole = whole && known[p].begin == 0 && known[p].end == pitch;
      }
    }
  }

  TRANSCONV_INLINE Range Valid(int64_t p) const {
    return p < kMostKnown ? known[p] : ValidElements(side, planes[p], q0, pitch);
  }

  SideView side;
  int64_t q0, pitch;
  int64_t num_planes;
  const int64_t* planes;
  Range common = {0, 0};  // elements that every plane has, if shuffles can split them
  bool whole = false;     // and there are no others
  Range known[kMostKnown];
  ShuffleTable<C> table;
};

// SplitRow where vectors are loaded with a mask: zeros beside the tensor need no code of their own.
template <typename C, int kSplit>
void SplitMasked(const RowSplitter<C>& s, const C* in, C* out, int64_t plane_stride) {
  constexpr int64_t kL = kLanes<C>;
  // Rows are read in the order of memory, but a processor's own prefetching ends with each page.
  constexpr int64_t kAhead = 4096 / static_cast<int64_t>(sizeof(C));
  const int64_t first = s.q0 * kSplit - s.side.lo;  // position of element 0 of plane 0
  for (int64_t q = 0;;) {
    Vec<C> v[kSplit];
    const int64_t o = first + q * kSplit;
#pragma GCC unroll 8
    for (int i = 0; i < kSplit; ++i) __builtin_prefetch(in + o + i * kL + kAhead);
    if (o >= 0 && o + kSplit * kL <= s.side.len) {
#pragma GCC unroll 8
      for (int i = 0; i < kSplit; ++i) v[i] = Load(in + o + i * kL);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kSplit; ++i) v[i] = LoadInside(in, o + i * kL, s.side.len);
    }
    if (s.pitch < kL) {
      for (int64_t p = 0; p < s.num_planes; ++p) {
        StorePart(out + p * plane_stride, ShuffleAll<C, kSplit>(v, s.table.index[s.planes[p]]),
                  s.pitch);
      }
      return;
    }
    SplitBlock<C, kSplit>(s.table, v, s.num_planes, s.planes, out + q, plane_stride);
    if (q + kL >= s.pitch) return;
    q = Min(q + kL, s.pitch - kL);
  }
}

// One row of the tensor (null: zeros) to elements q0 .. q0 + pitch - 1 of each plane.
template <typename T, typename C>
void SplitRow(const T* in, const RowSplitter<C>& s, C* out, int64_t plane_stride) {
  if (in == nullptr) {
    for (int64_t p = 0; p < s.num_planes; ++p) FillRow(out + p * plane_stride, s.pitch, C(0));
    return;
  }
  const int64_t split = s.side.split;
  if constexpr (kHaveShuffle && kHaveMasks && sizeof(T) == sizeof(C)) {
    if (split <= kMaxShuffleSplit) {
      WithSplit(split, [&](auto constant) {
        SplitMasked<C, decltype(constant)::value>(s, in, out, plane_stride);
      });
      return;
    }
  }
  Range common = s.common;
  if (common.begin < common.end) {
    const T* row = in + (split * (s.q0 + common.begin) - s.side.lo);
    WithSplit(split, [&](auto constant) {
      constexpr int kSplit = decltype(constant)::value;
      if (common.end - common.begin >= kLanes<C>) {
        SplitVectors<T, C, kSplit>(s.table, row, common.begin, common.end, s.num_planes, s.planes,
                                   out, plane_stride);
      } else {
        SplitShort<T, C, kSplit>(s.table, row, common.begin, common.end, s.num_planes, s.planes,
                                 out, plane_stride);
      }
    });
  } else {
    common = {-1, -1};
  }
  if (s.whole) return;
  for (int64_t p = 0; p < s.num_planes; ++p) {
    C* o = out + p * plane_stride;
    const Range range = s.Valid(p);
    FillRow(o, range.begin, C(0));
    FillRow(o + range.end, s.pitch - range.end, C(0));
    if (range.begin == range.end) continue;
    const T* i = in + (split * (s.q0 + range.begin) + s.planes[p] - s.side.lo);
    if (split == 1) {
      WidenRow(i, range.end - range.begin, o + range.begin);
      continue;
    }
    for (int64_t q = range.begin; q < range.end; ++q) {
      if (q == common.begin) q = common.end;
      if (q < range.end) o[q] = Widen(i[(q - range.begin) * split]);
    }
  }
}

// Where the planes along w of a row of the accumulator tile start, all of which have taps.
template <typename C>
TRANSCONV_INLINE void FindPlanes(const ClassView* classes, int64_t num_classes, int64_t residue_h,
                                 const C* in, int64_t plane_stride, const C** planes) {
  for (int64_t c = 0; c < num_classes; ++c) {
    const AxisClassView& w = *classes[c].w;
    const C* first = in + (classes[c].first_plane + residue_h * w.num_residues) * plane_stride;
    for (int64_t rw = 0; rw < w.num_residues; ++rw)
      planes[w.residues[rw]] = first + rw * plane_stride;
  }
}

// Those planes interleaved, plus the bias.
template <typename C>
void JoinRow(const ClassView* classes, int64_t num_classes, int64_t residue_h, const C* in,
             int64_t plane_stride, int64_t split, int64_t count, C bias, bool all_planes,
             const ShuffleTable<C>& table, C* row) {
  if (kHaveShuffle && all_planes && split <= kMaxShuffleSplit) {
    const C* planes[kMaxShuffleSplit];
    FindPlanes(classes, num_classes, residue_h, in, plane_stride, planes);
    WithSplit(split, [&](auto constant) {
      Join<C, decltype(constant)::value>(table, planes, count, bias, row);
    });
    return;
  }
  if (!all_planes) FillRow(row, split * count, bias);
  for (int64_t c = 0; c < num_classes; ++c) {
    const AxisClassView& w = *classes[c].w;
    for (int64_t rw = 0; rw < w.num_residues; ++rw) {
      const C* i = in + (classes[c].first_plane + residue_h * w.num_residues + rw) * plane_stride;
      C* o = row + w.residues[rw];
      for (int64_t q = 0; q < count; ++q) o[q * split] = i[q] + bias;
    }
  }
}

// Channels-last pixels to channel rows: out[k][p], p < pitch, zero outside `range`.
template <typename T, typename C>
void TransposeIn(const T* in, int64_t pixel_stride, Range range, int64_t pitch, int64_t channels,
                 C* out, int64_t channel_stride) {
  constexpr int64_t kL = kLanes<C>;
  for (int64_t k = 0; k < channels; ++k) {
    FillRow(out + k * channel_stride, range.begin, C(0));
    FillRow(out + k * channel_stride + range.end, pitch - range.end, C(0));
  }
  const int64_t pixels = range.end - range.begin;
  C* first = out + range.begin;
  if (channels < kL || pixels <= 0) {
    for (int64_t k = 0; k < channels; ++k) {
      for (int64_t p = 0; p < pixels; ++p) {
        first[k * channel_stride + p] = Widen(in[p * pixel_stride + k]);
      }
    }
    return;
  }
  for (int64_t p = 0; p < pixels; p += kL) {
    const int64_t count = Min(kL, pixels - p);
    for (int64_t k = 0;;) {
      Vec<C> v[kL];
      if (count == kL) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kL; ++i) v[i] = LoadWide(in + (p + i) * pixel_stride + k);
      } else {
        for (int64_t i = 0; i < kL; ++i) {
          v[i] = i < count ? LoadWide(in + (p + i) * pixel_stride + k) : Vec<C>{};
        }
      }
      Transpose<C>(v);
      C* o = first + k * channel_stride + p;
      if (count == kL) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kL; ++i) Store(o + i * channel_stride, v[i]);
      } else {
        for (int64_t i = 0; i < kL; ++i) StorePart(o + i * channel_stride, v[i], count);
      }
      if (k + kL >= channels) break;
      k = Min(k + kL, channels - kL);  // some channels twice rather than one by one
    }
  }
}

// Channel rows to channels-last pixels, plus the bias. Reads of `in` may run over the end of a row.
template <typename T, typename C>
void TransposeOut(const C* in, int64_t channel_stride, int64_t pixels, int64_t channels,
                  const T* bias, T* out, int64_t pixel_stride) {
  constexpr int64_t kL = kLanes<C>;
  if (channels < kL) {
    for (int64_t p = 0; p < pixels; ++p) {
      T* o = out + p * pixel_stride;
      for (int64_t m = 0; m < channels; ++m) {
        const C b = bias == nullptr ? C(0) : Widen(bias[m]);
        Narrow(in[m * channel_stride + p] + b, &o[m]);
      }
    }
    return;
  }
  for (int64_t m = 0;;) {
    const Vec<C> b = bias == nullptr ? Vec<C>{} : LoadWide(bias + m);
    for (int64_t p = 0; p < pixels; p += kL) {
      Vec<C> v[kL];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kL; ++i) v[i] = Load(in + (m + i) * channel_stride + p);
      Transpose<C>(v);
      const int64_t count = Min(kL, pixels - p);
      for (int64_t i = 0; i < count; ++i) StoreNarrow(out + (p + i) * pixel_stride + m, v[i] + b);
    }
    if (m + kL >= channels) break;
    m = Min(m + kL, channels - kL);
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_PLANES_H_
