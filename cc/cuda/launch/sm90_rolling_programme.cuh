// What a rolling forward pass or gradient of x does with a problem: strips, shared memory, the
// kernels' parameters.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_PROGRAMME_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_PROGRAMME_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "core/geometry.h"
#include "core/pack_order.h"
#include "core/rolling_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_rolling.cuh"
#include "cuda/launch/packed_weights.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_rolling {

constexpr int kChunkTaps = 4;  // of a partial sum with three products, at most

struct Programme {
  int n, halves, products;
  RollingTaps taps;
  int m_per_group, k_per_group, m_blocks, units;
  int pairs, strips, shares, strip, lead, columns, skew;
  bool even;
  int weight_bytes, ring_at, staging_at, staging_pitch, raw_at, shared_bytes;
  int64_t packed_bytes, workspace_bytes;
};

// The programme of a problem, for a machine that so many blocks fill; returns why there is none, or
// null.
inline const char* ChooseFor(const Problem& q, Pass pass, DType dtype, int blocks,
                             Programme* result) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (const char* reason = CannotRoll(q, dtype)) return reason;
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  Programme g;
  const RollingAxis h(q.h, pass), w(q.w, pass);
  const bool forward = pass == Pass::kForward;
  const int element = static_cast<int>(ByteWidth(dtype));
  const int64_t k = forward ? q.in_per_group() : q.out_per_group();
  const int64_t m = forward ? q.out_per_group() : q.in_per_group();
  if (k % 8 != 0 || k > 64) return "needs a multiple of 8 source channels a group, at most 64";
  g.products = ProductsOf(q, dtype);
  if (g.products == 3 && std::max(k, m) > kStackChannels) {
    return "precision HIGH and HIGHEST need at most 32 channels a group";
  }
  if (q.h.kernel > kRollingTaps) return "needs a kernel of at most 3 rows";
  g.k_per_group = static_cast<int>(k);
  g.m_per_group = static_cast<int>(m);
  g.halves = k > 32 ? 2 : 1;
  const RollingStrips strip = RollingStrips::Of(w.target, element, g.halves);
  g.n = strip.n;
  g.strip = strip.width;
  g.lead = strip.lead;
  const int most =
      128 + (g.halves == 2 ? RollingTileRing<128, 2>::kMaxTail : RollingTileRing<128, 1>::kMaxTail);
  if (q.w.kernel - 1 > most - g.n) return "the kernel is too wide";
  g.columns = g.n + static_cast<int>(q.w.kernel) - 1;
  const int64_t strips = strip.count;
  if (strips * g.n * 2 > w.target * 3) return "rows are too short for its strips";
  const int64_t m_blocks = CeilDiv(m, kPackedRows), units = q.groups * m_blocks;
  const int64_t pairs = CeilDiv(h.target, 2), steps = q.batch * pairs;
  if (steps > kInt || units > kInt / kSm90Blocks || strips > kInt / kSm90Blocks / units) {
    return "more than 2^31 steps or blocks";
  }
  g.m_blocks = static_cast<int>(m_blocks);
  g.units = static_cast<int>(units);
  g.pairs = static_cast<int>(pairs);
  g.strips = static_cast<int>(strips);
  g.shares = static_cast<int>(std::clamp<int64_t>(blocks / (strips * units), 1, steps));

  const auto align = [](int bytes) { return (bytes + 127) / 128 * 128; };
  // Leads and widths of strips are even where rows are.
  g.even = w.target % 2 == 0;
  g.staging_pitch = StagingPitch(g.n, element, g.even && element == 4 && g.products == 1 ? 24 : 12);
  const int staging = kConsumerWarps * 8 * g.staging_pitch * element;
  // Stacked where half of the operand's rows would be empty, and loaded ahead, where that fits.
  const int skew = RollingSkew(w.first - g.lead, w.source, element);
  const bool words = g.halves == 1 && skew >= 0 && g.columns + skew <= most;
  const int raw = kProducerWarps * kCellBytes * (g.products == 3 ? kAhead<3> : kAhead<1>);
  const int tap = g.products == 3 ? PackedTap<true>::kBytes : PackedTap<false>::kBytes;
  const int chunks = g.products == 3 ? kCellChunks<1, 3> : 4 * g.halves;
  g.shared_bytes = kSm90SharedBytes + 1;
  for (const auto& [stacked, ahead] :
       {std::pair{true, true}, {true, false}, {false, true}, {false, false}}) {
    if (stacked && (m > kStackChannels || g.products == 3)) continue;
    if (ahead ? !words : g.products == 3) continue;
    g.taps = {stacked, static_cast<int>(q.h.kernel), static_cast<int>(q.w.kernel)};
    g.skew = ahead ? skew : 0;
    const int item = RollingTilePitch::Of(g.columns + g.skew, chunks).item;
    g.weight_bytes = g.taps.count() * 2 * g.halves * tap;
    g.ring_at = align(kControlBytes + g.weight_bytes);
    g.staging_at = align(g.ring_at + kRollingSlots * item);
    g.raw_at = ahead ? align(g.staging_at + staging) : 0;
    g.shared_bytes = ahead ? g.raw_at + raw : g.staging_at + staging;
    if (g.shared_bytes <= kSm90SharedBytes) break;
  }
  if (g.shared_bytes > kSm90SharedBytes) return "weights and rows exceed shared memory";
  g.columns += g.skew;
  g.packed_bytes = CeilDiv(units * g.weight_bytes, 256) * 256;
  g.workspace_bytes = g.packed_bytes + (dtype == DType::kF32 ? 4 * q.groups * m : 0);
  *result = g;
  return nullptr;
}

