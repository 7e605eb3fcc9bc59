// The rolling programmes of stride 1: pure C++, tested without a GPU.
//
// A block owns a strip of columns and walks down the image, two rows ("a pair") a step. Shared
// memory is a ring of items, one pair of rows each, as cells of eight channels:
//
//     [row][chunk of 8 channels][column][8]
//
// so that every row is loaded and converted once, not once for every tile that it borders on.
// A step multiplies the pair of its own item and needs the rows of the next item below it: three
// vertical taps. Items come in segments, runs of steps in one image; a segment of n steps is n + 1
// items, of which the last only lends its rows.
#ifndef TRANSCONV_CORE_ROLLING_PLAN_H_
#define TRANSCONV_CORE_ROLLING_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/geometry.h"
#include "core/pack_order.h"

namespace transconv {

constexpr int kRollingSlots = 3;  // items of a ring: two at work, one being filled
constexpr int kRollingTaps = 3;   // vertical and horizontal taps that a block covers

// Walks over the items of a block's share of all steps: image by image, pair by pair.
struct RollingWalk {
  int image, item;   // `item` is also the pair that the item's rows start with
  int end;           // the segment's last item
  int left;          // steps behind this segment
  bool first, more;  // the first item of its segment; not past the end

  // `pairs` are those of an image.
  TRANSCONV_HOST_DEVICE RollingWalk(int pairs, int first_step, int steps)
      : image(first_step / pairs), item(first_step % pairs), left(steps) {
    Begin(pairs);
  }
  TRANSCONV_HOST_DEVICE void Begin(int pairs) {
    first = true;
    more = left > 0;
    end = pairs - item < left ? pairs : item + left;
    left -= end - item;
  }
  TRANSCONV_HOST_DEVICE void Next(int pairs) {
    if (item < end) {
      ++item;
      first = false;
    } else {
      ++image;
      item = 0;
      Begin(pairs);
    }
  }
  // Whether a step starts at this item: its own rows are multiplied, not only lent.
  TRANSCONV_HOST_DEVICE bool steps() const { return item < end; }
  TRANSCONV_HOST_DEVICE bool last() const { return item == end && left == 0; }
};

// One share of `steps` steps for each of `shares` blocks, as even as possible.
TRANSCONV_HOST_DEVICE inline int RollingShare(int64_t steps, int shares, int index) {
  return static_cast<int>(steps * index / shares);
}

// Shared memory of the weight gradient: rings of dy and x. A window of dy never wraps, because the
// first slot's dy is stored a second time behind the last slot. With two PARTS, the high and the
// low bits of 32 channels take the place of 64 channels: those of x in turns, a chunk each, those
// of dy all high ones first (see RollingSplit).
template <int COLUMNS, int IN_HALVES, int OUT_HALVES, int PARTS = 1>
struct RollingWgradRing {
  static_assert(PARTS == 1 || (IN_HALVES == 1 && OUT_HALVES == 1), "one operand has 64 rows");
  static constexpr int kDyColumns = COLUMNS + kRollingTaps - 1;  // x has COLUMNS in a strip
  static constexpr int kXChunks = 4 * IN_HALVES * PARTS, kDyChunks = 4 * OUT_HALVES * PARTS;
  static constexpr int kXChunk = COLUMNS * 16, kDyChunk = kDyColumns * 16;  // bytes
  static constexpr int kXRow = kXChunks * kXChunk, kDyRow = kDyChunks * kDyChunk;
  static constexpr int kXItem = 2 * kXRow, kDyItem = 2 * kDyRow;
  static constexpr int kXAt = (kRollingSlots + 1) * kDyItem;
  // The operand of x has 64 rows; those of chunks that aren't there read on, for nothing.
  static constexpr int kBytes = kXAt + kRollingSlots * kXItem + (8 - kXChunks) * kXChunk;
  // From a cell to its low part.
  static constexpr int kXLow = kXChunk, kDyLow = 4 * kDyChunk;

