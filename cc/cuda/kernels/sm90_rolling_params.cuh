// What the parts of the rolling forward pass and gradient of x share: parameters, control words,
// and a block's work.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_ROLLING_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_ROLLING_PARAMS_CUH_

#include <cstdint>

#include "core/rolling_plan.h"

namespace transconv::cuda::sm90_rolling {

constexpr int kProducerWarps = 8, kConsumerWarps = 8;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = kProducers + 32 * kConsumerWarps;
constexpr int kZeroItems = 8;  // how often an item that scaled to zeros is looked at again
// Units that a warp loads ahead, where there is memory.
template <int PRODUCTS>
constexpr int kAhead = PRODUCTS == 3 ? 4 : 6;
// Registers of a thread with three products, which need partial sums.
constexpr int kProducerRegisters = 80, kConsumerRegisters = 176;
// Chunks of cells in a row: with three products the low parts follow the high ones.
template <int HALVES, int PRODUCTS>
constexpr int kCellChunks = 4 * HALVES * (PRODUCTS == 3 ? 2 : 1);
constexpr int kControlBytes = 512;

struct RollingParams {
  const void* source;
  void* target;
  const void* bias;        // null if there is none
  const uint8_t* weights;  // packed: [group][m block][slab][tap][64 x 16], as in PackedTap
  const float* scales;     // float32: what a packed weight unit of each target channel is worth
  int64_t source_batch;    // strides in bytes
  uint32_t source_channel;
  int64_t target_batch, target_channel;  // strides in elements
  int source_h, source_w, target_h, target_w;
  int first_row, first_column;  // of the source, for target (0, 0)
  int batch, pairs;             // pairs of target rows
  int groups, k_per_group, m_per_group, m_blocks;
  bool stacked;        // as in RollingTaps
  int rows_h, taps_w;  // of packed taps
  int chunk_taps;      // three products: taps of one partial sum
  int strips, shares, strip, lead;
  int columns;  // cells of a source row
  int skew;     // of those, how many precede the first that a target needs
  int weight_bytes, ring_at, staging_at, staging_pitch;
  bool even;   // as StripRow's pairs
  int raw_at;  // of what is loaded ahead; 0: nothing is
};

// What a block works on: blockIdx.x = (share * strips + strip) * units + unit.
struct Work {
  int group, m_block;
  int strip, column;  // first target column; negative where strips are cut
  int first_step, steps;
};

struct Control {
  uint64_t full[kRollingSlots], empty[kRollingSlots], weights;
  uint64_t turn[2];         // of a warpgroup, to multiply
  int item[kRollingSlots];  // RollingItem::word
  uint32_t exchange[kRollingSlots][kProducerWarps];
  uint32_t redo[kProducerWarps];
  alignas(16) Work work;  // apart from what is written later
};
static_assert(sizeof(Control) <= kControlBytes, "weights start behind it");

__device__ inline Work WorkOf(const RollingParams& p) {
  Work work;
  const int units = p.groups * p.m_blocks;
  const int unit = static_cast<int>(blockIdx.x) % units;
  const int split = static_cast<int>(blockIdx.x) / units;
  work.group = unit / p.m_blocks;
  work.m_block = unit % p.m_blocks;
  work.strip = split % p.strips;
  work.column = work.strip * p.strip - p.lead;
  const int share = split / p.strips;
  const int64_t all = int64_t{p.batch} * p.pairs;
  work.first_step = RollingShare(all, p.shares, share);
  work.steps = RollingShare(all, p.shares, share + 1) - work.first_step;
  return work;
}

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_ROLLING_PARAMS_CUH_
