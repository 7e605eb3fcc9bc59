// Grids of the bias gradient, for every element type.
#include <algorithm>

#include "cuda/kernels/grad_bias.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda::grad_bias {
namespace {

constexpr int64_t kStretch = 16384;  // pixels that one block sums
constexpr int64_t kMaxBlocks = int64_t{1} << 30;

int64_t Stretches(const Problem& q) { return CeilDiv(q.h.out * q.w.out, kStretch); }

template <typename T>
cudaError_t LaunchType(const Call& call, void* workspace) {
  using A = typename Accumulator<T>::type;
  const Problem& q = call.problem;
  const int64_t parts = q.batch * Stretches(q);
  const bool first = q.layout == Layout::kNCHW;
  Params p{call.y,
           workspace,
           q.out_channels,
           q.h.out * q.w.out,
           kStretch,
           Stretches(q),
           parts * (first ? q.out_channels : CeilDiv(q.out_channels, kLanes))};
  const auto blocks = [](int64_t n) {
    return static_cast<unsigned>(std::clamp<int64_t>(n, 1, kMaxBlocks));
  };
  if (first) {
    SumPlaneKernel<T><<<blocks(p.blocks), kThreads, 0, call.stream>>>(p);
  } else {
    SumPixelsKernel<T><<<blocks(p.blocks), kThreads, 0, call.stream>>>(p);
  }
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  return LaunchSumSplits<T>(static_cast<const A*>(workspace), call.vector, q.out_channels, parts,
                            call.stream);
}

}  // namespace

int64_t WorkspaceBytes(const Problem& q, DType dtype) {
  return q.batch * Stretches(q) * q.out_channels * (dtype == DType::kF64 ? 8 : 4);
}

cudaError_t Launch(const Call& call, void* workspace) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchType<__half>(call, workspace);
    case DType::kBF16:
      return LaunchType<__nv_bfloat16>(call, workspace);
    case DType::kF32:
      return LaunchType<float>(call, workspace);
    case DType::kF64:
      return LaunchType<double>(call, workspace);
  }
  return cudaErrorInvalidValue;
}

}  // namespace transconv::cuda::grad_bias
