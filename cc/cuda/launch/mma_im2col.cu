// The entry of the im2col kernels.
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda {
namespace im2col {
namespace {

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  if (pass != Pass::kGradInput) return "computes the input gradient alone";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (ProductsOf(problem, dtype) != 1) {
    return "multiplies float32 once: precision DEFAULT alone";
  }
  return PlanIm2colGradInput(problem, static_cast<int>(ByteWidth(dtype))).reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  if (Supports(call.pass, call.problem, call.dtype) != nullptr) return cudaErrorNotSupported;
  return LaunchGradInput(call);
}

}  // namespace
}  // namespace im2col

const KernelEntry kCudaMmaIm2colEntry = {Algorithm::kCudaMmaIm2col, im2col::Supports,
                                         im2col::Workspace, im2col::Launch};

}  // namespace transconv::cuda
