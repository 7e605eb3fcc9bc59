// Which weight lies in which row of a packed operand: pure C++, tested without a GPU.
#ifndef TRANSCONV_CORE_PACK_ORDER_H_
#define TRANSCONV_CORE_PACK_ORDER_H_

#include "core/geometry.h"

namespace transconv {

constexpr int kPackedRows = 64;     // of one matrix instruction
constexpr int kStackChannels = 32;  // of a stacked operand

// A row of all blocks' rows. It is one target channel; or operands are stacked: 32 target channels,
// and again the same 32, whose taps begin `stack` taps later. Where taps are whole rows of the
// kernel, `stack` taps are one of these, so that the two halves are neighbouring target rows that
// read the same source.
struct PackedRow {
  int block, row;
  int channel;  // of the group
  int shift;
  // `stack` is 0 where operands are not stacked.
  TRANSCONV_HOST_DEVICE PackedRow(int index, int stack)
      : block(index / kPackedRows),
        row(index % kPackedRows),
        channel(stack > 0 ? block * kStackChannels + row % kStackChannels : index),
        shift(stack > 0 && row >= kStackChannels ? stack : 0) {}
  // Which of the kernel's `taps` packed tap t is; negative if it is none and the weight is zero.
  TRANSCONV_HOST_DEVICE int TapOf(int t, int taps) const {
    const int tap = t - shift;
    return tap < taps ? tap : -1;
  }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_PACK_ORDER_H_
