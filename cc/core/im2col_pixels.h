// What the kernels for pixels of 16 bits (NHWC) have in common on the host: pure C++.
#ifndef TRANSCONV_CORE_IM2COL_PIXELS_H_
#define TRANSCONV_CORE_IM2COL_PIXELS_H_

#include "core/geometry.h"
#include "core/im2col_wgrad_plan.h"

namespace transconv::pixels {

// One axis of a tile: positions of x, how many tiles cover the image, and what taps reach of dy.
struct TileAxis {
  int size = 1, tiles = 1, halo = 1;
};

// Why a problem is none for any of them, or null.
inline const char* Declines(const Problem& q) {
  if (q.in_channels < 1 || q.out_channels < 1 || q.taps() < 1 || q.h.in < 1 || q.h.out < 1 ||
      q.w.out < 1) {
    return "is empty";
  }
  if (const char* reason = im2col_wgrad::TooLarge(q)) return reason;
  if (q.layout != Layout::kNHWC || q.groups != 1) return "takes NHWC without groups alone";
  // Eight channels are a vector.
  if (q.in_channels % 8 != 0) return "takes multiples of eight input channels alone";
  // A product takes 16 columns.
  if (q.w.in <= 8) return "takes rows of more than eight columns alone";
  return nullptr;
}

}  // namespace transconv::pixels

#endif  // TRANSCONV_CORE_IM2COL_PIXELS_H_
