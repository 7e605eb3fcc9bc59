// grad_weight: one item of work, and what follows when all are done.
#ifndef TRANSCONV_CPU_KERNELS_GRAD_ITEM_H_
#define TRANSCONV_CPU_KERNELS_GRAD_ITEM_H_

#include <cstdint>

#include "cpu/kernels/convert.h"
#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// A block of channels of one group, over the units of one slice.
struct GradItem {
  int64_t slice, g;
  int64_t i0, in;
  int64_t o0, out;
};

inline GradItem DecodeGradItem(const WeightGradView& v, int64_t index) {
  GradItem item;
  item.o0 = index % v.num_chunks_out * v.chunk_out;
  index /= v.num_chunks_out;
  item.i0 = index % v.num_chunks_in * v.chunk_in;
  index /= v.num_chunks_in;
  item.g = index % v.groups;
  item.slice = index / v.groups;
  item.in = Min(v.chunk_in, v.in - item.i0);
  item.out = Min(v.chunk_out, v.out - item.o0);
  return item;
}

// The tile of images, rows and columns of x that a unit stands for.
inline Tile UnitTile(const WeightGradView& v, int64_t unit, int64_t g) {
  Tile tile;
  tile.g = g;
  tile.w0 = unit % v.w.num_tiles * v.w.tile;
  unit /= v.w.num_tiles;
  tile.h0 = unit % v.h.num_tiles * v.h.tile;
  tile.n0 = unit / v.h.num_tiles * v.tile_n;
  tile.n = Min(v.tile_n, v.batch - tile.n0);
  tile.h = Min(v.h.tile, v.h.count - tile.h0);
  tile.w = Min(v.w.tile, v.w.count - tile.w0);
  return tile;
}

// Bytes of a list with a place for every row of sums, one per (tap, output channel). Items make two
// of them at the start of their scratch.
inline int64_t GradListBytes(const WeightGradView& v) {
  return RoundUp(v.chunk_out * v.taps * static_cast<int64_t>(sizeof(int64_t)), 64);
}

// Where the sums of an item go: its slice's partial sums, in the order of the weight.
template <typename C>
C* GradTarget(const WeightGradView& v, const GradItem& item) {
  C* partial = static_cast<C*>(v.partial);
  return partial + item.slice * v.groups * v.in * v.out * v.taps +
         ((item.g * v.in + item.i0) * v.out + item.o0) * v.taps;
}

// Items of 16384 weights: the partial sums in the order of their slices.
inline constexpr int64_t kReduceBlock = 16384;

template <typename T>
void WeightGradReduce(const WeightGradView& v, int64_t item) {
  using C = Compute<T>;
  const int64_t total = v.groups * v.in * v.out * v.taps;
  const int64_t begin = item * kReduceBlock, end = Min(begin + kReduceBlock, total);
  const C* partial = static_cast<const C*>(v.partial);
  T* dw = static_cast<T*>(v.dw);
  constexpr int64_t kStep = 256;
  for (int64_t i = begin; i < end; i += kStep) {
    const int64_t n = Min(kStep, end - i);
    C sum[kStep];
    for (int64_t j = 0; j < n; ++j) sum[j] = partial[i + j];
    for (int64_t s = 1; s < v.slices; ++s) {
      for (int64_t j = 0; j < n; ++j) sum[j] += partial[s * total + i + j];
    }
    NarrowRow(sum, n, dw + i);
  }
}

// Sums of dy over batch and positions, for a block of channels. Many partial sums per channel keep
// the rounding error near that of a pairwise sum.
template <typename T>
void BiasGrad(const WeightGradView& v, int64_t item) {
  using C = Compute<T>;
  const int64_t channels = v.groups * v.out, area = v.h.src.len * v.w.src.len;
  const int64_t begin = item * v.bias_chunk, count = Min(v.bias_chunk, channels - begin);
  const T* dy = static_cast<const T*>(v.dy);
  T* db = static_cast<T*>(v.db) + begin;
  if (v.channels_last) {
    constexpr int64_t kMost = 64;
    for (int64_t c0 = 0; c0 < count; c0 += kMost) {
      const int64_t n = Min(kMost, count - c0);
      C total[kMost] = {};
      for (int64_t i = 0; i < v.batch * area;) {
        C sum[kMost] = {};
        const int64_t stop = Min(i + 256, v.batch * area);
        for (; i < stop; ++i) {
          const T* in = dy + i * channels + begin + c0;
          for (int64_t c = 0; c < n; ++c) sum[c] += Widen(in[c]);
        }
        for (int64_t c = 0; c < n; ++c) total[c] += sum[c];
      }
      NarrowRow(total, n, db + c0);
    }
    return;
  }
  for (int64_t c = 0; c < count; ++c) {
    C total = 0;
    for (int64_t n = 0; n < v.batch; ++n) {
      const T* in = dy + (n * channels + begin + c) * area;
      constexpr int64_t kWays = 64;
      C sum[kWays] = {};
      int64_t i = 0;
      for (; i + kWays <= area; i += kWays) {
        for (int64_t j = 0; j < kWays; ++j) sum[j] += Widen(in[i + j]);
      }
      for (int64_t j = 0; i + j < area; ++j) sum[j] += Widen(in[i + j]);
      for (int64_t width = kWays / 2; width > 0; width /= 2) {
        for (int64_t j = 0; j < width; ++j) sum[j] += sum[j + width];
      }
      total += sum[0];
    }
    Narrow(total, &db[c]);
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_GRAD_ITEM_H_
