// Forward and grad_input from the definition, for weights that are not finite: a tap that meets no
// position takes no part, where the other kernels multiply it by zero. Slow.
#ifndef TRANSCONV_CPU_KERNELS_DIRECT_H_
#define TRANSCONV_CPU_KERNELS_DIRECT_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// The source position that tap k joins with a destination position, or -1.
inline int64_t DirectSource(const DirectAxisView& a, bool forward, int64_t position, int64_t k) {
  if (!forward) {
    const int64_t o = a.stride * position + a.dilation * k - a.crop_lo;
    return o < a.y ? Max(o, -1) : -1;
  }
  const int64_t offset = position + a.crop_lo - a.dilation * k;
  if (offset < 0 || offset % a.stride != 0) return -1;
  return offset / a.stride < a.x ? offset / a.stride : -1;
}

// Rows begin .. end - 1 of the destination, counted as (image, channel, row).
template <typename T>
void Direct(const DirectView& v, int64_t begin, int64_t end) {
  using C = Compute<T>;
  const int64_t rows = v.forward ? v.h.y : v.h.x, columns = v.forward ? v.w.y : v.w.x;
  const int64_t src_h = v.forward ? v.h.x : v.h.y, src_w = v.forward ? v.w.x : v.w.y;
  const int64_t src_channels = v.groups * v.reduced, dst_channels = v.groups * v.produced;
  const int64_t src_channel = v.channels_last ? 1 : src_h * src_w;
  const int64_t src_pixel = v.channels_last ? src_channels : 1;
  const int64_t dst_channel = v.channels_last ? 1 : rows * columns;
  const int64_t dst_pixel = v.channels_last ? dst_channels : 1;
  for (int64_t line = begin; line < end; ++line) {
    const int64_t row = line % rows, channel = line / rows % dst_channels;
    const int64_t n = line / rows / dst_channels;
    const int64_t g = channel / v.produced;
    const T* weight = static_cast<const T*>(v.weight) + g * v.weight_group +
                      channel % v.produced * v.weight_produced;
    const T* src = static_cast<const T*>(v.src) + n * src_channels * src_h * src_w +
                   g * v.reduced * src_channel;
    T* dst = static_cast<T*>(v.dst) + n * dst_channels * rows * columns + channel * dst_channel +
             row * columns * dst_pixel;
    const C bias = v.bias == nullptr ? C(0) : Widen(static_cast<const T*>(v.bias)[channel]);
    for (int64_t column = 0; column < columns; ++column) {
      C sum = 0;
      for (int64_t kh = 0; kh < v.h.kernel; ++kh) {
        const int64_t h = DirectSource(v.h, v.forward, row, kh);
        if (h < 0) continue;
        for (int64_t kw = 0; kw < v.w.kernel; ++kw) {
          const int64_t w = DirectSource(v.w, v.forward, column, kw);
          if (w < 0) continue;
          const T* in = src + (h * src_w + w) * src_pixel;
          const T* of_tap = weight + kh * v.w.kernel + kw;
          for (int64_t k = 0; k < v.reduced; ++k) {
            sum += Widen(in[k * src_channel]) * Widen(of_tap[k * v.weight_reduced]);
          }
        }
      }
      Narrow(sum + bias, dst + column * dst_pixel);
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_DIRECT_H_
