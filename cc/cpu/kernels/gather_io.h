// Forward and grad_input: in and out of the tile.
//
// Packed source tile: [source plane h][source plane w][channel][image][row][pitch], each row long
// enough for every shift, out-of-range elements zero. As all planes have one pitch, a tap is an
// offset, and a vector of positions may run over the end of a row: what it computes there is not
// written out. Then all rows are one run of vectors, unless they have fewer of them one by one.
#ifndef TRANSCONV_CPU_KERNELS_GATHER_IO_H_
#define TRANSCONV_CPU_KERNELS_GATHER_IO_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/planes.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// A block of destination elements: images, group, and elements of every destination plane.
struct Tile {
  int64_t n0, n, g, h0, h, w0, w;
  int64_t acc_rows = 0, acc_row = 0;  // rows of an image and elements of a row of accumulators
};

// Elements of the row buffer that WriteTile needs.
template <typename C>
int64_t RowElements(const AxisView& w) {
  return w.dst.split * (w.tile + kLanes<C>);
}

template <typename T>
void PackRows(const SourceView& v, const Tile& tile, Compute<T>* packed) {
  using C = Compute<T>;
  const AxisView& ah = *v.h;
  const AxisView& aw = *v.w;
  const int64_t area = ah.src.len * aw.src.len;
  const T* src =
      static_cast<const T*>(v.data) + (tile.n0 * v.all_channels + v.first_channel) * area;
  const RowSplitter<C> splitter(aw, tile.w0 + aw.shift_min, v.pitch);
  const int64_t rows = tile.h + ah.span;
  const int64_t plane_w = v.plane_elements, plane_h = aw.num_src_planes * plane_w;
  for (int64_t n = 0; n < tile.n; ++n) {
    for (int64_t k = 0; k < v.channels; ++k) {
      const T* channel = src + (n * v.all_channels + k) * area;
      C* out = packed + k * v.plane_stride + n * v.image_rows * v.pitch;
      // Lines of the tensor in their order, whatever the plane: a processor prefetches those.
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t first = ah.src.split * (tile.h0 + ah.shift_min + r) - ah.src.lo;
        for (int64_t ph = 0; ph < ah.num_src_planes; ++ph) {
          const int64_t line = first + ah.src_planes[ph];
          const T* in = line >= 0 && line < ah.src.len ? channel + line * aw.src.len : nullptr;
          SplitRow(in, splitter, out + ph * plane_h + r * v.pitch, plane_w);
        }
      }
      for (int64_t p = 0; v.overlap > 0 && p < ah.num_src_planes * aw.num_src_planes; ++p) {
        FillRow(out + p * plane_w + rows * v.pitch, v.overlap, C(0));
      }
    }
  }
}

template <typename T>
void PackPixels(const SourceView& v, const Tile& tile, Compute<T>* packed) {
  using C = Compute<T>;
  const AxisView& ah = *v.h;
  const AxisView& aw = *v.w;
  const int64_t rows = tile.h + ah.span, q0 = tile.w0 + aw.shift_min;
  for (int64_t ph = 0; ph < ah.num_src_planes; ++ph) {
    for (int64_t pw = 0; pw < aw.num_src_planes; ++pw) {
      C* plane = packed + (ph * aw.num_src_planes + pw) * v.plane_elements;
      const Range valid = ValidElements(aw.src, aw.src_planes[pw], q0, v.pitch);
      const int64_t first = aw.src.split * (q0 + valid.begin) + aw.src_planes[pw] - aw.src.lo;
      for (int64_t n = 0; n < tile.n; ++n) {
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t line =
              ah.src.split * (tile.h0 + ah.shift_min + r) + ah.src_planes[ph] - ah.src.lo;
          const bool inside = line >= 0 && line < ah.src.len && valid.begin < valid.end;
          const T* in = static_cast<const T*>(v.data) + v.first_channel;
          if (inside) {
            in += (((tile.n0 + n) * ah.src.len + line) * aw.src.len + first) * v.all_channels;
          }
          TransposeIn(in, aw.src.split * v.all_channels, inside ? valid : Range{0, 0}, v.pitch,
                      v.channels, plane + (n * v.image_rows + r) * v.pitch, v.plane_stride);
        }
        for (int64_t k = 0; v.overlap > 0 && k < v.channels; ++k) {
          FillRow(plane + k * v.plane_stride + (n * v.image_rows + rows) * v.pitch, v.overlap,
                  C(0));
        }
      }
    }
  }
}

