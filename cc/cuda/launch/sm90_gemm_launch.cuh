// Host side of the Hopper matrix product for kernels as large as their stride.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "core/gemm_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_gemm.cuh"
#include "cuda/kernels/sm90_gemm.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_gemm {

inline PackGemmParams PackParamsOf(const Call& call, const GemmPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int row = static_cast<int>(q.out_channels * q.taps());
  PackGemmParams p{};
  p.weight = call.w;
  p.packed = static_cast<uint8_t*>(call.workspace);
  p.columns = g.columns;
  p.sums = g.lines * g.values;
  p.column_stride = forward ? 1 : row;
  p.sum_stride = forward ? row : 1;
  p.tile_columns = g.tile_columns;
  p.slabs = g.slabs;
  p.values = g.values;
  p.fours = g.fours;
  p.vectors = !forward && row * static_cast<int>(ByteWidth(call.dtype)) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(call.w) % 16 == 0;
  return p;
}
inline unsigned PackBlocks(const GemmPlan& g) {
  return static_cast<unsigned>(g.column_tiles * g.slabs * (g.tile_columns / kPackGemmThreads));
}

inline int StageBytes(const GemmPlan& g) {
  return kGemmLineBytes + g.tile_columns * kGemmSlabBytes;
}
inline int Stages(const GemmPlan& g) {
  return std::min((kSm90SharedBytes - kControlBytes) / StageBytes(g), kMaxStages);
}
inline int SharedBytes(const GemmPlan& g) { return kControlBytes + Stages(g) * StageBytes(g); }

inline GemmParams ParamsOf(const Call& call, const GemmPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int64_t pixels = q.h.in * q.w.in;
  const int width = static_cast<int>(q.w.out);  // of y
  // Of x, a pixel is an element; of y, what its taps reach.
  Pixels x, y;
  x.by_image = y.by_image = Divider(pixels);
  x.by_row = Divider(pixels);
  x.image = q.in_channels * pixels;
  x.row = 0;
  x.column = 1;
  const bool whole = q.h.kernel == 1;
  y.by_row = Divider(whole ? pixels : q.w.in);
  y.image = q.out_channels * q.taps() * pixels;
  y.row = whole ? 0 : static_cast<int>(q.h.kernel) * width;
  y.column = static_cast<int>(q.w.kernel);
  const int64_t y_channel = q.taps() * pixels;

  GemmParams p{};
  p.source = forward ? call.x : call.y;
  p.target = forward ? call.y : call.x;
  p.bias = call.vector;
  p.weights = static_cast<const uint8_t*>(call.workspace);
  p.pixels = static_cast<int>(q.batch * pixels);
  p.from = forward ? x : y;
  p.to = forward ? y : x;
  p.by_line = Divider(forward ? 1 : q.h.kernel);
  p.channel = forward ? pixels : y_channel;
  p.line = forward ? 0 : width;
  p.lines = g.lines;
  p.vector = Aligned(p.source, g.vector);
  p.columns = g.columns;
  p.by_row = Divider(forward ? q.h.kernel : 1);
  p.by_value = Divider(forward ? q.w.kernel : 1);
  p.to_channel = static_cast<int>(forward ? y_channel : pixels);
  p.to_row = forward ? width : 0;
  p.store = g.fours ? 4 : forward && q.w.kernel % 2 == 0 ? 2 : 1;
  p.slabs = g.slabs;
  p.splits = g.splits;
  p.stages = Stages(g);
  p.by_column_tile = Divider(g.column_tiles);
  p.tiles = static_cast<int>(g.tiles());
  return p;
}
inline unsigned Blocks(const GemmParams& p, int multiprocessors) {
  return static_cast<unsigned>(p.splits > 1 ? p.tiles * p.splits
                                            : std::min(multiprocessors, p.tiles));
}

template <typename T, int N, int VALUES>
cudaError_t LaunchKernel(const Call& call, const GemmPlan& g) {
  const GemmParams p = ParamsOf(call, g);
  constexpr int kElement = sizeof(T);
  if (p.vector < std::max(4, VALUES * kElement) ||
      Aligned(p.target, p.store * kElement) < p.store * kElement) {
    return cudaErrorMisalignedAddress;
  }
  PackGemmKernel<T><<<PackBlocks(g), kPackGemmThreads, 0, call.stream>>>(PackParamsOf(call, g));
  cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  int device = 0, multiprocessors = 0;
  if ((status = cudaGetDevice(&device)) != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  auto* kernel = GemmKernel<T, N, VALUES>;
  const int shared = SharedBytes(g);
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status != cudaSuccess) return status;
  return LaunchBehind(kernel, Blocks(p, multiprocessors), kThreads, static_cast<size_t>(shared),
                      call.stream, p, static_cast<unsigned>(p.splits));
}

template <typename T, int VALUES>
cudaError_t LaunchTiles(const Call& call, const GemmPlan& g) {
  switch (g.tile_columns) {
    case 256:
      return LaunchKernel<T, 256, VALUES>(call, g);
    case 128:
      return LaunchKernel<T, 128, VALUES>(call, g);
    default:
      return LaunchKernel<T, 64, VALUES>(call, g);
  }
}
template <typename T>
cudaError_t LaunchValues(const Call& call, const GemmPlan& g) {
  switch (g.values) {
    case 1:
      return LaunchTiles<T, 1>(call, g);
    case 2:
      return LaunchTiles<T, 2>(call, g);
    default:
      return LaunchTiles<T, 4>(call, g);
  }
}
extern template cudaError_t LaunchValues<float>(const Call&, const GemmPlan&);
extern template cudaError_t LaunchValues<__half>(const Call&, const GemmPlan&);
extern template cudaError_t LaunchValues<__nv_bfloat16>(const Call&, const GemmPlan&);

}  // namespace transconv::cuda::sm90_gemm

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_
