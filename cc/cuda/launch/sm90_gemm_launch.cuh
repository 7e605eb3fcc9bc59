// Host side of the Hopper matrix product for kernels as large as their stride.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_GEMM_LAUNCH_CUH_

#include "core/gemm_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_gemm.cuh"
#include "cuda/kernels/sm90_gemm.cuh"
#include "cuda/launch/encode_box.h"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/launch_cluster.h"
#include "cuda/launch/sm90_gemm_call.cuh"

namespace transconv::cuda::sm90_gemm {

template <typename T, int N, int VALUES, bool ROWS>
cudaError_t LaunchKernel(const Call& call, const GemmPlan& plan) {
  const GemmPlan g = PlanFor(call, plan);
  if (g.vector < SmallestCopy(g, sizeof(T))) return cudaErrorMisalignedAddress;
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  auto* kernel = GemmKernel<T, N, VALUES, ROWS>;
  const int shared = SharedBytes(g);
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status != cudaSuccess) return status;
  GemmParams p = ParamsOf(call, g);
  const unsigned blocks = Blocks(p, multiprocessors), cluster = static_cast<unsigned>(p.splits);
  if constexpr (sizeof(T) == 2) {
    const void* weights = call.w;
    if (Aligned(weights, 16) < 16) {  // a slice of a buffer
      weights = call.workspace;
      status = cudaMemcpyAsync(call.workspace, call.w, static_cast<size_t>(g.weight_bytes),
                               cudaMemcpyDeviceToDevice, call.stream);
      if (status != cudaSuccess) return status;
    }
    status = EncodeBox(WeightBoxesOf(call, g, weights), &p.weight_boxes);
    if (status != cudaSuccess) return status;
    return LaunchCluster(kernel, blocks, kThreads, static_cast<size_t>(shared), call.stream, p,
                         cluster);
  } else {
    PackGemmKernel<VALUES>
        <<<PackBlocks(g), kPackGemmThreads, 0, call.stream>>>(PackParamsOf(call, g));
    if ((status = cudaGetLastError()) != cudaSuccess) return status;
    return LaunchBehind(kernel, blocks, kThreads, static_cast<size_t>(shared), call.stream, p,
                        cluster);
  }
}

template <typename T, int VALUES, bool ROWS = false>
cudaError_t LaunchTiles(const Call& call, const GemmPlan& g) {
  switch (g.tile_columns) {
    case 256:
      return LaunchKernel<T, 256, VALUES, ROWS>(call, g);
    case 192:
      return LaunchKernel<T, 192, VALUES, ROWS>(call, g);
    case 128:
      return LaunchKernel<T, 128, VALUES, ROWS>(call, g);
    default:
      return LaunchKernel<T, 64, VALUES, ROWS>(call, g);
  }
}
template <typename T>
cudaError_t LaunchValues(const Call& call, const GemmPlan& g) {
  if constexpr (sizeof(T) == 2) {
    if (call.pass == Pass::kForward) return LaunchTiles<T, 1, true>(call, g);
  }
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
