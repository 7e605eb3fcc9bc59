// The entry of the im2col kernels.
#include "core/im2col_forward_plan.h"
#include "core/im2col_plan.h"
#include "core/plans.h"
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

// The kernels for pixels of 16 bits take the others' place where they have a plan and both images
// are aligned.
struct ForwardPlans {
  Im2colForwardPlan columns;
  PixelsForwardPlan pixels;
};
struct GradInputPlans {
  Im2colPlan shifted;
  PixelsInputPlan pixels;
};

const char* MakeForward(const Problem& problem, Pass pass, DType dtype, ForwardPlans* plans) {
  if (const char* reason = Refuses(pass, problem, dtype)) return reason;
  plans->columns = PlanIm2colForward(problem, static_cast<int>(ByteWidth(dtype)));
  plans->pixels.reason = "takes 16 bits alone";
  if (ByteWidth(dtype) == 2) plans->pixels = PlanPixelsForward(problem);
  return plans->columns.reason;
}
const char* MakeGradInput(const Problem& problem, Pass pass, DType dtype, GradInputPlans* plans) {
  if (const char* reason = Refuses(pass, problem, dtype)) return reason;
  plans->shifted = PlanIm2colGradInput(problem, static_cast<int>(ByteWidth(dtype)));
  plans->pixels.reason = "takes 16 bits alone";
  if (ByteWidth(dtype) == 2) plans->pixels = PlanPixelsInput(problem);
  return plans->shifted.reason;
}
constexpr auto ForwardPlan = PlanOf<ForwardPlans, MakeForward>;
constexpr auto GradInputPlan = PlanOf<GradInputPlans, MakeGradInput>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return pass == Pass::kForward ? ForwardPlan(pass, problem, dtype)->reason
                                : GradInputPlan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass, const Problem&, DType) { return 0; }

cudaError_t Launch(const Call& call) {
  if (call.pass == Pass::kForward) {
    const auto planned = ForwardPlan(call.pass, call.problem, call.dtype);
    if (planned->reason != nullptr) return cudaErrorNotSupported;
    const PixelsForwardPlan& pixels = planned->plan.pixels;
    if (pixels.reason == nullptr && IsAligned(call.x, 16)) return LaunchForwardPixels(call, pixels);
    return LaunchForward(call, planned->plan.columns);
  }
  const auto planned = GradInputPlan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const PixelsInputPlan& pixels = planned->plan.pixels;
  if (pixels.reason == nullptr && IsAligned(call.x, 16) && IsAligned(call.y, pixels.vector)) {
    return LaunchGradInputPixels(call, pixels);
  }
  return LaunchGradInput(call, planned->plan.shifted);
}

}  // namespace
}  // namespace im2col

const KernelEntry kCudaMmaIm2colEntry = {Algorithm::kCudaMmaIm2col, im2col::Supports,
                                         im2col::Workspace, im2col::Launch};

}  // namespace transconv::cuda
