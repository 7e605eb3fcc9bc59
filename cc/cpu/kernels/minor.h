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

// One row of positions of `channels` channels, from channel rows to out(position)[channel], where
// position o goes to element (o + lo) / split of plane (o + lo) % split.
template <typename T, typename C>
void RowToMinor(const T* in, int64_t channel_stride, int64_t channels, const SideView& side,
                int64_t begin, int64_t end, int64_t q0, C* out, int64_t plane_stride,
                int64_t pitch) {
  constexpr int64_t kL = kLanes<C>;
  const auto address = [&](int64_t o) {
    const int64_t q = (o + side.lo) / side.split, plane = (o + side.lo) % side.split;
    return out + plane * plane_stride + (q - q0) * pitch;
  };
  int64_t o = begin;
  if (channels >= kL / 2 && pitch >= kL) {
    while (o < end) {
      if (end - o < kL) {
        if (end - begin < kL) break;
        o = end - kL;  // some positions twice rather than one by one
      }
      C* to[kL];
      if (side.split == 1) {
        for (int64_t j = 0; j < kL; ++j) to[j] = out + (o + side.lo - q0 + j) * pitch;
      } else {
        int64_t q = (o + side.lo) / side.split, plane = (o + side.lo) % side.split;
        for (int64_t j = 0; j < kL; ++j) {
          to[j] = out + plane * plane_stride + (q - q0) * pitch;
          if (++plane == side.split) {
            plane = 0;
            ++q;
          }
        }
      }
      for (int64_t c = 0; c < channels; c += kL) {
        Vec<C> v[kL];
        if (channels - c >= kL) {
#pragma GCC unroll 16
          for (int64_t i = 0; i < kL; ++i) v[i] = LoadWide(in + (c + i) * channel_stride + o);
        } else {
          for (int64_t i = 0; i < kL; ++i) {
            v[i] = c + i < channels ? LoadWide(in + (c + i) * channel_stride + o) : Vec<C>{};
          }
        }
        Transpose<C>(v);
#pragma GCC unroll 16
        for (int64_t j = 0; j < kL; ++j) Store(to[j] + c, v[j]);
      }
      o += kL;
    }
  }
  for (; o < end; ++o) {
    C* to = address(o);
    for (int64_t c = 0; c < channels; ++c) to[c] = Widen(in[c * channel_stride + o]);
    for (int64_t c = channels; c < pitch; ++c) to[c] = 0;
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
        if (inside && all_planes && !v.channels_last) {
          const int64_t area = ah.src.len * aw.src.len;
          const Range range = WrittenRange(aw.src, q0, elements);
          RowToMinor(static_cast<const T*>(v.data) +
                         ((tile.n0 + n) * v.all_channels + v.first_channel) * area +
                         line * aw.src.len,
                     area, v.channels, aw.src, range.begin, range.end, q0, out, plane_w, pitch);
        }
      }
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_MINOR_H_
