// Host side of the Hopper matrix product for kernels as large as their stride.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_

#include "core/gemm_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_gemm.cuh"
#include "cuda/kernels/sm90_gemm.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/sm90_gemm_call.cuh"

namespace transconv::cuda::sm90_gemm {

template <typename T, int N, int VALUES>
cudaError_t LaunchKernel(const Call& call, const GemmPlan& plan) {
  const GemmPlan g = PlanFor(call, plan);
  if (g.vector < SmallestCopy(g, sizeof(T))) return cudaErrorMisalignedAddress;
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
  const GemmParams p = ParamsOf(call, g);
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
