// Depthwise with rows of one channel: forward and grad_input. Positions are the vector dimension.
//
// The weights of a channel are few, so no weight is packed beforehand and no thread waits for
// another: an item is some rows of some channels. The last few source rows are kept in the L1
// cache, split in planes by the stride so that a tap is nothing but an offset; destination rows are
// written once, straight from registers.
#ifndef TRANSCONV_CPU_KERNELS_DEPTHWISE_ROWS_H_
#define TRANSCONV_CPU_KERNELS_DEPTHWISE_ROWS_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/direct.h"
#include "cpu/kernels/pack_weight.h"
#include "cpu/kernels/planes.h"
#include "cpu/kernels/shuffle.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

inline constexpr int64_t kMostKeptRows = 64;  // and rows of the kernel
inline constexpr int kMostRowsAtOnce = 4;

// The source rows of kRows destination rows that share their taps, tap by tap along h.
template <typename C, int kRows>
struct RowSources {
  int64_t count;
  const C* rows[kMostKeptRows][kRows];
  const C* weights[kMostKeptRows];
};

// Elements begin .. end - 1 of all planes, all inside the row.
template <int kSplit, typename T, typename C>
TRANSCONV_INLINE void SplitWhole(const T* in, int64_t begin, int64_t end, C* out,
                                 int64_t plane_stride) {
  if (kHaveShuffle && end - begin >= kLanes<C>) {
    for (int64_t q = begin;;) {
      Vec<C> v[kSplit];
#pragma GCC unroll 8
      for (int i = 0; i < kSplit; ++i) v[i] = LoadWide(in + q * kSplit + i * kLanes<C>);
      SplitVectorsOf<C, kSplit>(v);
#pragma GCC unroll 8
      for (int i = 0; i < kSplit; ++i) Store(out + i * plane_stride + q, v[i]);
      if (q + kLanes<C> >= end) return;
      q = Min(q + kLanes<C>, end - kLanes<C>);  // some elements twice rather than one by one
    }
  }
  for (int64_t q = begin; q < end; ++q) {
#pragma GCC unroll 8
    for (int i = 0; i < kSplit; ++i) out[i * plane_stride + q] = Widen(in[q * kSplit + i]);
  }
}

// A source row into its place. The zeros around it are there already.
template <typename T, typename C>
void KeepRow(const DepthwiseRowsView& v, const T* in, C* place) {
  C* out = place + v.zeros;
  if (v.split == 1) return WidenRow(in, Min(v.elements, v.source_len), out);
  const int64_t whole = Min(v.elements, v.source_len / v.split);
  WithSplit(v.split, [&](auto split) {
    SplitWhole<decltype(split)::value>(in, 0, whole, out, v.plane_stride);
  });
  if (whole == v.elements) return;
  for (int64_t i = whole * v.split; i < v.source_len; ++i) {
    out[(i - whole * v.split) * v.plane_stride + whole] = Widen(in[i]);
  }
}

// The planes of kPhases sums, joined: the first `count` positions of them, or all if kWhole.
template <int kPhases, bool kWhole, typename T>
TRANSCONV_INLINE void StoreJoined(Vec<Compute<T>>* sums, int64_t count, T* out) {
  using C = Compute<T>;
  constexpr int64_t kL = kLanes<C>;
  constexpr bool kJoin = kHaveShuffle || kPhases == 1;
  if constexpr (kJoin) JoinVectorsOf<C, kPhases>(sums);
  if constexpr (kJoin && kWhole) {
#pragma GCC unroll 8
    for (int p = 0; p < kPhases; ++p) StoreNarrow(out + p * kL, sums[p]);
  } else if constexpr (kJoin && sizeof(T) == sizeof(C)) {
#pragma GCC unroll 8
    for (int p = 0; p < kPhases; ++p) {
      if (count >= (p + 1) * kL) {
        StoreNarrow(out + p * kL, sums[p]);
      } else if (count > p * kL) {
        StorePart(reinterpret_cast<C*>(out + p * kL), sums[p], count - p * kL);
      }
    }
  } else {
    alignas(64) C row[kPhases * kL];
#pragma GCC unroll 8
    for (int p = 0; p < kPhases; ++p) {
      if constexpr (kJoin) {
        Store(row + p * kL, sums[p]);
      } else {
        for (int64_t j = 0; j < kL; ++j) row[j * kPhases + p] = sums[p][j];
      }
    }
    NarrowRow(row, kWhole ? kPhases * kL : count, out);
  }
}

