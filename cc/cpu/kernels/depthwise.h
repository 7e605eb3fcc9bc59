// Depthwise with channels last: channels are the vector dimension, no packing of tensors at all.
#ifndef TRANSCONV_CPU_KERNELS_DEPTHWISE_H_
#define TRANSCONV_CPU_KERNELS_DEPTHWISE_H_

#include <cstdint>
#include <type_traits>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/planes.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// `count` channels from p; a whole vector of them when kWhole.
template <bool kWhole, typename T>
TRANSCONV_INLINE Vec<Compute<T>> LoadChannels(const T* p, int64_t count) {
  using C = Compute<T>;
  if constexpr (kWhole) return LoadWide(p);
  alignas(64) C some[kLanes<C>] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = Widen(p[i]);
  return Load(some);
}

template <bool kWhole, typename T>
TRANSCONV_INLINE void StoreChannels(T* p, Vec<Compute<T>> v, int64_t count) {
  using C = Compute<T>;
  if constexpr (kWhole) return StoreNarrow(p, v);
  alignas(64) C some[kLanes<C>];
  Store(some, v);
  for (int64_t i = 0; i < count; ++i) Narrow(some[i], &p[i]);
}

// Calls f(whole, first channel, count) for vectors that cover `channels`. The last one overlaps the
// one before, or is the only one and not whole.
template <typename C, typename F>
TRANSCONV_INLINE void ForChannels(int64_t channels, F f) {
  constexpr int64_t kL = kLanes<C>;
  if (channels < kL) {
    f(std::false_type(), 0, channels);
    return;
  }
  for (int64_t c = 0;;) {
    f(std::true_type(), c, kL);
    if (c + kL >= channels) break;
    c = Min(c + kL, channels - kL);
  }
}

// [channel][tap] to [tap][channel], a block of taps per item.
inline constexpr int64_t kDepthwisePackTaps = 16;

template <typename T>
void DepthwisePack(const DepthwiseView& v, int64_t item) {
  const T* weight = static_cast<const T*>(v.weight);
  Compute<T>* packed = static_cast<Compute<T>*>(v.packed);
  const int64_t begin = item * kDepthwisePackTaps, end = Min(begin + kDepthwisePackTaps, v.taps);
  for (int64_t c = 0; c < v.channels; ++c) {
    for (int64_t t = begin; t < end; ++t) {
      packed[t * v.channels + c] = Widen(weight[c * v.taps + t]);
    }
  }
}

// The sums of kElements elements over kTaps taps that follow each other in the source, kStep apart
// from element to element: every source is loaded once for all the elements that it takes part in.
template <int kElements, int kStep, int kTaps, typename T>
TRANSCONV_INLINE void DepthwiseRun(const DepthwiseView& v, const PhaseView& pw, int64_t num_rows,
                                   const T* const* rows, const Compute<T>* const* weights,
                                   int64_t e, int64_t c, Vec<Compute<T>>* sum) {
  using C = Compute<T>;
  const bool falling = kTaps > 1 && pw.offsets[kTaps - 1] < pw.offsets[0];
  const int64_t first = (e * kStep + pw.offsets[falling ? kTaps - 1 : 0]) * v.channels + c;
  int64_t tap[kTaps];
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) {
    tap[t] = pw.kernel[falling ? kTaps - 1 - t : t] * v.channels + c;
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    Vec<C> w[kTaps];
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) w[t] = Load(weights[r] + tap[t]);
    const T* in = rows[r] + first;
#pragma GCC unroll 32
    for (int i = 0; i < (kElements - 1) * kStep + kTaps; ++i) {
      const Vec<C> x = LoadWide(in);
      in += v.channels;
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) {
        const int j = (i - t) / kStep;
        if (i >= t && (i - t) % kStep == 0 && j < kElements) sum[j] += w[t] * x;
      }
    }
  }
}

// The same for 2 * step taps that rise by one: element j reads with tap step + t what element j + 1
// reads with tap t.
template <int kElements, typename T>
TRANSCONV_INLINE void DepthwisePairs(const DepthwiseView& v, const PhaseView& pw, int64_t num_rows,
                                     const T* const* rows, const Compute<T>* const* weights,
                                     int64_t e, int64_t c, Vec<Compute<T>>* sum) {
  using C = Compute<T>;
  const int64_t step = pw.source_step * v.channels;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t t = 0; t < pw.source_step; ++t) {
      const Vec<C> near = Load(weights[r] + pw.kernel[t] * v.channels + c);
      const Vec<C> far = Load(weights[r] + pw.kernel[t + pw.source_step] * v.channels + c);
      const T* in = rows[r] + (e * pw.source_step + pw.offsets[t]) * v.channels + c;
#pragma GCC unroll 16
      for (int j = 0; j <= kElements; ++j) {
        const Vec<C> x = LoadWide(in + j * step);
        if (j < kElements) sum[j] += near * x;
        if (j > 0) sum[j - 1] += far * x;
      }
    }
  }
}

