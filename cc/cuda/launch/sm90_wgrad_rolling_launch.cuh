// Host side of the rolling weight gradient: strips, shares of steps, launches.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/geometry.h"
#include "core/rolling_plan.h"
#include "core/wgrad_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/sm90_wgrad_rolling.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_wgrad_rolling {

constexpr int64_t kSlotBytes = 4 * 64 * 64;  // of one tap
constexpr int64_t kMaxWorkspace = int64_t{256} << 20;
constexpr int kMaxPasses = kWgradMaxPlaces / (kRollingTaps * kRollingTaps);

struct Programme {
  int columns, in_halves, out_halves;
  int in_blocks, out_blocks, passes_h, passes_w, units;
  int pairs, strips, shares;
  int64_t workspace_bytes;
  int passes() const { return passes_h * passes_w; }
};

// The programme of a problem; returns why there is none, or null.
inline const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* result) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (const char* reason = CannotRoll(q, dtype)) return reason;
  if (ProductsOf(q, dtype) != 1) return "multiplies float32 once: precision DEFAULT alone";
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
  g.in_halves = q.in_per_group() > 32 ? 2 : 1;
  g.out_halves = q.out_per_group() > 32 ? 2 : 1;
  const int64_t in_blocks = CeilDiv(q.in_per_group(), 64);
  const int64_t out_blocks = CeilDiv(q.out_per_group(), 64);
  const int64_t units = q.groups * in_blocks * out_blocks * passes_h * passes_w;
  if (steps > kInt || units > kInt / kSm90Blocks || strips > kInt / kSm90Blocks / units) {
    return "more than 2^31 steps or blocks";
  }
  g.in_blocks = static_cast<int>(in_blocks);
  g.out_blocks = static_cast<int>(out_blocks);
  g.passes_h = static_cast<int>(passes_h);
  g.passes_w = static_cast<int>(passes_w);
  g.units = static_cast<int>(units);
  g.pairs = static_cast<int>(pairs);
  g.strips = static_cast<int>(strips);
  g.shares = static_cast<int>(std::clamp<int64_t>(kSm90Blocks / (strips * units), 1, steps));
  g.workspace_bytes = units * strips * g.shares * kRollingTaps * kRollingTaps * kSlotBytes;
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
  p.in_blocks = g.in_blocks;
  p.out_blocks = g.out_blocks;
  p.passes_w = g.passes_w;
  p.passes = g.passes();
  p.units = g.units;
  p.strips = g.strips;
  p.shares = g.shares;
  return p;
}

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES>
cudaError_t LaunchKernel(const Call& call, const Programme& g) {
  auto* kernel = RollingWgradKernel<T, COLUMNS, IN_HALVES, OUT_HALVES>;
  constexpr int kShared = kControlBytes + RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES>::kBytes;
  static_assert(kShared <= kSm90SharedBytes, "what one block may have");
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  const unsigned blocks = static_cast<unsigned>(g.units * g.strips * g.shares);
  kernel<<<blocks, kThreads, kShared, call.stream>>>(ParamsOf(call, g));
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchSum(const Call& call, const Programme& g) {
  const Problem& q = call.problem;
  SumParams s{};
  s.slots = static_cast<const float*>(call.workspace);
  s.dw = call.w;
  s.in_per_group = static_cast<int>(q.in_per_group());
  s.out_per_group = static_cast<int>(q.out_per_group());
  s.in_blocks = g.in_blocks;
  s.out_blocks = g.out_blocks;
  s.passes = g.passes();
  s.splits = g.strips * g.shares;
  s.form = WgradForm{kRollingTaps, 1, kRollingTaps};
  s.taps = static_cast<int>(q.taps());
  s.moved_back = true;
  s.count = int64_t{g.units} * kRollingTaps * kRollingTaps * kSlotBytes / 16;
  for (int pass = 0; pass < g.passes(); ++pass) {
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
  const int64_t blocks = q.groups * g.in_blocks * g.out_blocks * int64_t{kSumParts};
  SumSlotsKernel<T><<<static_cast<unsigned>(blocks), kSumThreads, 0, call.stream>>>(s);
  return cudaGetLastError();
}

template <typename T, int COLUMNS>
cudaError_t LaunchColumns(const Call& call, const Programme& g) {
  if (g.in_halves == 2) {
    return g.out_halves == 2 ? LaunchKernel<T, COLUMNS, 2, 2>(call, g)
                             : LaunchKernel<T, COLUMNS, 2, 1>(call, g);
  }
  return g.out_halves == 2 ? LaunchKernel<T, COLUMNS, 1, 2>(call, g)
                           : LaunchKernel<T, COLUMNS, 1, 1>(call, g);
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Programme& g) {
  const cudaError_t status =
      g.columns == 128 ? LaunchColumns<T, 128>(call, g) : LaunchColumns<T, 64>(call, g);
  return status == cudaSuccess ? LaunchSum<T>(call, g) : status;
}

// One per element type, each in a file of its own.
cudaError_t LaunchF32(const Call& call, const Programme& g);
cudaError_t Launch16Bit(const Call& call, const Programme& g);

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_ROLLING_LAUNCH_CUH_