template <typename T>
void PackSource(const SourceView& v, const Tile& tile, Compute<T>* packed) {
  if (v.channels_last) {
    PackPixels<T>(v, tile, packed);
  } else {
    PackRows<T>(v, tile, packed);
  }
}

// Whether some tap reaches every destination plane; the others hold the bias alone.
inline bool AllPlanes(const AxisView& axis) {
  int64_t planes = 0;
  for (int64_t c = 0; c < axis.num_classes; ++c) planes += axis.classes[c].num_residues;
  return planes == axis.dst.split;
}

template <typename T>
void WriteTile(const GatherView& v, const Tile& tile, const Compute<T>* acc, int64_t m0,
               int64_t chunk, Compute<T>* row) {
  using C = Compute<T>;
  const SideView& dh = v.h.dst;
  const SideView& dw = v.w.dst;
  const bool full_h = AllPlanes(v.h), full_w = AllPlanes(v.w);
  ShuffleTable<C> table;
  if (kHaveShuffle && dw.split <= kMaxShuffleSplit) table.FillJoin(dw.split);
  const Range columns = WrittenRange(dw, tile.w0, tile.w);
  const Range lines = WrittenRange(dh, tile.h0, tile.h);
  for (int64_t n = 0; n < tile.n; ++n) {
    for (int64_t m = 0; m < chunk; ++m) {
      const int64_t channel = tile.g * v.produced + m0 + m;
      T* out = static_cast<T*>(v.dst) +
               ((tile.n0 + n) * v.groups * v.produced + channel) * dh.len * dw.len;
      const C bias = v.bias == nullptr ? C(0) : Widen(static_cast<const T*>(v.bias)[channel]);
      if (!full_h) {
        for (int64_t y = lines.begin; y < lines.end; ++y) {
          Fill(out + y * dw.len + columns.begin, columns.end - columns.begin, bias);
        }
      }
      for (int64_t c = 0; c < v.h.num_classes; ++c) {
        for (int64_t rh = 0; rh < v.h.classes[c].num_residues; ++rh) {
          // Sources of a row of the destination: one per destination plane along w.
          const ClassView* of_w = v.classes + c * v.w.num_classes;
          const C* in = acc + m * v.acc_pitch + n * tile.acc_rows * tile.acc_row;
          const int64_t first = dh.split * tile.h0 + v.h.classes[c].residues[rh] - dh.lo;
          // f(row of the tile, where the row goes), for those that are inside.
          const auto each_row = [&](auto f) {
            for (int64_t r = 0, y = first; r < tile.h; ++r, y += dh.split) {
              if (y >= 0 && y < dh.len) f(r, out + y * dw.len);
            }
          };
          if (dw.split == 1) {
            in += (of_w->first_plane + rh) * chunk * v.acc_pitch;
            if (dh.split == 1 && tile.w == dw.len && tile.acc_row == dw.len) {
              AddRow(in, tile.h * dw.len, bias, out + first * dw.len);
              continue;
            }
            each_row([&](int64_t r, T* to) {
              AddRow(in + r * tile.acc_row, tile.w, bias, to + tile.w0);
            });
            continue;
          }
          const int64_t skip = columns.begin + dw.lo - dw.split * tile.w0;
          const int64_t length = columns.end - columns.begin;
          if constexpr (sizeof(T) == sizeof(C)) {
            if (kHaveShuffle && full_w && dw.split <= kMaxShuffleSplit) {
              const C* planes[kMaxShuffleSplit];
              FindPlanes(of_w, v.w.num_classes, rh, in, chunk * v.acc_pitch, planes);
              WithSplit(dw.split, [&](auto constant) {
                constexpr int kSplit = decltype(constant)::value;
                each_row([&](int64_t r, T* to) {
                  JoinPart<C, kSplit>(table, planes, r * tile.acc_row, tile.w, bias, skip, length,
                                      to + columns.begin);
                });
              });
              continue;
            }
          }
          each_row([&](int64_t r, T* to) {
            JoinRow(of_w, v.w.num_classes, rh, in + r * tile.acc_row, chunk * v.acc_pitch, dw.split,
                    tile.w, bias, full_w, table, row);
            NarrowRow(row + skip, length, to + columns.begin);
          });
        }
      }
    }
  }
}

