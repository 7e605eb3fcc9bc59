// Which weight lies in which row of a packed operand: pure C++, tested without a GPU.
#ifndef TRANSCONV_CORE_PACK_ORDER_H_
#define TRANSCONV_CORE_PACK_ORDER_H_

#include "core/geometry.h"

namespace transconv {

constexpr int kPackedRows = 64;     // of one matrix instruction
constexpr int kStackChannels = 32;  // of an operand that has its channels twice

// What rounding to float16 cuts off from a number is a number of its own, times this: the low part,
// of the high part's size at most.
constexpr int kLowScale = 2048;

// A row of all blocks' rows, where blocks are of 64 target channels, or of 32 that an operand has
// twice:
//
//     stacked   the second time their taps begin `stack` taps later. Where taps are whole rows of
//               the kernel and `stack` is one of these, the two halves are neighbouring target
//               rows that read the same source
//     split     first the weights' high parts, then their low parts
struct PackedRow {
  int block, row;
  int channel;  // of the group
  int shift;
  bool second;
  // `channels` are those of a block.
  TRANSCONV_HOST_DEVICE PackedRow(int index, int channels, int stack)
      : block(index / kPackedRows),
        row(index % kPackedRows),
        channel(block * channels + row % channels),
        shift(row >= channels ? stack : 0),
        second(row >= channels) {}
  // Which of the kernel's `taps` packed tap t is; negative if it is none and the weight is zero.
  TRANSCONV_HOST_DEVICE int TapOf(int t, int taps) const {
    const int tap = t - shift;
    return tap < taps ? tap : -1;
  }
};

// Where a row of a tap's 16 channels lies: [chunk of 8 channels][row][8], in bytes. A split operand
// has 32 rows of zeros before it, so that the operand 32 rows earlier is those and the high parts.
template <bool SPLIT>
struct PackedTap {
  static constexpr int kFirst = SPLIT ? kStackChannels * 16 : 0;  // of the operand
  static constexpr int kChunk = kFirst + kPackedRows * 16;
  static constexpr int kBytes = 2 * kChunk;
  TRANSCONV_HOST_DEVICE static constexpr int RowAt(int chunk, int row) {
    return chunk * kChunk + kFirst + row * 16;
  }
};

}  // namespace transconv

#endif  // TRANSCONV_CORE_PACK_ORDER_H_
