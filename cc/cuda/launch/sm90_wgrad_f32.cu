// The Hopper weight-gradient kernel in float32, and the algorithm's entry.
#include "cuda/call.h"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/sm90_wgrad_launch.cuh"

namespace transconv::cuda {
namespace sm90_wgrad {

cudaError_t LaunchF32(const Call& call, const Programme& g) {
  return g.products == 3 ? LaunchKernel<float, 1, false, 3, false>(call, g)
                         : LaunchSingle<float, false>(call, g);
}

namespace {

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  return Choose(problem, pass, dtype, false, &g);
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  Programme g{};
  if (Choose(problem, pass, dtype, false, &g) != nullptr) return -1;
  return g.workspace_bytes + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  Programme g{};
  if (Choose(call.problem, call.pass, call.dtype, false, &g) != nullptr)
    return cudaErrorNotSupported;
  const cudaError_t status = call.dtype == DType::kF32 ? LaunchF32(call, g) : Launch16Bit(call, g);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call, static_cast<uint8_t*>(call.workspace) + g.workspace_bytes);
}

}  // namespace
}  // namespace sm90_wgrad

const KernelEntry kCudaSm90WgradEntry = {Algorithm::kCudaSm90Wgrad, sm90_wgrad::Supports,
                                         sm90_wgrad::Workspace, sm90_wgrad::Launch};

}  // namespace transconv::cuda
