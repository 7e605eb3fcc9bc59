// Grids of the general kernel, for one element type; instantiated in simt_{f32,f64,16bit}.cu.
#ifndef TRANSCONV_CUDA_LAUNCH_SIMT_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SIMT_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/kernels/simt.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda::simt {

// Tiles by the number of channels that a group offers to the rows.
using WideTile = TileShape<64, 64, 16, 4, 4>;
using NarrowTile = TileShape<16, 256, 8, 4, 4>;
using ThinTile = TileShape<4, 512, 8, 4, 2>;

// A whole machine is a few hundred blocks; more blocks than this walk the tiles in a loop.
constexpr int64_t kMaxBlocks = int64_t{1} << 30;
constexpr int64_t kTargetBlocks = 1024;  // splits make at least this many, if there is work
constexpr int64_t kMinPositions = 1024;  // summed by one split, at the least
constexpr int64_t kFewPairs = 16;        // channel pairs a group below which tiles are waste

inline unsigned Blocks(int64_t tiles) {
  return static_cast<unsigned>(std::clamp<int64_t>(tiles, 1, kMaxBlocks));
}

struct Split {
  int64_t splits, per_split;
};

// Depends on the problem alone: results are the same on every device.
inline Split SplitSum(int64_t positions, int64_t tiles) {
  const int64_t wanted = CeilDiv(kTargetBlocks, std::max<int64_t>(tiles, 1));
  const int64_t most = CeilDiv(positions, kMinPositions);
  const int64_t splits = std::clamp<int64_t>(std::min(wanted, most), 1, 65536);
  const int64_t per_split = CeilDiv(std::max<int64_t>(positions, 1), splits);
  return {CeilDiv(std::max<int64_t>(positions, 1), per_split), per_split};
}

inline bool FewPairs(const Problem& q) { return q.in_per_group() * q.out_per_group() <= kFewPairs; }

inline ReduceParams WeightPlan(const Problem& q) {
  const int64_t pairs = q.in_channels * q.out_per_group();
  ReduceParams p{q,
                 ImageStrides(q.layout, q.in_channels, q.h.in, q.w.in),
                 ImageStrides(q.layout, q.out_channels, q.h.out, q.w.out),
                 CeilDiv(q.in_per_group(), WideTile::TM),
                 CeilDiv(q.out_per_group(), WideTile::TN),
                 0,
                 q.batch * q.h.in * q.w.in,
                 1,
                 1};
  const int64_t tiles = (FewPairs(q) ? pairs : p.tiles_m * p.tiles_n * q.groups) * q.taps();
  const Split split = SplitSum(p.positions, tiles);
  p.splits = split.splits;
  p.per_split = split.per_split;
  p.tiles = tiles * split.splits;
  return p;
}

// Partial sums of dw, in the accumulator's type.
template <typename T>
int64_t WeightBytes(const Problem& q) {
  return WeightPlan(q).splits * q.in_channels * q.out_per_group() * q.taps() *
         static_cast<int64_t>(sizeof(typename Accumulator<T>::type));
}

template <typename T, typename Tile, Pass kPass>
cudaError_t LaunchGather(const Call& call) {
  constexpr bool kForward = kPass == Pass::kForward;
  const Problem& q = call.problem;
  const ImageStrides x(q.layout, q.in_channels, q.h.in, q.w.in);
  const ImageStrides y(q.layout, q.out_channels, q.h.out, q.w.out);
  const int64_t m = kForward ? q.out_per_group() : q.in_per_group();
  const int64_t columns =
      q.batch *
      (kForward ? CeilDiv(q.h.out, q.h.stride) * CeilDiv(q.w.out, q.w.stride) : q.h.in * q.w.in);
  const int64_t residues = kForward ? q.h.stride * q.w.stride : 1;
  GatherParams p{
      q, kForward ? x : y, kForward ? y : x, CeilDiv(m, Tile::TM), CeilDiv(columns, Tile::TN), 0};
  p.tiles = p.tiles_m * p.tiles_n * q.groups * residues;
  GatherKernel<T, Tile, kPass><<<Blocks(p.tiles), kThreads, 0, call.stream>>>(
      static_cast<const T*>(kForward ? call.x : call.y), static_cast<const T*>(call.w),
      static_cast<const T*>(call.vector), static_cast<T*>(kForward ? call.y : call.x), p);
  return cudaGetLastError();
}

template <typename T, Pass kPass>
cudaError_t LaunchGatherByTile(const Call& call) {
  const Problem& q = call.problem;
  const int64_t m = kPass == Pass::kForward ? q.out_per_group() : q.in_per_group();
  if (m <= ThinTile::TM) return LaunchGather<T, ThinTile, kPass>(call);
  if (m <= 2 * NarrowTile::TM) return LaunchGather<T, NarrowTile, kPass>(call);
  return LaunchGather<T, WideTile, kPass>(call);
}

template <typename T>
cudaError_t LaunchGradWeight(const Call& call) {
  using A = typename Accumulator<T>::type;
  const Problem& q = call.problem;
  const ReduceParams p = WeightPlan(q);
  const int64_t size = q.in_channels * q.out_per_group() * q.taps();
  const T* x = static_cast<const T*>(call.x);
  const T* dy = static_cast<const T*>(call.y);
  A* partial = static_cast<A*>(call.workspace);
  if (FewPairs(q)) {
    GradWeightPairKernel<T><<<Blocks(p.tiles), kThreads, 0, call.stream>>>(x, dy, partial, p);
  } else {
    GradWeightKernel<T, WideTile><<<Blocks(p.tiles), kThreads, 0, call.stream>>>(x, dy, partial, p);
  }
  cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  status = LaunchSumSplits<T>(partial, call.w, size, p.splits, call.stream);
  if (status != cudaSuccess || call.vector == nullptr) return status;

  return grad_bias::Launch(call, static_cast<uint8_t*>(call.workspace) + WeightBytes<T>(q));
}

template <typename T>
cudaError_t LaunchPass(const Call& call) {
  switch (call.pass) {
    case Pass::kForward:
      return LaunchGatherByTile<T, Pass::kForward>(call);
    case Pass::kGradInput:
      return LaunchGatherByTile<T, Pass::kGradInput>(call);
    case Pass::kGradWeight:
      return LaunchGradWeight<T>(call);
  }
  return cudaErrorInvalidValue;
}

// One per element type, each in a file of its own so that they compile side by side.
cudaError_t LaunchF16(const Call& call);
cudaError_t LaunchBF16(const Call& call);
cudaError_t LaunchF32(const Call& call);
cudaError_t LaunchF64(const Call& call);

}  // namespace transconv::cuda::simt

#endif  // TRANSCONV_CUDA_LAUNCH_SIMT_LAUNCH_CUH_
