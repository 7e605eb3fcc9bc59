// float64 on tensor cores, and its entry.
#include "cuda/call.h"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/mma_f64_call.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda {
namespace mma_f64 {
namespace {

template <typename Params>
cudaError_t LaunchKernel(void (*kernel)(Params), const Params& p, int blocks, int shared_bytes,
                         cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(shared_bytes), stream>>>(p);
  return cudaGetLastError();
}

template <typename Tile, Pass kPass>
cudaError_t LaunchTile(const Call& call, const GatherParams& p) {
  const int blocks = static_cast<int>(GatherGrid(kPass, call.problem).blocks().value());
  return LaunchKernel(GatherKernel<Tile, kPass>, p, blocks, kGatherBytes<Tile>, call.stream);
}

template <Pass kPass>
cudaError_t LaunchGather(const Call& call) {
  const GatherParams p = GatherParamsOf(call);
  return WithTile(p.per_group,
                  [&](auto tile) { return LaunchTile<decltype(tile), kPass>(call, p); });
}

cudaError_t LaunchWgrad(const Call& call) {
  int splits = 0;
  const WgradParams p = WgradParamsOf(call, &splits);
  cudaError_t status =
      LaunchKernel(WgradKernel, p, WgradBlocks(p, splits), kWgradBytes, call.stream);
  if (status == cudaSuccess && splits > 1) {
    status = LaunchSumSplits<double>(p.partial, call.w, p.size, splits, call.stream);
  }
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call,
                           static_cast<uint8_t*>(call.workspace) + PartialBytes(call.problem));
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  if (Unsupported(pass, problem, dtype) != nullptr) return -1;
  if (pass != Pass::kGradWeight) return 0;
  return PartialBytes(problem) + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  if (Unsupported(call.pass, call.problem, call.dtype) != nullptr) return cudaErrorNotSupported;
  switch (call.pass) {
    case Pass::kForward:
      return LaunchGather<Pass::kForward>(call);
    case Pass::kGradInput:
      return LaunchGather<Pass::kGradInput>(call);
    case Pass::kGradWeight:
      return LaunchWgrad(call);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace mma_f64

const KernelEntry kCudaMmaF64Entry = {Algorithm::kCudaMmaF64, mma_f64::Unsupported,
                                      mma_f64::Workspace, mma_f64::Launch};

}  // namespace transconv::cuda