// Whether taps follow each other in the source, one way or the other.
inline bool IsRun(const PhaseView& pw) {
  if (pw.num_taps < 2) return true;
  const int64_t step = pw.offsets[1] - pw.offsets[0];
  if (step != 1 && step != -1) return false;
  for (int64_t t = 2; t < pw.num_taps; ++t) {
    if (pw.offsets[t] - pw.offsets[t - 1] != step) return false;
  }
  return true;
}

// kElements elements of one destination row, one vector of channels, all sources inside.
template <bool kWhole, int kElements, typename T>
TRANSCONV_INLINE void DepthwiseElements(const DepthwiseView& v, const PhaseView& pw,
                                        int64_t num_rows, const T* const* rows,
                                        const Compute<T>* const* weights, Vec<Compute<T>> bias,
                                        int64_t e, int64_t c, int64_t count, T* out) {
  using C = Compute<T>;
  Vec<C> sum[kElements];
#pragma GCC unroll 16
  for (int j = 0; j < kElements; ++j) sum[j] = bias;
  const int64_t step = pw.source_step * v.channels;
  // The usual kernels: 2s of stride s, then 3 of stride 1 and 2.
  const bool run = kWhole && kElements == 8 && IsRun(pw);
  const int64_t shape = run && pw.num_taps < 8 ? pw.source_step * 8 + pw.num_taps : 0;
  if (shape == 8 + 1) {
    DepthwiseRun<kElements, 1, 1>(v, pw, num_rows, rows, weights, e, c, sum);
  } else if (shape == 8 + 2) {
    DepthwiseRun<kElements, 1, 2>(v, pw, num_rows, rows, weights, e, c, sum);
  } else if (shape == 8 + 3) {
    DepthwiseRun<kElements, 1, 3>(v, pw, num_rows, rows, weights, e, c, sum);
  } else if (shape == 16 + 3) {
    DepthwiseRun<kElements, 2, 3>(v, pw, num_rows, rows, weights, e, c, sum);
  } else if (shape == 16 + 4) {
    DepthwiseRun<kElements, 2, 4>(v, pw, num_rows, rows, weights, e, c, sum);
  } else if (run && pw.num_taps == 2 * pw.source_step && pw.offsets[1] > pw.offsets[0]) {
    DepthwisePairs<kElements>(v, pw, num_rows, rows, weights, e, c, sum);
  } else {
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t t = 0; t < pw.num_taps; ++t) {
        const Vec<C> w = LoadChannels<kWhole>(weights[r] + pw.kernel[t] * v.channels + c, count);
        const T* in = rows[r] + (e * pw.source_step + pw.offsets[t]) * v.channels + c;
#pragma GCC unroll 16
        for (int j = 0; j < kElements; ++j)
          sum[j] += w * LoadChannels<kWhole>(in + j * step, count);
      }
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kElements; ++j) {
    StoreChannels<kWhole>(out + (pw.first + (e + j) * pw.step) * v.channels + c, sum[j], count);
  }
}

// The same for one element near a border, where taps may fall outside.
template <bool kWhole, typename T>
TRANSCONV_INLINE void DepthwiseBorder(const DepthwiseView& v, const PhaseView& pw, int64_t num_rows,
                                      const T* const* rows, const Compute<T>* const* weights,
                                      Vec<Compute<T>> bias, int64_t e, int64_t c, int64_t count,
                                      T* out) {
  using C = Compute<T>;
  Vec<C> sum = bias;
  for (int64_t t = 0; t < pw.num_taps; ++t) {
    const int64_t i = e * pw.source_step + pw.offsets[t];
    if (i < 0 || i >= v.w.source_len) continue;
    for (int64_t r = 0; r < num_rows; ++r) {
      sum += LoadChannels<kWhole>(weights[r] + pw.kernel[t] * v.channels + c, count) *
             LoadChannels<kWhole>(rows[r] + i * v.channels + c, count);
    }
  }
  StoreChannels<kWhole>(out + (pw.first + e * pw.step) * v.channels + c, sum, count);
}

// Elements that have all their sources, in every phase.
inline Range CommonSafe(const PhasesView& axis) {
  Range safe = {0, axis.num_phases > 0 ? axis.phases[0].count : 0};
  for (int64_t p = 0; p < axis.num_phases; ++p) {
    safe.begin = Max(safe.begin, axis.phases[p].safe_begin);
    safe.end = Min(safe.end, axis.phases[p].safe_end);
  }
  safe.end = Max(safe.begin, safe.end);
  return safe;
}

