// Forward and grad_input: one tile of the destination as a product of packed weights with a packed
// source tile, in which a tap is nothing but an offset.
#ifndef TRANSCONV_CPU_KERNELS_GATHER_H_
#define TRANSCONV_CPU_KERNELS_GATHER_H_

#include <cstdint>
#include <type_traits>

#include "cpu/kernels/gather_io.h"
#include "cpu/kernels/pack_weight.h"
#include "cpu/kernels/simd.h"
#include "cpu/views.h"

namespace transconv::cpu::TRANSCONV_ISA {

// Vectors of positions per row of accumulators. Few rows need many vectors, to hide the latency of
// the multiply-adds; the product is bounded by the registers.
constexpr int MaxVectors(int rows) {
  constexpr int kMost = TRANSCONV_ACCUMULATORS / 3;
  const int fit = TRANSCONV_ACCUMULATORS / rows;
  return fit < kMost ? fit : kMost;
}

// So many vectors may lie anywhere, which is what full blocks of rows have; more follow each other.
inline constexpr int kApart = MaxVectors(kMaxRows);

// acc[r][j] = sum over taps t, channels k of a[t][k][r] * b[offset[t] + k * stride + at[j]], plus
// what acc[r][j] holds if `add`; j counts vectors. What acc lies in is fetched at once: it is
// needed so late that memory has answered by then.
template <typename C, int kRows, int kVectors>
void Multiply(int64_t taps, const int64_t* offsets, int64_t channels, const C* b, const int64_t* at,
              int64_t stride, const C* a, C* acc, int64_t acc_pitch, bool add) {
  constexpr int kPointers = kVectors <= kApart ? kVectors : 1;
  Vec<C> sum[kRows][kVectors] = {};
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) __builtin_prefetch(acc + r * acc_pitch + j * kLanes<C>, 1);
  }
  if (add) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) sum[r][j] = Load(acc + r * acc_pitch + j * kLanes<C>);
    }
  }
  for (int64_t t = 0; t < taps; ++t) {
    const C* bp[kPointers];
#pragma GCC unroll 16
    for (int j = 0; j < kPointers; ++j) bp[j] = b + offsets[t] + at[j];
    for (int64_t k = 0; k < channels; ++k) {
      Vec<C> bv[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        bv[j] = Load(kPointers == kVectors ? bp[j % kPointers] : bp[0] + j * kLanes<C>);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec<C> av = Broadcast<C>(a[r]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) sum[r][j] += av * bv[j];
      }
      a += kRows;
#pragma GCC unroll 16
      for (int j = 0; j < kPointers; ++j) bp[j] += stride;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) Store(acc + r * acc_pitch + j * kLanes<C>, sum[r][j]);
  }
}

template <typename C>
using MultiplyFn = void (*)(int64_t, const int64_t*, int64_t, const C*, const int64_t*, int64_t,
                            const C*, C*, int64_t, bool);

template <typename C, int kRows, int kVectors>
MultiplyFn<C> PickVectors(int vectors) {
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) return PickVectors<C, kRows, kVectors - 1>(vectors);
  }
  return &Multiply<C, kRows, kVectors>;
}

template <typename C, int kRows = kMaxRows>
MultiplyFn<C> PickMultiply(int rows, int vectors) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return PickMultiply<C, kRows - 1>(rows, vectors);
  }
  return PickVectors<C, kRows, MaxVectors(kRows)>(vectors);
}

template <typename T>
int64_t GatherScratch(const GatherView& v) {
  using C = Compute<T>;
  return (v.packed_elements + v.acc_elements + RowElements<C>(v.w)) *
         static_cast<int64_t>(sizeof(C));
}

// How far the longest of a class's planes reaches into elements q0 .. q0 + count - 1.
inline int64_t Longest(const AxisClassView& cls, const SideView& side, int64_t q0, int64_t count) {
  int64_t end = 0;
  for (int64_t r = 0; r < cls.num_residues; ++r) {
    end = Max(end, ValidElements(side, cls.residues[r], q0, count).end);
  }
  return end;
}

// The part of the result that a chunk will be written to, a run of bytes in every channel. It is
// brought into the L2 cache while the chunk is summed: all at once, writing would wait for memory.
struct Ahead {
  const char* channel = nullptr;
  int64_t stride = 0, bytes = 0;  // between channels, of one
  int64_t channels = 0;           // that are left
  int64_t at = 0;

