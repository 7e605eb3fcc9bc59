// Rows of y of an image of 16-bit pixels (NHWC), copied to shared memory as they are, and nothing
// waits for them (cuda/primitives/copy_async.cuh).
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_PIXELS_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_PIXELS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_box.h"
#include "cuda/primitives/copy_async.cuh"

namespace transconv::cuda::pixels {

// The image of y, and where positions of x lie in it.
struct Image {
  int64_t batch;            // elements of an image
  int row, rows, channels;  // elements of a row
  int stride_h, stride_w, crop_h, crop_w;
};

// A tile's place in x.
struct Tile {
  int image, row, column;
};

// Elements that a tile's rows of y start before the tile; vectors are of `bytes`.
__device__ __forceinline__ int ShiftOf(const Tile& t, int bytes, const Image& y) {
  return (t.column * y.stride_w - y.crop_w) * y.channels & (bytes / 2 - 1);
}

// What a tile's taps reach of y. A vector is inside of its row or outside as a whole, and then it
// is zeros. `row_bytes`: from a row to the next in shared memory.
template <int kBytes>
__device__ __forceinline__ void CopyRowsBy(unsigned char* to, const uint16_t* __restrict__ y,
                                           const Tile& t, int rows, int vectors, int row_bytes,
                                           const Divider& by_vectors, const Image& image) {
  constexpr int kElements = kBytes / 2;
  const int first =
      (t.column * image.stride_w - image.crop_w) * image.channels - ShiftOf(t, kBytes, image);
  const int first_row = t.row * image.stride_h - image.crop_h;
  const uint16_t* const from = y + t.image * image.batch;
  for (int i = static_cast<int>(threadIdx.x); i < rows * vectors; i += kBoxThreads) {
    int row = i;
    const int vector = by_vectors.Split(row), at = first + vector * kElements;
    const int from_row = first_row + row;
    const bool wanted = static_cast<unsigned>(from_row) < static_cast<unsigned>(image.rows) &&
                        static_cast<unsigned>(at) < static_cast<unsigned>(image.row);
    CopyAsyncBytes<kBytes>(to + (row * row_bytes + vector * kBytes),
                           from + (wanted ? from_row * image.row + at : 0), wanted);
  }
}
__device__ __forceinline__ void CopyRows(unsigned char* to, const uint16_t* __restrict__ y,
                                         const Tile& t, int rows, int vectors, int bytes,
                                         int row_bytes, const Divider& by_vectors,
                                         const Image& image) {
  if (bytes == 16) {
    CopyRowsBy<16>(to, y, t, rows, vectors, row_bytes, by_vectors, image);
  } else if (bytes == 8) {
    CopyRowsBy<8>(to, y, t, rows, vectors, row_bytes, by_vectors, image);
  } else {
    CopyRowsBy<4>(to, y, t, rows, vectors, row_bytes, by_vectors, image);
  }
}

inline Image ImageOfY(const Problem& q) {
  Image y{};
  y.channels = static_cast<int>(q.out_channels);
  y.row = static_cast<int>(q.w.out * q.out_channels);
  y.rows = static_cast<int>(q.h.out);
  y.batch = q.h.out * y.row;
  y.stride_h = static_cast<int>(q.h.stride);
  y.stride_w = static_cast<int>(q.w.stride);
  y.crop_h = static_cast<int>(q.h.crop_lo);
  y.crop_w = static_cast<int>(q.w.crop_lo);
  return y;
}

}  // namespace transconv::cuda::pixels

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_PIXELS_CUH_
