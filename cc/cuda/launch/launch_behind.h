// Launches a kernel that may start before the one in front of it in the stream has ended, so that
// launching it and what it does on its own cost no time (programmatic dependent launch, cards from
// 9.0 on). The kernel calls ptx::WaitForKernelsBefore before it touches what the one in front
// writes, and the one in front calls ptx::LetKernelBehindStart.
//
// What a kernel reads before that wait has to be complete when the one in front starts. So a kernel
// that lets the next one start before it has waited itself is launched as usual, never by this: the
// kernels that pack weights, behind which images are read at once.
#ifndef TRANSCONV_CUDA_LAUNCH_LAUNCH_BEHIND_H_
#define TRANSCONV_CUDA_LAUNCH_LAUNCH_BEHIND_H_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace transconv::cuda {

template <typename Params>
cudaError_t LaunchBehind(void (*kernel)(Params), dim3 grid, unsigned threads, size_t shared,
                         cudaStream_t stream, const Params& params, unsigned cluster = 1) {
  // Captured into a graph, kernels keep to the edges that every version of CUDA knows.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const cudaError_t status = cudaStreamIsCapturing(stream, &capture);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  if (capture == cudaStreamCaptureStatusNone) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_LAUNCH_BEHIND_H_
