// What the parts of the rolling weight-gradient kernel share: parameters, control words, a block's
// work.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PARAMS_CUH_

#include <cstdint>

#include "core/rolling_plan.h"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

constexpr int kProducerWarps = 4, kConsumerWarps = 12;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = kProducers + 32 * kConsumerWarps;
// Of a thread, with three products.
constexpr int kProducerRegisters = 104, kConsumerRegisters = 136;
static_assert(kProducers * kProducerRegisters + 32 * kConsumerWarps * kConsumerRegisters <= 65536,
              "registers of a multiprocessor");
constexpr int kFlushPixels = 8192;  // between two additions in float32
// Matrix instructions between two additions in float32 of what the high parts of three products
// give. The accumulators cut off: simulated, 4 are 3e-7 of the norm for values of one sign as for
// both signs, 8 are 8e-7 and 3e-7. The rest is 2^-11 of the sum and may be cut off for longer.
constexpr int kPromote = 4;
constexpr int kControlBytes = 512;

struct RollingParams {
  const void* x;
  const void* dy;
  float* slots;               // [split][slot][warpgroup][vertical tap][64 x 64 in register order]
  int64_t x_batch, dy_batch;  // strides in bytes
  uint32_t x_channel, dy_channel;
  uint32_t x_lines, dy_lines;  // whole ones of 256 bytes, of all images
  int items_ahead;             // from an item that is loaded to the one that is asked for, or 0
  int x_h, x_w, dy_h, dy_w;
  int crop_h, crop_w;
  int batch, pairs;
  int in_per_group, out_per_group, passes_w;
  RollingWgradUnits by_unit;
  int units, slots_of_split;
  int strips, shares;
  bool pairs_of_columns;  // rows of 16-bit elements start at whole words
};

// What a block works on: blockIdx.x = split * units + unit, where split = share * strips + strip.
struct Work {
  int in_first, out_first;        // channels
  int in_channels, out_channels;  // that exist from there on
  int tap_row, tap_column;        // the block's first
  int strip, first_step, steps;
  int in_block, out_block;
  int slot;
};

struct Control {
  uint64_t full[kRollingSlots], empty[kRollingSlots];
  int item[kRollingSlots];  // RollingItem::word; the exponent is of x and dy together
  uint32_t exchange[kRollingSlots][2][kProducerWarps];
  uint32_t redo[2][kProducerWarps];
  alignas(16) Work work;  // apart from what is written later
};
static_assert(sizeof(Control) <= kControlBytes, "the rings start behind it");

// Asks for a chunk's rows that lie some items below those of a round, so that they wait in the
// second-level cache: what is in flight in registers is a third of what memory's latency takes. A
// lane asks for one of at most four units of one channel, each of which is at most a line of
// memory. What lies there may be another channel's, which costs no more than the bytes.
template <typename Layout, int kColumns, int kBytes>  // of a unit, of an element
__device__ __forceinline__ void AskAhead(const RollingParams& p, bool is_dy, const char* own,
                                         uint32_t channel, uint32_t row, int lane) {
  lane = ptx::Late(lane);
  const int unit = lane % 4;
  const int down = 2 * p.items_ahead + Layout::UnitRow(unit);
  const char* const at =
      own - lane * (kColumns / 32 * kBytes) + static_cast<int64_t>(lane / 4) * channel +
      static_cast<int64_t>(down) * row + unit % Layout::kGroups * kColumns * kBytes;
  const char* const tensor = static_cast<const char*>(is_dy ? p.dy : p.x);
  const bool exists = static_cast<uint32_t>((at - tensor) >> 8) < (is_dy ? p.dy_lines : p.x_lines);
  ptx::PrefetchIf(at, exists && unit < Layout::kUnits && p.items_ahead > 0);
}

template <int kChannels>  // of a block
__device__ inline Work WorkOf(const RollingParams& p) {
  Work work;
  const int split = static_cast<int>(blockIdx.x) / p.units;
  const RollingWgradUnits::Unit unit = p.by_unit.Of(static_cast<int>(blockIdx.x) % p.units);
  const int in_before = kChannels * unit.in_block, out_before = kChannels * unit.out_block;
  work.in_first = unit.group * p.in_per_group + in_before;
  work.out_first = unit.group * p.out_per_group + out_before;
  work.in_channels = p.in_per_group - in_before;
  work.out_channels = p.out_per_group - out_before;
  work.tap_row = kRollingTaps * (unit.pass / p.passes_w);
  work.tap_column = kRollingTaps * (unit.pass % p.passes_w);
  work.in_block = unit.in_block;
  work.out_block = unit.out_block;
  work.slot = split * p.slots_of_split + p.by_unit.SlotOf(unit);
  work.strip = split % p.strips;
  const int share = split / p.strips;
  const int64_t all = int64_t{p.batch} * p.pairs;
  work.first_step = RollingShare(all, p.shares, share);
  work.steps = RollingShare(all, p.shares, share + 1) - work.first_step;
  return work;
}

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PARAMS_CUH_
