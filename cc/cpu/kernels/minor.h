// Packing with channels innermost.
#ifndef TRANSCONV_CPU_KERNELS_MINOR_H_
#define TRANSCONV_CPU_KERNELS_MINOR_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/planes.h"
#include "cpu/kernels/simd.h"
#include "cpu/kernels/transpose.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// One row of positions of at most one vector of channels, from channel rows to
// out(position)[channel], where position o goes to element (o + lo) / split of plane (o + lo) %
// split. The channels are filled up to `width` with zeros; only if that is a whole vector may
// vectors of positions be transposed. What lies `ahead` elements further is read next.
template <typename T, typename C>
void RowToMinor(const T* in, int64_t channel_stride, int64_t channels, int64_t width,
                const SideView& side, int64_t begin, int64_t end, int64_t q0, int64_t ahead, C* out,
                int64_t plane_stride, int64_t pitch) {
  constexpr int64_t kL = kLanes<C>;
  int64_t q = (begin + side.lo) / side.split, plane = (begin + side.lo) % side.split;
  const auto next = [&] {
    C* to = out + plane * plane_stride + (q - q0) * pitch;
    if (++plane == side.split) {
      plane = 0;
      ++q;
    }
    return to;
  };
  int64_t o = begin;
  if (width == kL && channels >= kL / 2) {
    for (; o < end; o += kL) {
      const int64_t count = Min(kL, end - o);
      // A channel is a stream of its own and mostly of few pages, at whose ends a processor's
      // prefetching starts anew.
      for (int64_t i = 0; i < channels; ++i) {
        // To the L2 cache: channels a power of two apart share a few sets of the L1 cache.
        __builtin_prefetch(in + i * channel_stride + o + ahead, 0, 2);
      }
      Vec<C> v[kL];
      if (channels == kL && count == kL) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < kL; ++i) v[i] = LoadWide(in + i * channel_stride + o);
      } else {
        for (int64_t i = 0; i < kL; ++i) {
          v[i] = i < channels ? LoadPart(in + i * channel_stride + o, count) : Vec<C>{};
        }
      }
      Transpose<C>(v);
      if (count == kL) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < kL; ++j) Store(next(), v[j]);
      } else {
        for (int64_t j = 0; j < count; ++j) Store(next(), v[j]);
      }
    }
  }
  for (; o < end; ++o) {
    C* to = next();
    for (int64_t c = 0; c < channels; ++c) to[c] = Widen(in[c * channel_stride + o]);
    for (int64_t c = channels; c < width; ++c) to[c] = 0;
  }
}

// Packs as [plane h][plane w][image][row][element][channel], `pitch` apart for elements, the
// channels filled up with zeros. `v.pitch` is the number of elements in a row.
template <typename T>
void PackMinor(const SourceView& v, const Tile& tile, int64_t images, Compute<T>* packed,
               int64_t pitch) {
  using C = Compute<T>;
  const AxisView& ah = *v.h;
  const AxisView& aw = *v.w;
  const int64_t rows = tile.h + ah.span, q0 = tile.w0 + aw.shift_min;
  const int64_t row_elements = v.pitch * pitch;
  const int64_t plane_w = images * v.image_rows * row_elements;
  const bool all_planes = aw.num_src_planes == aw.src.split;
  const int64_t elements = Min(v.pitch, tile.w + aw.span);
  for (int64_t ph = 0; ph < ah.num_src_planes; ++ph) {
    for (int64_t n = 0; n < tile.n; ++n) {
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t line =
            ah.src.split * (tile.h0 + ah.shift_min + r) + ah.src_planes[ph] - ah.src.lo;
        const bool inside = line >= 0 && line < ah.src.len;
        C* out = packed + ph * aw.num_src_planes * plane_w + (n * v.image_rows + r) * row_elements;
        for (int64_t pw = 0; pw < aw.num_src_planes; ++pw) {
          C* plane = out + pw * plane_w;
          const Range valid =
              inside ? ValidElements(aw.src, aw.src_planes[pw], q0, elements) : Range{0, 0};
          FillRow(plane, valid.begin * pitch, C(0));
          FillRow(plane + valid.end * pitch, (elements - valid.end) * pitch, C(0));
          if (valid.begin == valid.end || (all_planes && !v.channels_last)) continue;
          const int64_t first = aw.src.split * (q0 + valid.begin) + aw.src_planes[pw] - aw.src.lo;
          if (v.channels_last) {
            const T* in =
                static_cast<const T*>(v.data) + v.first_channel +
                (((tile.n0 + n) * ah.src.len + line) * aw.src.len + first) * v.all_channels;
            for (int64_t q = valid.begin; q < valid.end; ++q) {
              WidenRow(in, v.channels, plane + q * pitch);
              FillRow(plane + q * pitch + v.channels, pitch - v.channels, C(0));
              in += aw.src.split * v.all_channels;
            }
          } else {
            const int64_t area = ah.src.len * aw.src.len;
            const T* in = static_cast<const T*>(v.data) +
                          ((tile.n0 + n) * v.all_channels + v.first_channel) * area +
                          line * aw.src.len + first;
            for (int64_t q = valid.begin; q < valid.end; ++q, in += aw.src.split) {
              C* to = plane + q * pitch;
              for (int64_t c = 0; c < v.channels; ++c) to[c] = Widen(in[c * area]);
              FillRow(to + v.channels, pitch - v.channels, C(0));
            }
          }
        }
      }
    }
  }
  if (v.channels_last || !all_planes) return;
  // A vector of channels at a time and lines in their order: few enough streams for a processor to
  // prefetch them all.
  const int64_t area = ah.src.len * aw.src.len;
  const Range range = WrittenRange(aw.src, q0, elements);
  for (int64_t n = 0; n < tile.n; ++n) {
    for (int64_t c = 0; c < v.channels; c += kLanes<C>) {
      const T* channel = static_cast<const T*>(v.data) +
                         ((tile.n0 + n) * v.all_channels + v.first_channel + c) * area;
      int64_t ahead = kLanes<C> * area;  // to the next channels
      if (c + kLanes<C> >= v.channels) {
        const bool whole = rows * ah.src.split >= ah.src.len;
        ahead = (whole ? v.all_channels * area : tile.h * ah.src.split * aw.src.len) - c * area;
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = ah.src.split * (tile.h0 + ah.shift_min + r) - ah.src.lo;
        for (int64_t ph = 0; ph < ah.num_src_planes; ++ph) {
          const int64_t line = first + ah.src_planes[ph];
          if (line < 0 || line >= ah.src.len) continue;
          C* out =
              packed + ph * aw.num_src_planes * plane_w + (n * v.image_rows + r) * row_elements + c;
          RowToMinor(channel + line * aw.src.len, area, Min(kLanes<C>, v.channels - c),
                     Min(kLanes<C>, pitch - c), aw.src, range.begin, range.end, q0, ahead, out,
                     plane_w, pitch);
        }
      }
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_MINOR_H_