  // Producer warp w owns chunks w and w + 4 and works in rounds of a few units, 32 cells each: part
  // of a row, or several rows. dy comes first. The columns of dy beyond COLUMNS are the tail: four
  // cells a chunk, of which each lane has one channel.
  static constexpr int kUnits = 4;
  static constexpr int kGroups = COLUMNS / 32;  // units in a row
  static constexpr int kDyRounds = OUT_HALVES * 2 * kGroups / kUnits;
  static constexpr int kRounds = kDyRounds + IN_HALVES * 2 * kGroups / kUnits;
  static_assert(kUnits % kGroups == 0 || kGroups % kUnits == 0, "rounds start alike");
  struct Round {
    bool is_dy;
    int half, row, group;  // of the chunks; of its first unit
  };
  TRANSCONV_HOST_DEVICE static constexpr Round RoundOf(int r) {
    const bool is_dy = r < kDyRounds;
    const int unit = (is_dy ? r : r - kDyRounds) * kUnits;
    return {is_dy, unit / (2 * kGroups), unit / kGroups % 2, unit % kGroups};
  }
  // Unit i of a round, relative to its first.
  TRANSCONV_HOST_DEVICE static constexpr int UnitRow(int i) { return i / kGroups; }
  TRANSCONV_HOST_DEVICE static constexpr int UnitGroup(int i) { return i % kGroups; }
  TRANSCONV_HOST_DEVICE static constexpr int TailChannel(int lane) { return lane / 4; }
  TRANSCONV_HOST_DEVICE static constexpr int TailRow(int lane) { return lane / 2 % 2; }
  TRANSCONV_HOST_DEVICE static constexpr int TailColumn(int lane) { return COLUMNS + lane % 2; }
  // Where a cell lies, its high part if there are two; dy from 0 on, x from kXAt on.
  TRANSCONV_HOST_DEVICE static constexpr int DyCell(int slot, int row, int chunk, int column) {
    return slot * kDyItem + row * kDyRow + chunk * kDyChunk + column * 16;
  }
  TRANSCONV_HOST_DEVICE static constexpr int XCell(int slot, int row, int chunk, int column) {
    return kXAt + slot * kXItem + row * kXRow + PARTS * chunk * kXChunk + column * 16;
  }
};

// How that ring is filled with pairs of columns, one 32-bit load for two 16-bit elements: a lane
// has columns 2 * lane and 2 * lane + 1 of a unit, two cells, and a round is both rows of a chunk.
// Rows start at whole words; where a strip of dy does not, `odd` is 1 and its pairs start one
// column before it.
template <int COLUMNS>
struct RollingWgradPairs {
  static constexpr int kGroups = COLUMNS / 64, kUnits = 2 * kGroups;  // units in a row, in both
  TRANSCONV_HOST_DEVICE static constexpr int UnitRow(int i) { return i / kGroups; }
  TRANSCONV_HOST_DEVICE static constexpr int UnitColumn(int i) { return i % kGroups * 64; }
  // Two cells a lane, 32 bytes apart from the next lane's, would take every bank twice: every other
  // four lanes store their second one first.
  TRANSCONV_HOST_DEVICE static constexpr int FirstStored(int lane) { return lane / 4 % 2; }
  // The tail: what is left of dy's columns, two pairs at most, of which each lane has one channel.
  TRANSCONV_HOST_DEVICE static constexpr int TailChannel(int lane) { return lane / 4; }
  TRANSCONV_HOST_DEVICE static constexpr int TailRow(int lane) { return lane / 2 % 2; }
  TRANSCONV_HOST_DEVICE static constexpr int TailColumn(int lane, int odd) {
    return COLUMNS + lane % 2 * 2 - odd;
  }
};

// What a thread does with its accumulators of a product m64n192 whose operands are high and low
// parts. As the parts of x take turns in chunks of eight rows, it has all four products of a pair
// of channels: rows r and r + 8 are the parts of x, columns c and c + 32 those of dy.
struct RollingSplit {
  static constexpr int kChannels = 32;             // of a block, on either side
  static constexpr int kPairs = 4 * kRollingTaps;  // by tap and chunk of dy
  static constexpr float kLow = 1.f / kLowScale;   // what a product with a low part is worth
  // Of pair i and its element 0 or 1; 1 for a low part.
  TRANSCONV_HOST_DEVICE static constexpr int Accumulator(int i, int element, int x_part,
                                                         int dy_part) {
    return 4 * (i / 4 * 8 + 4 * dy_part + i % 4) + 2 * x_part + element;
  }
  // Where a thread's pair i goes, in pairs of the 64 x 64 x taps sums that four blocks share: they
  // are in the order of accumulators of 64 channels, of which each block has a quarter.
  TRANSCONV_HOST_DEVICE static constexpr int SlotPair(int in_block, int out_block, int thread,
                                                      int i) {
    const int column = i / 4 * 8 + out_block % 2 * 4 + i % 4;  // of blocks of eight
    const int warp = thread / 32;
    return 2 * (128 * column + in_block % 2 * 64 + warp / 2 * 32 + thread % 32) + warp % 2;
  }
};

// Which channels and taps a block of the weight gradient sums, and in which slot.
struct RollingWgradUnits {
  int in_blocks, out_blocks, passes;
  int parts;  // as in the ring: two blocks of channels share a slot, on either side
  struct Unit {
    int group, in_block, out_block, pass;
  };
  TRANSCONV_HOST_DEVICE Unit Of(int unit) const {
    Unit u;
    u.pass = unit % passes;
    unit /= passes;
    u.out_block = unit % out_blocks;
    unit /= out_blocks;
    u.in_block = unit % in_blocks;
    u.group = unit / in_blocks;
    return u;
  }
  TRANSCONV_HOST_DEVICE int in_slots() const { return (in_blocks + parts - 1) / parts; }
  TRANSCONV_HOST_DEVICE int out_slots() const { return (out_blocks + parts - 1) / parts; }
  TRANSCONV_HOST_DEVICE int SlotOf(const Unit& u) const {
    return ((u.group * in_slots() + u.in_block / parts) * out_slots() + u.out_block / parts) *
               passes +
           u.pass;
  }
  // Of one split of the sums.
  TRANSCONV_HOST_DEVICE int slots(int groups) const {
    return groups * in_slots() * out_slots() * passes;
  }
};

// Shared memory of the forward pass and the gradient of x: a ring of source rows. A row's columns
// beyond 128, which taps and strips cut at sectors need, are its tail.
template <int N, int HALVES>
struct RollingTileRing {
  static constexpr int kChunks = 4 * HALVES;
  static constexpr int kMaxTail = 32 / HALVES, kBody = 128;
  static_assert(N <= kBody + kMaxTail, "the tail is one unit");

