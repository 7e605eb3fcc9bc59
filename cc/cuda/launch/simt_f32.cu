// The general kernel in float32, and its entry.
#include "cuda/call.h"
#include "cuda/launch/simt_launch.cuh"

namespace transconv::cuda {
namespace simt {

cudaError_t LaunchF32(const Call& call) { return LaunchPass<float>(call); }

namespace {

const char* Supports(Pass, const Problem&, DType) { return nullptr; }

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  if (pass != Pass::kGradWeight) return 0;
  return grad_bias::WorkspaceBytes(problem, dtype) +
         (dtype == DType::kF64 ? WeightBytes<double>(problem) : WeightBytes<float>(problem));
}

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
}  // namespace simt

const KernelEntry kCudaSimtEntry = {Algorithm::kCudaSimt, simt::Supports, simt::Workspace,
                                    simt::Launch};

}  // namespace transconv::cuda
