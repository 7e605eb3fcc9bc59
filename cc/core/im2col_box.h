// Boxes of an image as the im2col kernels hold them in shared memory: pure C++.
//
// A box is some rows, columns and channels of one image, every `unit`-th row and column from an
// origin on. It lies in shared memory so that the place of an element is a sum of what its row,
// column and channel contribute, in the order of the image, so that runs which are contiguous there
// are copied as vectors:
//
//     planes   NCHW                    [channel][row][column]
//     merged   NHWC, every channel     [row][column and channel as one run]
//     pixels   NHWC, some channels     [row][column][channel]
//
// A run starts at a multiple of the vector's length in the image: up to vector - 1 elements before
// the box (`Shift`). Whatever is outside of the image or of the channels is a zero in the box.
#ifndef TRANSCONV_CORE_IM2COL_BOX_H_
#define TRANSCONV_CORE_IM2COL_BOX_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/divider.h"
#include "core/geometry.h"

namespace transconv {

constexpr int kBoxThreads = 256;  // that copy a box

enum class BoxForm : int32_t { kPlanes, kMerged, kPixels };

// One axis of the copy: positions or, of the innermost axis, vectors of positions.
struct BoxAxis {
  int count = 1, unit = 1, limit = 1;  // how many, from one to the next, and the image's extent
  int global = 0, shared = 0;          // elements from one position to the next
};

struct Im2colBox {
  BoxForm form = BoxForm::kPlanes;
  int vector = 1;   // elements that are copied at a time
  int scale = 1;    // of a column along the innermost axis
  BoxAxis axis[3];  // innermost first
  // Lines are axis 0, one for each position of the others; `lanes` threads share one.
  int lines = 1, lanes_log2 = 0;
  Divider by_count1;
  int row = 0, column = 0, channel = 0;  // elements of shared memory from one to the next
  int size = 0;                          // elements of shared memory

  // How far into its run a box starts whose first column is this one.
  TRANSCONV_HOST_DEVICE int Shift(int first_column) const {
    return form == BoxForm::kPixels ? 0 : (first_column * scale) & (vector - 1);
  }
};

struct BoxShape {
  int rows = 1, columns = 1, channels = 1;  // of the box
  int unit_h = 1, unit_w = 1;               // of the image, from one to the next
  int most_vector = 4;
  int row_pad = 0, channel_pad = 0, column_pad = 0;  // in vectors, against conflicts of banks
  bool merge = true;     // whether pixels that lie side by side may be one run
  bool aligned = false;  // whether first columns are multiples of most_vector: no shift
};

// `is_x`: a box of x rather than of y. An image has fewer than 2^31 elements.
inline Im2colBox MakeIm2colBox(const Problem& q, bool is_x, const BoxShape& shape) {
  const int channels = static_cast<int>(is_x ? q.in_channels : q.out_channels);
  const int per_group = static_cast<int>(is_x ? q.in_per_group() : q.out_per_group());
  const int height = static_cast<int>(is_x ? q.h.in : q.h.out);
  const int width = static_cast<int>(is_x ? q.w.in : q.w.out);
  Im2colBox b;
  int runs = 0;  // what a vector has to divide
  if (q.layout == Layout::kNCHW) {
    b.form = BoxForm::kPlanes;
    runs = shape.unit_w == 1 ? width : 1;
  } else if (shape.merge && q.groups == 1 && shape.channels == channels &&
             (shape.unit_w == 1 || channels == 1)) {
    b.form = BoxForm::kMerged;
    b.scale = channels;
    runs = shape.unit_w == 1 ? width * channels : 1;
  } else {
    b.form = BoxForm::kPixels;
    runs = std::gcd(per_group, shape.channels);
  }
  b.vector = shape.most_vector;
  while (runs % b.vector != 0) b.vector /= 2;
  const int v = b.vector;
  const auto vectors = [v](int size) { return (size + v - 1) / v; };
  const int row_global = q.layout == Layout::kNCHW ? width : width * channels;
  if (b.form == BoxForm::kPixels) {
    const int count = vectors(shape.channels);
    b.channel = 1;
    b.column = (count + shape.column_pad) * v;
    b.row = shape.columns * b.column + shape.row_pad * v;
    b.axis[0] = {count, v, per_group, 1, v};
    b.axis[1] = {shape.columns, shape.unit_w, width, channels, b.column};
    b.axis[2] = {shape.rows, shape.unit_h, height, row_global, b.row};
    b.size = shape.rows * b.row;
  } else {
    const bool merged = b.form == BoxForm::kMerged;
    const int count = vectors(shape.columns * b.scale + (shape.aligned ? 0 : v - 1));
    b.channel = 1;
    b.column = b.scale;
    b.row = (count + shape.row_pad) * v;
    b.axis[0] = {count, v > 1 ? v : shape.unit_w, width * b.scale, 1, v};
    b.axis[1] = {shape.rows, shape.unit_h, height, row_global, b.row};
    b.size = shape.rows * b.row;
    if (!merged) {
      b.channel = b.size + shape.channel_pad * v;
      b.axis[2] = {shape.channels, 1, per_group, width * height, b.channel};
      b.size = shape.channels * b.channel;
    }
  }
  b.lines = b.axis[1].count * b.axis[2].count;
  b.by_count1 = Divider(b.axis[1].count);
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int log2 = 2; log2 <= 5; ++log2) {
    const int64_t lanes = int64_t{1} << log2, steps = (b.axis[0].count + lanes - 1) / lanes;
    // Instructions of a thread for a line and for each vector, four at a time where there are many;
    // a load of a warp takes a cycle, as long as four instructions, for every 128 bytes it touches.
    const int64_t touched = (32 / lanes) * ((lanes * b.vector * 4 + 127) / 128);
    const int64_t cost = lanes * (20 + std::max<int64_t>(12, 4 * touched) *
                                           (steps > 2 ? (steps + 3) / 4 * 4 : steps));
    if (cost >= least) continue;
    least = cost;
    b.lanes_log2 = log2;
  }
  return b;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_BOX_H_