// What the next row will read at elements x .. x + number - 1: the processor's own prefetching does
// not see through the steps from pixel to pixel.
template <typename T>
TRANSCONV_INLINE void PrefetchBlock(const DepthwiseView& v, const T* const* next, int64_t num_next,
                                    int64_t x, int64_t number) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  const int64_t step = v.w.phases[0].source_step * v.channels;
  const int64_t stop = Min((x + number) * step, v.w.source_len * v.channels);
  for (int64_t r = 0; r < num_next; ++r) {
    for (int64_t i = x * step; i < stop; i += kLine) __builtin_prefetch(next[r] + i, 0, 2);
  }
}

// Rows of the destination.
template <typename T>
void Depthwise(const DepthwiseView& v, int64_t item) {
  using C = Compute<T>;
  constexpr int kElements = 8;
  constexpr int64_t kMostRows = 64;  // taps along h that are summed in one go
  constexpr int64_t kMostNext = 2;
  const int64_t n = item / v.items_per_image;
  const int64_t row_begin = item % v.items_per_image * v.rows_per_item;
  const int64_t row_end = Min(row_begin + v.rows_per_item, v.h.destination_len);
  const int64_t src_row = v.w.source_len * v.channels;
  const T* src = static_cast<const T*>(v.src) + n * v.h.source_len * src_row;
  const T* bias = static_cast<const T*>(v.bias);
  const Range safe = CommonSafe(v.w);
  for (int64_t y = row_begin; y < row_end; ++y) {
    T* out =
        static_cast<T*>(v.dst) + (n * v.h.destination_len + y) * v.w.destination_len * v.channels;
    const PhaseView& ph = v.h.phases[y % v.h.num_phases];
    const int64_t e = y / v.h.num_phases;
    const T* rows[kMostRows];
    const C* weights[kMostRows];
    int64_t num_rows = 0;
    for (int64_t t = 0; t < ph.num_taps; ++t) {
      const int64_t i = e * ph.source_step + ph.offsets[t];
      if (i < 0 || i >= v.h.source_len) continue;
      rows[num_rows] = src + i * src_row;
      weights[num_rows] = static_cast<const C*>(v.packed) + ph.kernel[t] * v.kernel_w * v.channels;
      ++num_rows;
    }
    // The rows that the next row of the destination reads and this one does not.
    const T* next[kMostNext];
    int64_t num_next = 0;
    if (v.h.num_phases == 1) {
      for (int64_t t = 0; t < ph.num_taps && num_next < kMostNext; ++t) {
        const int64_t i = (e + 1) * ph.source_step + ph.offsets[t];
        if (i > e * ph.source_step + ph.offsets[ph.num_taps - 1] && i < v.h.source_len) {
          next[num_next++] = src + i * src_row;
        }
      }
    }
    // Channels inside: the sources of a few elements are read as one stretch of memory.
    const auto elements = [&](const PhaseView& pw, int64_t x, auto number) {
      constexpr int kNumber = decltype(number)::value;
      ForChannels<C>(v.channels, [&](auto whole, int64_t c, int64_t count) {
        constexpr bool kWhole = decltype(whole)::value;
        const Vec<C> b = bias == nullptr ? Vec<C>{} : LoadChannels<kWhole>(bias + c, count);
        if constexpr (kNumber == 0) {
          DepthwiseBorder<kWhole>(v, pw, num_rows, rows, weights, b, x, c, count, out);
        } else {
          DepthwiseElements<kWhole, kNumber>(v, pw, num_rows, rows, weights, b, x, c, count, out);
        }
      });
    };
    const auto one_by_one = [&](const PhaseView& pw, int64_t x, int64_t stop) {
      for (; x < stop; ++x) {
        if (x >= pw.safe_begin && x < pw.safe_end) {
          elements(pw, x, std::integral_constant<int, 1>());
        } else {
          elements(pw, x, std::integral_constant<int, 0>());
        }
      }
    };
    // Blocks outside, phases inside: what is written lies close together.
    const auto blocks = [&](auto number) {
      constexpr int kNumber = decltype(number)::value;
      for (int64_t x = safe.begin;;) {
        PrefetchBlock(v, next, num_next, x, kNumber);
        for (int64_t p = 0; p < v.w.num_phases; ++p) elements(v.w.phases[p], x, number);
        x += kNumber;
        if (x >= safe.end) break;
        x = Min(x, safe.end - kNumber);  // some elements twice rather than one by one
      }
    };
    const int64_t length = safe.end - safe.begin;
    if (length >= kElements) {
      blocks(std::integral_constant<int, kElements>());
    } else if (length >= kElements / 2) {
      blocks(std::integral_constant<int, kElements / 2>());
    }
    const bool done = length >= kElements / 2;
    for (int64_t p = 0; p < v.w.num_phases; ++p) {
      const PhaseView& pw = v.w.phases[p];
      one_by_one(pw, 0, done ? safe.begin : pw.count);
      if (done) one_by_one(pw, safe.end, pw.count);
    }
  }
}