// Positions from kPhases * q on of kRows destination rows: kVectors vectors of each phase, or only
// the first `count` positions if not kWhole.
template <int kPhases, int kRows, int kVectors, bool kWhole, typename T>
TRANSCONV_INLINE void RowBlock(const DepthwiseRowsView& v,
                               const RowSources<Compute<T>, kRows>& sources, Compute<T> bias,
                               int64_t q, int64_t count, T* out, int64_t out_stride) {
  using C = Compute<T>;
  constexpr int64_t kL = kLanes<C>;
  // Sums that do not wait for each other.
  constexpr int kChains = kPhases * kRows * kVectors > 2 ? 1 : 4 / (kPhases * kRows * kVectors);
  Vec<C> sum[kRows][kVectors][kPhases];
#pragma GCC unroll 8
  for (int p = 0; p < kPhases; ++p) {
    const RowTapsView& taps = v.phases[p];
    Vec<C> part[kChains][kRows][kVectors] = {};
    const auto add = [&](int64_t s, int64_t t, int c) __attribute__((always_inline)) {
      const Vec<C> w = Broadcast<C>(sources.weights[s][taps.first + t]);
      const int64_t offset = q + taps.offsets[t];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const C* in = sources.rows[s][r] + offset;
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) part[c][r][i] += w * Load(in + i * kL);
      }
    };
    for (int64_t s = 0; s < sources.count; ++s) {
      int64_t t = 0;
      for (; t + kChains <= taps.num_taps; t += kChains) {
#pragma GCC unroll 4
        for (int c = 0; c < kChains; ++c) add(s, t + c, c);
      }
      for (; t < taps.num_taps; ++t) add(s, t, 0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) {
        Vec<C> all = part[0][r][i];
#pragma GCC unroll 4
        for (int c = 1; c < kChains; ++c) all += part[c][r][i];
        sum[r][i][p] = all + Broadcast(bias);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) {
      StoreJoined<kPhases, kWhole>(sum[r][i], Min(count - i * kPhases * kL, kPhases * kL),
                                   out + r * out_stride + (q + i * kL) * kPhases);
    }
  }
}

// Blocks from element q on; then smaller ones of a single row. What is left is not whole.
template <int kPhases, int kRows, int kVectors, typename T>
TRANSCONV_INLINE void RowBlocks(const DepthwiseRowsView& v,
                                const RowSources<Compute<T>, kRows>& sources, Compute<T> bias,
                                int64_t q, T* out, int64_t out_stride) {
  constexpr int64_t kBlock = kVectors * kLanes<Compute<T>>;
  for (; (q + kBlock) * kPhases <= v.destination_len; q += kBlock) {
    RowBlock<kPhases, kRows, kVectors, true>(v, sources, bias, q, 0, out, out_stride);
  }
  const int64_t rest = v.destination_len - q * kPhases;
  if (rest <= 0) return;
  if constexpr (kRows == 1 && kVectors > 1) {
    RowBlocks<kPhases, 1, kVectors / 2>(v, sources, bias, q, out, out_stride);
  } else {
    RowBlock<kPhases, kRows, kVectors, false>(v, sources, bias, q, rest, out, out_stride);
  }
}

// What all rows of one image have in common.
template <typename T>
struct RowImage {
  const T* src;
  T* dst;
  Compute<T> bias;
  const Compute<T>* weights;
  Compute<T>* kept;  // v.num_rows rows, then one of zeros
  int64_t in_place[kMostKeptRows];
};

// kRows rows of one phase, from row y on.
template <int kPhases, int kRows, int kVectors, typename T>
TRANSCONV_INLINE void PhaseRows(const DepthwiseRowsView& v, int64_t element, int64_t phase,
                                RowImage<T>* image) {
  using C = Compute<T>;
  const PhaseView& taps = v.h.phases[phase];
  RowSources<C, kRows> sources;
  sources.count = 0;
  for (int64_t t = 0; t < taps.num_taps; ++t) {
    bool any = false;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const int64_t i = (element + r) * taps.source_step + taps.offsets[t];
      const bool inside = i >= 0 && i < v.h.source_len;
      const int64_t place = inside ? i & (v.num_rows - 1) : v.num_rows;
      C* row = image->kept + place * v.row_stride;
      if (inside && image->in_place[place] != i) {
        KeepRow(v, image->src + i * v.source_len, row);
        image->in_place[place] = i;
      }
      sources.rows[sources.count][r] = row;
      any |= inside;
    }
    sources.weights[sources.count] = image->weights + taps.kernel[t] * v.kernel_w;
    sources.count += any;
  }
  T* out = image->dst + (taps.first + element * taps.step) * v.destination_len;
  RowBlocks<kPhases, kRows, kVectors>(v, sources, image->bias, 0, out,
                                      taps.step * v.destination_len);
}

