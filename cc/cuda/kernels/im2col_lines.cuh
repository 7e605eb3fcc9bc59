// Copies a box of an image (core/im2col_box.h) into shared memory line by line, for blocks that
// copy many tiles: what a tile's lines and their places have in common is worked out once a block.
//
// A line is the part of a box that has one row (and one channel, where channels are planes).
// Threads side by side take its vectors, always the same ones, so that a column is looked at once a
// tile; what is left of a copy is a line's entry in a table, one comparison, and the copy.
//
// float32 is copied as it is, and nothing waits for it (cuda/primitives/copy_async.cuh). 16-bit
// types pass through registers and become float32.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_LINES_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_LINES_CUH_

#include <cstdint>

#include "core/im2col_box.h"
#include "core/im2col_lines.h"
#include "cuda/kernels/im2col_stage.cuh"
#include "cuda/primitives/copy_async.cuh"

namespace transconv::cuda::im2col {

template <typename E>
constexpr bool kAsync = sizeof(typename E::Type) == sizeof(float);

// A table's entry: distances from the box's first row and channel, in elements and rows.
struct alignas(16) Line {
  int global, shared, row, unused;
};

// Fills a table. Of the box's channels `left` are there; lines of others are zeros.
__device__ inline void FillLines(Line* lines, const Im2colLines& l, int left) {
  const Im2colBox& b = l.box;
  constexpr int kNowhere = -(1 << 30);
  const BoxAxis& rows = b.axis[b.form == BoxForm::kPixels ? 2 : 1];
  for (int i = threadIdx.x; i < l.count; i += kBoxThreads) {
    int row = i, channel = 0;
    if (b.form == BoxForm::kPlanes) {
      channel = i;
      row = b.by_count1.Split(channel);
    }
    // Rows below the image may be further than 32 bits reach, and are not used then.
    const uint32_t global = static_cast<uint32_t>(row * rows.unit) * uint32_t(rows.global) +
                            uint32_t(channel) * uint32_t(b.axis[2].global);
    lines[i] = {static_cast<int>(global), row * rows.shared + channel * b.axis[2].shared,
                channel < left ? row * rows.unit : kNowhere, 0};
  }
}

// The vectors of one place in all lines of this thread.
template <int kVector, typename E>
__device__ __forceinline__ void CopyPlace(float* to, const typename E::Type* image,
                                          const typename E::Type* from, const Line* lines,
                                          int first, bool there, int row, unsigned height,
                                          const Im2colLines& l) {
  const auto wanted = [&](const Line& line) {
    return there && static_cast<unsigned>(row + line.row) < height;
  };
  if constexpr (kAsync<E>) {
    // The next entry is on its way while this one's vector is.
    Line next = lines[min(first, l.count - 1)];
#pragma unroll 2
    for (int i = first; i < l.count; i += l.at_once) {
      const Line line = next;
      next = lines[min(i + l.at_once, l.count - 1)];
      CopyAsync<kVector>(to + line.shared, from + line.global, wanted(line));
    }
  } else {
    // Loads without branches in between, which would wait for each other: where nothing is wanted,
    // of the image's first vector, and of the first line again where there is none.
    constexpr int kAhead = 4;
    using Source = Vector<typename E::Type, kVector>;
    for (int i = first; i < l.count; i += kAhead * l.at_once) {
      Source found[kAhead];
      bool inside[kAhead];
      int place[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int at = i + j * l.at_once;
        const Line line = lines[at < l.count ? at : i];
        inside[j] = wanted(line);
        place[j] = line.shared;
        found[j] = *reinterpret_cast<const Source*>(inside[j] ? from + line.global : image);
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        Vector<float, kVector> value;
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          value.value[k] = inside[j] ? E::Load(found[j].value[k]) : 0.0f;
        }
        StoreVector(to + place[j], value);
      }
    }
  }
}

template <int kVector, typename E>
__device__ __forceinline__ void CopyVectors(float* to, const typename E::Type* image,
                                            const Im2colLines& l, const Line* lines, int row,
                                            int column, int left) {
  const Im2colBox& b = l.box;
  int first = static_cast<int>(threadIdx.x);
  const int place = l.by_places.Split(first);
  if (first >= l.at_once) return;
  const bool pixels = b.form == BoxForm::kPixels;
  const BoxAxis& rows = b.axis[pixels ? 2 : 1];
  const typename E::Type* const from = image + static_cast<int64_t>(row) * rows.global;
  for (int i = place; i < l.places; i += kBoxThreads) {
    if (pixels) {
      int at = i;
      const int channel = l.by_count0.Split(at) * kVector;
      const int position = column + at * b.axis[1].unit;
      CopyPlace<kVector, E>(
          to + at * b.axis[1].shared + channel, image,
          from + static_cast<int64_t>(position) * b.axis[1].global + channel, lines, first,
          static_cast<unsigned>(position) < static_cast<unsigned>(b.axis[1].limit) &&
              channel < left,
          row, static_cast<unsigned>(rows.limit), l);
    } else {
      const int position = column * b.scale - b.Shift(column) + i * b.axis[0].unit;
      CopyPlace<kVector, E>(
          to + i * kVector, image, from + position, lines, first,
          static_cast<unsigned>(position) < static_cast<unsigned>(b.axis[0].limit), row,
          static_cast<unsigned>(rows.limit), l);
    }
  }
}

// `from` is the image's first element of the box's first channel, of which and those after it
// `left` are there; row and column are the box's first in the image, outside of it or not. `to` is
// aligned to 16 bytes; the box's first element is at to[box.Shift(column)]. float32 is there after
// CopyAsyncDone and a barrier.
template <typename E>
__device__ __forceinline__ void CopyLines(float* to, const typename E::Type* from,
                                          const Im2colLines& l, const Line* lines, int row,
                                          int column, int left) {
  if (l.box.vector == 4) {
    CopyVectors<4, E>(to, from, l, lines, row, column, left);
  } else if (l.box.vector == 2) {
    CopyVectors<2, E>(to, from, l, lines, row, column, left);
  } else {
    CopyVectors<1, E>(to, from, l, lines, row, column, left);
  }
}

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_LINES_CUH_