inline const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* result) {
  return ChooseFor(q, pass, dtype, kSm90Blocks, result);
}

inline RollingParams ParamsOf(const Call& call, const Programme& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const RollingAxis h(q.h, call.pass), w(q.w, call.pass);
  const int64_t element = static_cast<int64_t>(ByteWidth(call.dtype));
  RollingParams p{};
  p.source = forward ? call.x : call.y;
  p.target = forward ? call.y : call.x;
  p.bias = call.vector;
  p.weights = static_cast<const uint8_t*>(call.workspace);
  p.scales = reinterpret_cast<const float*>(p.weights + g.packed_bytes);
  p.source_channel = static_cast<uint32_t>(h.source * w.source * element);
  p.source_batch = (forward ? q.in_channels : q.out_channels) * p.source_channel;
  p.target_channel = h.target * w.target;
  p.target_batch = (forward ? q.out_channels : q.in_channels) * p.target_channel;
  p.source_h = static_cast<int>(h.source);
  p.source_w = static_cast<int>(w.source);
  p.target_h = static_cast<int>(h.target);
  p.target_w = static_cast<int>(w.target);
  p.first_row = static_cast<int>(h.first);
  // Words cannot be loaded ahead from between two: then single elements are, without the skew.
  const bool ahead = g.raw_at > 0 && Aligned(p.source, 4) == 4;
  const int skew = ahead ? g.skew : 0;
  p.first_column = static_cast<int>(w.first) - skew;
  p.batch = static_cast<int>(q.batch);
  p.pairs = g.pairs;
  p.groups = static_cast<int>(q.groups);
  p.k_per_group = g.k_per_group;
  p.m_per_group = g.m_per_group;
  p.m_blocks = g.m_blocks;
  p.stacked = g.taps.stacked;
  p.rows_h = g.taps.rows();
  p.taps_w = g.taps.w;
  p.chunk_taps = static_cast<int>(CeilDiv(g.taps.w, CeilDiv(g.taps.w, kChunkTaps)));
  p.strips = g.strips;
  p.shares = g.shares;
  p.strip = g.strip;
  p.lead = g.lead;
  p.columns = g.columns - (g.skew - skew);
  p.skew = skew;
  p.weight_bytes = g.weight_bytes;
  p.ring_at = g.ring_at;
  p.staging_at = g.staging_at;
  p.staging_pitch = g.staging_pitch;
  const int pair = 2 * static_cast<int>(element);
  p.even = g.even && Aligned(p.target, pair) == pair;
  p.raw_at = ahead ? g.raw_at : 0;
  return p;
}

inline PackParams PackParamsOf(const Call& call, const Programme& g) {
  const Problem& q = call.problem;
  const RollingAxis h(q.h, call.pass), w(q.w, call.pass);
  PackParams p = WeightsToPack(call, g.packed_bytes);
  p.m_per_group = g.m_per_group;
  p.k_per_group = g.k_per_group;
  p.m_blocks = g.m_blocks;
  p.slabs = 2 * g.halves;
  p.taps = static_cast<int>(q.taps());
  p.packed_taps = g.taps.count();
  p.by_tap = Divider(p.taps);
  p.by_packed_tap = Divider(p.packed_taps);
  const bool twice = g.products == 3 || g.taps.stacked;
  p.block_channels = twice ? kStackChannels : kPackedRows;
  p.stack = g.taps.shift();
  std::fill(p.first_tap + 1, p.first_tap + kMaxResidues + 1, p.packed_taps);
  for (int y = 0; y < q.h.kernel; ++y) {
    for (int x = 0; x < q.w.kernel; ++x) {
      p.tap_kernel[y * q.w.kernel + x] = static_cast<int16_t>(h.TapAt(y) * q.w.kernel + w.TapAt(x));
    }
  }
  return p;
}

// Blocks of the packing kernel and of the rolling one.
inline unsigned PackBlocks(const Programme& g) {
  return static_cast<unsigned>(g.units * kPackedRows);
}
inline unsigned Blocks(const Programme& g) {
  return static_cast<unsigned>(g.units * g.strips * g.shares);
}

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_ROLLING_PROGRAMME_CUH_
