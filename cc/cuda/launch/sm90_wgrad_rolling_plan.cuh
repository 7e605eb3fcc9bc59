// The programme of a rolling weight gradient: strips, shares of steps, and what its two kernels are
// told. No CUDA runtime, so that a test can run them on a CPU.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_PLAN_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_PLAN_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/dtypes.h"
#include "core/geometry.h"
#include "core/rolling_plan.h"
#include "core/wgrad_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_wgrad_rolling_params.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_wgrad_rolling {

constexpr int64_t kSlotBytes = 4 * 64 * 64;  // of one tap
constexpr int64_t kMaxWorkspace = int64_t{256} << 20;
constexpr int kItemsAhead = 1;
constexpr int kMaxPasses = kWgradMaxPlaces / (kRollingTaps * kRollingTaps);

struct Programme {
  int products;
  int columns, in_halves, out_halves;
  int passes_h, passes_w;
  RollingWgradUnits by_unit;
  int units, slots;  // the second of one split of the sums
  int pairs, strips, shares;
  int64_t workspace_bytes;

  unsigned blocks() const { return static_cast<unsigned>(units * strips * shares); }
};

// The programme of a problem; returns why there is none, or null.
inline const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* result) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (const char* reason = CannotRoll(q, dtype)) return reason;
  if (std::min(q.in_per_group(), q.out_per_group()) < 8) return "needs 8 channels a group";
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  Programme g;
  const int64_t pairs = CeilDiv(q.h.in, 2), steps = q.batch * pairs;
  const int64_t passes_h = CeilDiv(q.h.kernel, kRollingTaps);
  const int64_t passes_w = CeilDiv(q.w.kernel, kRollingTaps);
  if (passes_h > kMaxPasses || passes_w > kMaxPasses || passes_h * passes_w > kMaxPasses) {
    return "the kernel is too large for a rolling programme";
  }
  // Narrow strips where wide ones would be empty for a good part.
  const int64_t wide = CeilDiv(q.w.in, 128) * 128, narrow = CeilDiv(q.w.in, 64) * 64;
  g.columns = wide * 8 > narrow * 9 ? 64 : 128;
  const int64_t strips = CeilDiv(q.w.in, g.columns);
  g.products = ProductsOf(q, dtype);
  const bool split = g.products == 3;
  g.in_halves = q.in_per_group() > 32 && !split ? 2 : 1;
  g.out_halves = q.out_per_group() > 32 && !split ? 2 : 1;
  const int channels = split ? RollingSplit::kChannels : 64;  // of a block
  const int64_t in_blocks = CeilDiv(q.in_per_group(), channels);
  const int64_t out_blocks = CeilDiv(q.out_per_group(), channels);
  const int64_t units = q.groups * in_blocks * out_blocks * passes_h * passes_w;
  if (steps > kInt || units > kInt / kSm90Blocks || strips > kInt / kSm90Blocks / units) {
    return "more than 2^31 steps or blocks";
  }
  g.passes_h = static_cast<int>(passes_h);
  g.passes_w = static_cast<int>(passes_w);
  g.by_unit = {static_cast<int>(in_blocks), static_cast<int>(out_blocks),
               static_cast<int>(passes_h * passes_w), split ? 2 : 1};
  g.units = static_cast<int>(units);
  g.slots = g.by_unit.slots(static_cast<int>(q.groups));
  g.pairs = static_cast<int>(pairs);
  g.strips = static_cast<int>(strips);
  g.shares = static_cast<int>(std::clamp<int64_t>(kSm90Blocks / (strips * units), 1, steps));
  g.workspace_bytes = g.slots * strips * g.shares * kRollingTaps * kRollingTaps * kSlotBytes;
  if (g.workspace_bytes > kMaxWorkspace) return "the partial sums would take over 256 MiB";
  *result = g;
  return nullptr;
}

inline RollingParams ParamsOf(const Call& call, const Programme& g) {
  const Problem& q = call.problem;
  const int64_t element = static_cast<int64_t>(ByteWidth(call.dtype));
  RollingParams p{};
  p.x = call.x;
  p.dy = call.y;
  p.slots = static_cast<float*>(call.workspace);
  p.x_channel = static_cast<uint32_t>(q.h.in * q.w.in * element);
  p.dy_channel = static_cast<uint32_t>(q.h.out * q.w.out * element);
  p.x_batch = q.in_channels * p.x_channel;
  p.dy_batch = q.out_channels * p.dy_channel;
  p.x_lines = static_cast<uint32_t>(q.batch * p.x_batch / 256);
  p.dy_lines = static_cast<uint32_t>(q.batch * p.dy_batch / 256);
  p.items_ahead = kItemsAhead;
  p.x_h = static_cast<int>(q.h.in);
  p.x_w = static_cast<int>(q.w.in);
  p.dy_h = static_cast<int>(q.h.out);
  p.dy_w = static_cast<int>(q.w.out);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.batch = static_cast<int>(q.batch);
  p.pairs = g.pairs;
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.passes_w = g.passes_w;
  p.by_unit = g.by_unit;
  p.units = g.units;
  p.slots_of_split = g.slots;
  p.strips = g.strips;
  p.shares = g.shares;
  p.pairs_of_columns = element == 2 && q.w.in % 2 == 0 && q.w.out % 2 == 0 &&
                       Aligned(p.x, 4) == 4 && Aligned(p.dy, 4) == 4;
  return p;
}

// All but the addresses.
inline SumParams SumParamsOf(const Problem& q, const Programme& g) {
  SumParams s{};
  s.in_per_group = static_cast<int>(q.in_per_group());
  s.out_per_group = static_cast<int>(q.out_per_group());
  s.in_blocks = g.by_unit.in_slots();
  s.out_blocks = g.by_unit.out_slots();
  s.passes = g.by_unit.passes;
  s.splits = g.strips * g.shares;
  s.form = WgradForm{kRollingTaps, 1, kRollingTaps};
  s.taps = static_cast<int>(q.taps());
  s.moved_back = true;
  s.count = int64_t{g.slots} * kRollingTaps * kRollingTaps * kSlotBytes / 16;
  for (int pass = 0; pass < s.passes; ++pass) {
    for (int column = 0; column < kRollingTaps; ++column) {
      for (int row = 0; row < kRollingTaps; ++row) {
        const int64_t k = kRollingTaps * (pass / g.passes_w) + row;
        const int64_t l = kRollingTaps * (pass % g.passes_w) + column;
        if (k < q.h.kernel && l < q.w.kernel) {
          s.place[k * q.w.kernel + l] =
              static_cast<int16_t>((pass * kRollingTaps + column) * kRollingTaps + row);
        }
      }
    }
  }
  DealSums(q.groups * s.in_blocks * s.out_blocks, &s);
  return s;
}

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_PLAN_CUH_