// The elements of a line that have all their sources, for kTaps taps along w.
template <bool kWhole, int kTaps, typename T>
TRANSCONV_INLINE void SafeLine(const DepthwiseView& v, const PhaseView& pw, int64_t t0, const T* x,
                               const T* y, int64_t count, Vec<Compute<T>>* sums) {
  using C = Compute<T>;
  Vec<C> sum[kTaps];
  const T* yt[kTaps];
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) {
    sum[t] = sums[t];
    yt[t] = y + pw.offsets[t0 + t] * v.channels;
  }
  for (int64_t w = pw.safe_begin; w < pw.safe_end; ++w) {
    const Vec<C> xv = LoadChannels<kWhole>(x + w * v.channels, count);
#pragma GCC unroll 8
    for (int t = 0; t < kTaps; ++t) {
      sum[t] += xv * LoadChannels<kWhole>(yt[t] + w * pw.source_step * v.channels, count);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTaps; ++t) sums[t] = sum[t];
}

// One slice of grad_weight: the view is that of grad_input, source dy, `weight` is x.
template <typename T>
void DepthwiseGrad(const DepthwiseView& v, int64_t slice) {
  using C = Compute<T>;
  constexpr int kMostTaps = 8;  // along w, summed in registers
  const PhaseView& ph = v.h.phases[0];
  const PhaseView& pw = v.w.phases[0];
  const int64_t lines = v.batch * v.h.destination_len;
  const int64_t begin = lines * slice / v.slices, end = lines * (slice + 1) / v.slices;
  C* partial = static_cast<C*>(v.packed) + slice * v.channels * v.taps;
  const T* x = static_cast<const T*>(v.weight);
  const T* dy = static_cast<const T*>(v.src);
  ForChannels<C>(v.channels, [&](auto whole, int64_t c, int64_t count) {
    constexpr bool kWhole = decltype(whole)::value;
    for (int64_t th = 0; th < ph.num_taps; ++th) {
      for (int64_t t0 = 0; t0 < pw.num_taps; t0 += kMostTaps) {
        const int64_t taps = Min(kMostTaps, pw.num_taps - t0);
        Vec<C> sum[kMostTaps] = {};
        for (int64_t line = begin; line < end; ++line) {
          const int64_t n = line / v.h.destination_len, h = line % v.h.destination_len;
          const int64_t y = h * ph.source_step + ph.offsets[th];
          if (y < 0 || y >= v.h.source_len) continue;
          const T* xr = x + line * v.w.destination_len * v.channels + c;
          const T* yr = dy + (n * v.h.source_len + y) * v.w.source_len * v.channels + c;
          const auto border = [&](int64_t w) {
            const Vec<C> xv = LoadChannels<kWhole>(xr + w * v.channels, count);
            for (int64_t t = 0; t < taps; ++t) {
              const int64_t i = w * pw.source_step + pw.offsets[t0 + t];
              if (i < 0 || i >= v.w.source_len) continue;
              sum[t] += xv * LoadChannels<kWhole>(yr + i * v.channels, count);
            }
          };
          int64_t w = 0;
          for (; w < pw.safe_begin; ++w) border(w);
          if (taps == 4) {
            SafeLine<kWhole, 4>(v, pw, t0, xr, yr, count, sum);
            w = pw.safe_end;
          } else if (taps == 3) {
            SafeLine<kWhole, 3>(v, pw, t0, xr, yr, count, sum);
            w = pw.safe_end;
          } else if (taps == kMostTaps) {
            SafeLine<kWhole, kMostTaps>(v, pw, t0, xr, yr, count, sum);
            w = pw.safe_end;
          }
          for (; w < pw.count; ++w) border(w);
        }
        for (int64_t t = 0; t < taps; ++t) {
          const int64_t tap = ph.kernel[th] * v.kernel_w + pw.kernel[t0 + t];
          for (int64_t i = 0; i < count; ++i) partial[(c + i) * v.taps + tap] = sum[t][i];
        }
      }
    }
  });
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_DEPTHWISE_H_