// Elements begin .. end - 1 of all phases along h.
template <int kPhases, int kRows, int kVectors, typename T>
void ImageRows(const DepthwiseRowsView& v, int64_t begin, int64_t end, RowImage<T>* image) {
  for (int64_t element = begin; element < end; element += kRows) {
    for (int64_t phase = 0; phase < v.h.num_phases; ++phase) {
      const int64_t stop = Min(end, v.h.phases[phase].count);
      if (element + kRows <= stop) {
        PhaseRows<kPhases, kRows, kVectors>(v, element, phase, image);
      } else {
        for (int64_t e = element; e < stop; ++e) {
          PhaseRows<kPhases, 1, kVectors>(v, e, phase, image);
        }
      }
    }
  }
}

template <typename T>
using ImageRowsFn = void (*)(const DepthwiseRowsView&, int64_t, int64_t, RowImage<T>*);

// Few vectors a row: several rows at a time.
template <typename T, int kPhases>
ImageRowsFn<T> PickImageRows(const DepthwiseRowsView& v) {
  constexpr int kMost = TRANSCONV_ACCUMULATORS / 3;  // vectors of a block, of all phases
  constexpr int kFit = kPhases == 1   ? kMost
                       : kPhases == 2 ? kMost / 2
                       : kPhases <= 4 ? kMost / 4
                                      : 1;
  static_assert(kFit == 1 || kFit == 2 || kFit == 4 || kFit == 8);
  constexpr int64_t kBlock = kPhases * kLanes<Compute<T>>;
  const int64_t vectors = (v.destination_len + kBlock - 1) / kBlock;
  if constexpr (kFit >= 8) {
    if (vectors == 4 && v.rows_at_once >= 2) return &ImageRows<kPhases, 2, 4, T>;
    if (vectors == 3 && v.rows_at_once >= 2) return &ImageRows<kPhases, 2, 3, T>;
  }
  if constexpr (kFit >= 4) {
    constexpr int kRows = kFit / 2;
    if (vectors == 2 && v.rows_at_once >= kRows) return &ImageRows<kPhases, kRows, 2, T>;
  }
  if constexpr (kFit >= 2) {
    constexpr int kRows = kFit < kMostRowsAtOnce ? kFit : kMostRowsAtOnce;
    if (vectors == 1 && v.rows_at_once >= kRows) return &ImageRows<kPhases, kRows, 1, T>;
  }
  return &ImageRows<kPhases, 1, kFit, T>;
}

template <typename T>
int64_t DepthwiseRowsScratch(const DepthwiseRowsView& v) {
  using C = Compute<T>;
  return ((v.num_rows + 1) * v.row_stride + v.taps) * static_cast<int64_t>(sizeof(C));
}

template <typename T>
void DepthwiseRows(const DepthwiseRowsView& v, int64_t item, void* scratch) {
  using C = Compute<T>;
  const int64_t begin = item % v.items_per_image * v.elements_per_item;
  const int64_t end = Min(begin + v.elements_per_item, v.h.phases[0].count);
  const int64_t first = item / v.items_per_image * v.images_per_item;
  ImageRowsFn<T> rows = nullptr;
  if (v.num_phases == 1) {
    rows = PickImageRows<T, 1>(v);
  } else {
    WithSplit(v.num_phases, [&](auto n) { rows = PickImageRows<T, decltype(n)::value>(v); });
  }
  RowImage<T> image;
  image.kept = static_cast<C*>(scratch);
  C* weights = image.kept + (v.num_rows + 1) * v.row_stride;
  image.weights = weights;
  FillRow(image.kept, (v.num_rows + 1) * v.row_stride, C(0));
  for (int64_t i = first; i < Min(first + v.images_per_item, v.images); ++i) {
    const int64_t channel = i % v.channels;
    const T* weight = static_cast<const T*>(v.weight) + channel * v.taps;
    if (!AllFinite(weight, v.taps)) {
      // The zeros that stand for positions outside the tensor would not stay zero in the product.
      const int64_t line = i * v.h.destination_len;
      Direct<T>(v.direct, line + begin * v.h.num_phases,
                line + Min(end * v.h.num_phases, v.h.destination_len));
      continue;
    }
    for (int64_t t = 0; t < v.taps; t += v.kernel_w) {
      for (int64_t j = 0; j < v.num_taps; ++j) weights[t + j] = Widen(weight[t + v.kernel[j]]);
    }
    image.bias = v.bias == nullptr ? C(0) : Widen(static_cast<const T*>(v.bias)[channel]);
    image.src = static_cast<const T*>(v.src) + i * v.h.source_len * v.source_len;
    image.dst = static_cast<T*>(v.dst) + i * v.h.destination_len * v.destination_len;
    for (int64_t k = 0; k < v.num_rows; ++k) image.in_place[k] = -1;
    rows(v, begin, end, &image);
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_DEPTHWISE_ROWS_H_