  int64_t Lines() const { return channels * ((bytes + 63) / 64); }
  void Fetch(int64_t lines) {
    for (; lines > 0 && channels > 0; --lines) {
      __builtin_prefetch(channel + at, 1, 2);
      at += 64;
      if (at < bytes) continue;
      at = 0;
      channel += stride;
      --channels;
    }
  }
};

template <typename T>
Ahead ResultOf(const GatherView& v, const Tile& tile, int64_t m0, int64_t chunk) {
  constexpr int64_t kBytes = sizeof(T);
  Ahead result;
  if (v.channels_last || tile.n > 1 || v.w.num_tiles > 1) return result;
  const Range lines = WrittenRange(v.h.dst, tile.h0, tile.h);
  const int64_t row = v.w.dst.len * kBytes;
  result.stride = v.h.dst.len * row;
  result.bytes = (lines.end - lines.begin) * row;
  result.channels = chunk;
  result.channel = static_cast<const char*>(v.dst) + lines.begin * row +
                   ((tile.n0 * v.groups + tile.g) * v.produced + m0) * result.stride;
  return result;
}

// One chunk of produced channels over the `reduced` channels of a packed tile.
template <typename C>
void MultiplyChunk(const GatherView& v, const Tile& tile, int64_t chunk, int64_t reduced,
                   const C* packed, const C* weight, C* acc, int64_t acc_pitch, bool add,
                   Ahead ahead) {
  const int64_t row_vectors = tile.acc_row / kLanes<C>;  // if by rows
  const auto start = [&](int64_t vector) {
    if (!v.by_rows) return vector * kLanes<C>;
    const int64_t row = vector / row_vectors;
    return (row / tile.h * v.image_rows + row % tile.h) * v.pitch +
           vector % row_vectors * kLanes<C>;
  };
  // Roughly the blocks of sums to come, between which `ahead` is fetched.
  const int64_t most_vectors = tile.n * tile.acc_rows * tile.acc_row / kLanes<C>;
  const int64_t blocks_of_sums =
      (most_vectors / kApart + 1) * ((v.num_planes * chunk + kMaxRows - 1) / kMaxRows);
  const int64_t lines = (ahead.Lines() + blocks_of_sums - 1) / blocks_of_sums;
  for (int64_t c = 0; c < v.num_classes; ++c) {
    const ClassView& cls = v.classes[c];
    const int64_t rows_total = cls.num_planes * chunk;
    // Some planes end before others, where the tensor does.
    const int64_t height = Longest(*cls.h, v.h.dst, tile.h0, tile.h);
    const int64_t width = Longest(*cls.w, v.w.dst, tile.w0, tile.w);
    if (height == 0 || width == 0) continue;
    const int64_t positions = ((tile.n - 1) * v.image_rows + height - 1) * v.pitch + width;
    const int64_t vectors = v.by_rows ? ((tile.n - 1) * tile.h + height) * row_vectors
                                      : (positions + kLanes<C> - 1) / kLanes<C>;
    const int most_rows = v.by_rows ? kMaxRows : static_cast<int>(Min(rows_total, kMaxRows));
    const int64_t most = MaxVectors(most_rows);
    // Positions outside, rows inside: the source of one block of positions stays in the L1 cache
    // while the weights stream past it.
    for (int64_t p = 0, count; p < vectors; p += count) {
      // Blocks of nearly one size: one vector alone would be bound by the loads of its weights.
      const int64_t blocks = (vectors - p + most - 1) / most;
      count = (vectors - p + blocks - 1) / blocks;
      int64_t at[kApart];
      for (int j = 0; j < kApart; ++j) at[j] = start(p + Min(j, count - 1));
      const C* a = weight + cls.first_weight * chunk * reduced;
      C* out = acc + cls.first_plane * chunk * acc_pitch + p * kLanes<C>;
      const MultiplyFn<C> full = PickMultiply<C>(kMaxRows, static_cast<int>(count));
      int64_t row0 = 0;
      for (; row0 + kMaxRows <= rows_total; row0 += kMaxRows) {
        full(cls.num_taps, cls.offsets, reduced, packed, at, v.plane_stride, a,
             out + row0 * acc_pitch, acc_pitch, add);
        a += kMaxRows * cls.num_taps * reduced;
        ahead.Fetch(lines);
      }
      if (row0 < rows_total) {
        PickMultiply<C>(static_cast<int>(rows_total - row0), static_cast<int>(count))(
            cls.num_taps, cls.offsets, reduced, packed, at, v.plane_stride, a,
            out + row0 * acc_pitch, acc_pitch, add);
        ahead.Fetch(lines);
      }
    }
  }
}

