// The entry of the im2col kernels.
#include "core/im2col_forward_plan.h"
#include "core/im2col_plan.h"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda {
namespace im2col {
namespace {

// Why the kernels are none for a call, whatever its sizes, or null.
const char* Refuses(Pass pass, const Problem& problem, DType dtype) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (ProductsOf(problem, dtype) != 1) return "multiplies float32 once: precision DEFAULT alone";
  return nullptr;
}

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  if (const char* reason = Refuses(pass, problem, dtype)) return reason;
  const int element = static_cast<int>(ByteWidth(dtype));
  return pass == Pass::kForward ? PlanIm2colForward(problem, element).reason
                                : PlanIm2colGradInput(problem, element).reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  if (Refuses(call.pass, call.problem, call.dtype) != nullptr) return cudaErrorNotSupported;
  return call.pass == Pass::kForward ? LaunchForward(call) : LaunchGradInput(call);
}

}  // namespace
}  // namespace im2col

const KernelEntry kCudaMmaIm2colEntry = {Algorithm::kCudaMmaIm2col, im2col::Supports,
                                         im2col::Workspace, im2col::Launch};

}  // namespace transconv::cuda
