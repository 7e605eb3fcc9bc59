// How threads share the copy of a box of an image (cuda/kernels/im2col_lines.cuh): pure C++.
#ifndef TRANSCONV_CORE_IM2COL_LINES_H_
#define TRANSCONV_CORE_IM2COL_LINES_H_

#include <algorithm>

#include "core/divider.h"
#include "core/im2col_box.h"

namespace transconv {

// The vectors of a row, or of a row's pixels, are places. A thread takes one of them in every
// `at_once`-th line; places beyond kBoxThreads take turns.
struct Im2colLines {
  Im2colBox box;
  int places = 1, at_once = 1, count = 1;  // count: lines
  Divider by_places, by_count0;

  Im2colLines() = default;
  explicit Im2colLines(const Im2colBox& b) : box(b) {
    const bool pixels = b.form == BoxForm::kPixels;
    places = b.axis[0].count * (pixels ? b.axis[1].count : 1);
    count = b.axis[2].count * (pixels ? 1 : b.axis[1].count);
    at_once = std::max(kBoxThreads / places, 1);
    by_places = Divider(places);
    by_count0 = Divider(b.axis[0].count);
  }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_LINES_H_