  // Eight producer warps. With all eight chunks, warp w owns chunk w and its rounds are the two
  // rows; with four, it owns a row of chunk w % 4. A round is the body of one row in units of 32
  // cells; the tail unit serves both rows of chunk, or the warp's one.
  static constexpr int kUnits = kBody / 32;
  static constexpr int kRounds = HALVES;
  TRANSCONV_HOST_DEVICE static constexpr int ChunkOf(int warp) { return warp % kChunks; }
  TRANSCONV_HOST_DEVICE static constexpr int FirstRow(int warp) {
    return HALVES == 2 ? 0 : warp / kChunks;
  }
  TRANSCONV_HOST_DEVICE static constexpr int TailRow(int warp, int lane) {
    return HALVES == 2 ? lane / kMaxTail : FirstRow(warp);
  }
  TRANSCONV_HOST_DEVICE static constexpr int TailColumn(int lane) {
    return kBody + lane % kMaxTail;
  }
};

// A source row in words of four bytes, one column of float32 or two of 16 bits: unit u is 32 words.
template <int ELEMENT_BYTES>
struct RollingWords {
  static constexpr int kColumns = 4 / ELEMENT_BYTES;
  TRANSCONV_HOST_DEVICE static constexpr int ColumnOf(int unit, int lane) {
    return kColumns * (32 * unit + lane);
  }
  TRANSCONV_HOST_DEVICE static constexpr int Units(int columns) {
    return (columns + 32 * kColumns - 1) / (32 * kColumns);
  }
};
// How many columns earlier a strip has to begin that needs columns from `first` on, so that words
// are aligned; negative where rows are no whole number of words.
inline int RollingSkew(int64_t first, int64_t source, int element_bytes) {
  const int64_t columns = 4 / element_bytes;
  if (source % columns != 0) return -1;
  return static_cast<int>(first - FloorDiv(first, columns) * columns);
}

// Bytes between parts of that ring, for rows of `columns` cells.
struct RollingTilePitch {
  int chunk, row, item;
  TRANSCONV_HOST_DEVICE static RollingTilePitch Of(int columns, int chunks) {
    return {columns * 16, chunks * columns * 16, 2 * chunks * columns * 16};
  }
};

// Which source rows and weights a matrix instruction of a pair takes. Two warpgroups compute a
// target row each, of 64 channels. Or, where a block has at most 32, operands are stacked
// (core/pack_order.h): the instruction's 64 rows are the channels of both target rows, which with a
// row of taps more read the same source; the warpgroups take whole pairs in turns.
struct RollingTaps {
  bool stacked;
  int h, w;  // of the kernel
  TRANSCONV_HOST_DEVICE constexpr int rows() const { return h + (stacked ? 1 : 0); }
  TRANSCONV_HOST_DEVICE constexpr int count() const { return rows() * w; }
  // By how many taps the second row's begin later.
  TRANSCONV_HOST_DEVICE constexpr int shift() const { return stacked ? w : 0; }
  // Where the 16 operand rows of a warp of a warpgroup belong: the row of a pair, and the first
  // channel of the block's.
  TRANSCONV_HOST_DEVICE static constexpr int RowOf(bool stacked, int group, int warp) {
    return stacked ? warp / 2 : group;
  }
  TRANSCONV_HOST_DEVICE static constexpr int ChannelOf(bool stacked, int warp) {
    return 16 * (stacked ? warp % 2 : warp);
  }
  // Whether a warpgroup multiplies a block's step.
  TRANSCONV_HOST_DEVICE static constexpr bool Takes(bool stacked, int group, int step) {
    return !stacked || step % 2 == group;
  }
};

// How target rows are cut into strips. Rows whose pitch is no multiple of a 32-byte sector are cut
// where their own addresses are: strip i of a row that starts at element `offset` stores from
// column i * width - (offset + i * width) % sector on, up to where the next strip begins.
struct RollingStrips {
  int n;      // columns that a strip computes
  int width;  // columns between two strips, whole sectors
  int lead;   // columns that strip 0 computes before column 0
  int64_t count;
  // `halves`: of the source channels, as in RollingTileRing.
  static RollingStrips Of(int64_t target, int element_bytes, int halves) {
    const int sector = 32 / element_bytes;
    RollingStrips s;
    const bool cut = target % sector != 0;
    // Columns that make up for the lead, where the tail has room for them.
    s.n = !cut || (sector == 16 && halves == 2) ? 128 : 128 + sector;
    // Rows start at multiples of their pitch, so only multiples of this divisor occur.
    s.lead = cut ? sector - static_cast<int>(std::gcd(target, int64_t{sector})) : 0;
    s.width = cut ? (s.n - s.lead) / sector * sector : s.n;
    s.count = std::max<int64_t>(CeilDiv(target + s.lead - s.n, s.width), 0) + 1;
    return s;
  }
};

// One axis of these passes: target t takes tap k's weight times source t + first + (tap's place).
struct RollingAxis {
  int64_t source, target, first;
  int64_t kernel;
  bool reversed;
  RollingAxis(const Axis& axis, Pass pass)
      : source(pass == Pass::kForward ? axis.in : axis.out),
        target(pass == Pass::kForward ? axis.out : axis.in),
        first(pass == Pass::kForward ? axis.crop_lo - (axis.kernel - 1) : -axis.crop_lo),
        kernel(axis.kernel),
        reversed(pass == Pass::kForward) {}
  int64_t TapAt(int64_t place) const { return reversed ? kernel - 1 - place : place; }
};

// First channel of a chunk. The last chunk of a ragged count is moved back, so that all eight
// channels exist; those that the chunk before has too are computed twice and written once.
TRANSCONV_HOST_DEVICE inline int RollingChannel(int channels, int chunk) {
  return 8 * chunk < channels - 8 ? 8 * chunk : channels - 8;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_ROLLING_PLAN_H_
