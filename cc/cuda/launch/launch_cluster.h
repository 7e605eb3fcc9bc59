// Launches a kernel whose blocks are clusters, or are not: `cluster` is 1 then.
#ifndef TRANSCONV_CUDA_LAUNCH_LAUNCH_CLUSTER_H_
#define TRANSCONV_CUDA_LAUNCH_LAUNCH_CLUSTER_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace transconv::cuda {

template <typename Params>
cudaError_t LaunchCluster(void (*kernel)(Params), dim3 grid, unsigned threads, size_t shared,
                          cudaStream_t stream, const Params& params, unsigned cluster) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_LAUNCH_CLUSTER_H_