// Whether the accumulators of a tile are elements of the result in their order, and whole vectors
// of them: then the result is summed where it is.
template <typename T>
bool SumsInPlace(const GatherView& v, const Tile& tile) {
  using C = Compute<T>;
  const int64_t row = v.w.dst.len;
  return std::is_same_v<T, C> && !v.channels_last && v.bias == nullptr && v.h.dst.split == 1 &&
         v.w.dst.split == 1 && tile.n == 1 && tile.w == row && tile.acc_row == row &&
         tile.h * row % kLanes<C> == 0;
}

template <typename T>
void Gather(const GatherView& v, int64_t item, void* scratch) {
  using C = Compute<T>;
  Tile tile;
  int64_t rest = item;
  const int64_t chunk_item = rest % v.num_chunk_items;
  rest /= v.num_chunk_items;
  tile.w0 = rest % v.w.num_tiles * v.w.tile;
  rest /= v.w.num_tiles;
  tile.h0 = rest % v.h.num_tiles * v.h.tile;
  rest /= v.h.num_tiles;
  tile.g = rest % v.groups;
  tile.n0 = rest / v.groups * v.tile_n;
  tile.n = Min(v.tile_n, v.batch - tile.n0);
  tile.h = Min(v.h.tile, v.h.count - tile.h0);
  tile.w = Min(v.w.tile, v.w.count - tile.w0);
  tile.acc_rows = v.by_rows ? tile.h : v.image_rows;
  tile.acc_row = v.by_rows ? RoundUp(tile.w, kLanes<C>) : v.pitch;

  C* packed = static_cast<C*>(scratch);
  C* acc = packed + v.packed_elements;
  C* row = acc + v.acc_elements;
  const int64_t chunk_begin = chunk_item * v.chunks_per_item;
  const int64_t chunk_end = Min(chunk_begin + v.chunks_per_item, v.num_chunks);
  const bool in_place = SumsInPlace<T>(v, tile);
  const int64_t area = v.h.dst.len * v.w.dst.len;
  // An item of several depths has one chunk.
  for (int64_t k0 = 0; k0 < v.num_depths * v.depth; k0 += v.depth) {
    const int64_t reduced = Min(v.depth, v.reduced - k0);
    PackSource<T>(
        {v.src, v.channels_last, v.groups * v.reduced, tile.g * v.reduced + k0, reduced, &v.h, &v.w,
         v.image_rows, v.pitch, v.plane_stride, v.overlap_w, v.depth * v.plane_stride},
        tile, packed);
    for (int64_t ci = chunk_begin; ci < chunk_end; ++ci) {
      const int64_t m0 = ci * v.chunk, chunk = Min(v.chunk, v.produced - m0);
      const C* weight = static_cast<const C*>(v.packed_weight) +
                        ((tile.g * v.produced + m0) * v.reduced + chunk * k0) * v.taps;
      if constexpr (std::is_same_v<T, C>) {
        if (in_place) {
          const int64_t channel = (tile.n0 * v.groups + tile.g) * v.produced + m0;
          const int64_t y = tile.h0 + v.h.classes[0].residues[0] - v.h.dst.lo;
          C* to = static_cast<C*>(v.dst) + channel * area + y * v.w.dst.len;
          MultiplyChunk<C>(v, tile, chunk, reduced, packed, weight, to, area, k0 > 0, Ahead{});
          continue;
        }
      }
      const bool last = k0 + v.depth >= v.reduced;
      MultiplyChunk<C>(v, tile, chunk, reduced, packed, weight, acc, v.acc_pitch, k0 > 0,
                       last ? ResultOf<T>(v, tile, m0, chunk) : Ahead{});
      if (!last) continue;
      if (v.channels_last) {
        WriteTileChannelsLast<T>(v, tile, acc, m0, chunk);
      } else {
        WriteTile<T>(v, tile, acc, m0, chunk, row);
      }
    }
  }
}

}  // namespace transconv::cpu::TRANSCONV_ISA

#endif  // TRANSCONV_CPU_KERNELS_GATHER_H_
