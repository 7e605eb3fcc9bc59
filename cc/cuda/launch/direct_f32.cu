// The direct kernel in float32, and its entry.
#include "cuda/call.h"
#include "cuda/launch/direct_launch.cuh"

namespace transconv::cuda {
namespace direct {

cudaError_t LaunchF32(const Call& call) { return LaunchDirect<float>(call); }

namespace {

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return PlanDirect(pass, problem, dtype == DType::kF64 ? 8 : 4).reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchF16(call);
    case DType::kBF16:
      return LaunchBF16(call);
    case DType::kF32:
      return LaunchF32(call);
    case DType::kF64:
      return LaunchF64(call);
  }
  return cudaErrorInvalidValue;
}

}  // namespace
}  // namespace direct

const KernelEntry kCudaDirectEntry = {Algorithm::kCudaDirect, direct::Supports, direct::Workspace,
                                      direct::Launch};

}  // namespace transconv::cuda