inline bool HasPlane(const AxisView& axis, int64_t plane) {
  for (int64_t c = 0; c < axis.num_classes; ++c) {
    for (int64_t r = 0; r < axis.classes[c].num_residues; ++r) {
      if (axis.classes[c].residues[r] == plane) return true;
    }
  }
  return false;
}

// `pixels` copies of the bias (null: zeros) of `channels` channels.
template <typename T>
void FillPixels(T* out, int64_t pixels, int64_t stride, const T* bias, int64_t channels) {
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(T));
  if (bias == nullptr && channels == stride) {
    __builtin_memset(out, 0, pixels * bytes);
    return;
  }
  for (int64_t p = 0; p < pixels; ++p) {
    if (bias == nullptr) {
      __builtin_memset(out + p * stride, 0, bytes);
    } else {
      __builtin_memcpy(out + p * stride, bias, bytes);
    }
  }
}

template <typename T>
void WriteTileChannelsLast(const GatherView& v, const Tile& tile, const Compute<T>* acc, int64_t m0,
                           int64_t chunk) {
  using C = Compute<T>;
  const SideView& dh = v.h.dst;
  const SideView& dw = v.w.dst;
  const bool full = AllPlanes(v.h) && AllPlanes(v.w);
  const Range columns = WrittenRange(dw, tile.w0, tile.w);
  const Range lines = WrittenRange(dh, tile.h0, tile.h);
  const int64_t all = v.groups * v.produced;
  const T* bias =
      v.bias == nullptr ? nullptr : static_cast<const T*>(v.bias) + tile.g * v.produced + m0;
  for (int64_t n = 0; n < tile.n; ++n) {
    T* image =
        static_cast<T*>(v.dst) + (tile.n0 + n) * dh.len * dw.len * all + tile.g * v.produced + m0;
    if (!full) {
      for (int64_t y = lines.begin; y < lines.end; ++y) {
        T* line = image + y * dw.len * all;
        if (!HasPlane(v.h, (y + dh.lo) % dh.split)) {
          FillPixels(line + columns.begin * all, columns.end - columns.begin, all, bias, chunk);
          continue;
        }
        for (int64_t plane = 0; plane < dw.split; ++plane) {
          if (HasPlane(v.w, plane)) continue;
          const Range range = ValidElements(dw, plane, tile.w0, tile.w);
          const int64_t x = dw.split * (tile.w0 + range.begin) + plane - dw.lo;
          FillPixels(line + x * all, range.end - range.begin, dw.split * all, bias, chunk);
        }
      }
    }
    for (int64_t c = 0; c < v.num_classes; ++c) {
      const ClassView& cls = v.classes[c];
      for (int64_t plane = 0; plane < cls.num_planes; ++plane) {
        const int64_t residue_h = cls.h->residues[plane / cls.w->num_residues];
        const int64_t residue_w = cls.w->residues[plane % cls.w->num_residues];
        // Elements of this plane that fall into the tensor.
        const Range range = ValidElements(dw, residue_w, tile.w0, tile.w);
        if (range.begin >= range.end) continue;
        for (int64_t r = 0; r < tile.h; ++r) {
          const int64_t y = dh.split * (tile.h0 + r) + residue_h - dh.lo;
          if (y < 0 || y >= dh.len) continue;
          const int64_t x = dw.split * (tile.w0 + range.begin) + residue_w - dw.lo;
          const C* in = acc + (cls.first_plane + plane) * chunk * v.acc_pitch +
                        (n * tile.acc_rows + r) * tile.acc_row + range.begin;
          TransposeOut(in, v.acc_pitch, range.end - range.begin, chunk, bias,
                       image + (y * dw.len + x) * all, dw.split * all);
        }
      }
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_GATHER_IO_H_
