// The packed weights of a pass: their size, and what packs them into the start of the workspace. No
// CUDA runtime, so that a test can run it on a CPU.
#ifndef TRANSCONV_CUDA_LAUNCH_PACKED_WEIGHTS_CUH_
#define TRANSCONV_CUDA_LAUNCH_PACKED_WEIGHTS_CUH_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "core/tile_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_weights.cuh"

namespace transconv::cuda {

// The packed weights of a pass, and behind them the scales of float32 channels.
struct PackedWeights {
  int m_per_group = 0, k_per_group = 0, m_blocks = 0, slabs = 0;
  int64_t bytes = 0, scales_bytes = 0;

  PackedWeights() = default;
  PackedWeights(const Problem& q, Pass pass, DType dtype, int taps, int products) {
    const bool forward = pass == Pass::kForward;
    m_per_group = static_cast<int>(forward ? q.out_per_group() : q.in_per_group());
    k_per_group = static_cast<int>(forward ? q.in_per_group() : q.out_per_group());
    m_blocks = static_cast<int>(CeilDiv(m_per_group, 64));
    slabs = static_cast<int>(CeilDiv(k_per_group, 16));
    const auto whole = [](int64_t n) { return CeilDiv(n, int64_t{256}) * 256; };
    bytes = whole(q.groups * m_blocks * slabs * taps * products * int64_t{64 * 16 * 2});
    scales_bytes = dtype == DType::kF32 ? whole(4 * q.groups * m_per_group) : 0;
  }
};

// A pass's weights and where they go, in whatever order: scales lie behind `packed_bytes`.
inline PackParams WeightsToPack(const Call& call, int64_t packed_bytes) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  PackParams p{};
  p.weight = call.w;
  p.packed = static_cast<uint8_t*>(call.workspace);
  p.scales = reinterpret_cast<float*>(p.packed + packed_bytes);
  const int64_t taps = q.taps(), row = q.out_per_group() * taps;
  p.stride_m = forward ? taps : row;
  p.stride_k = forward ? row : taps;
  p.stride_group = q.in_per_group() * row;
  p.groups = static_cast<int>(q.groups);
  return p;
}

inline PackParams PackParamsOf(const Call& call, const TilePlan& plan,
                               const PackedWeights& packed) {
  PackParams p = WeightsToPack(call, packed.bytes);
  p.m_per_group = packed.m_per_group;
  p.k_per_group = packed.k_per_group;
  p.m_blocks = packed.m_blocks;
  p.slabs = packed.slabs;
  p.taps = p.packed_taps = plan.taps;
  p.by_tap = p.by_packed_tap = Divider(plan.taps);
  p.block_channels = kPackedRows;
  std::copy_n(plan.first_tap, kMaxResidues + 1, p.first_tap);
  std::copy_n(plan.tap_kernel, kMaxTileTaps, p.tap_kernel);
  return p;
}
inline unsigned PackBlocks(const Problem& q, const PackedWeights& packed) {
  return static_cast<unsigned>(q.groups * packed.m_blocks * 64);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_PACKED_WEIGHTS_CUH_
