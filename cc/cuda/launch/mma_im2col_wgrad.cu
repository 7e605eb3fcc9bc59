// The weight gradient by TF32 products of a shifted image, and the entry of this and of the kernel
// for pixels of 16 bits (mma_im2col_wgrad_pixels.cu).
#include <algorithm>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/im2col_wgrad.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda {
namespace im2col_wgrad {
namespace {

struct Plans {
  Im2colWgradPlan shifted;
  PixelsWgradPlan pixels;  // in its place if there is one and both images are aligned
};

const char* Make(const Problem& q, Pass pass, DType dtype, Plans* plans) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (dtype == DType::kF32 && q.precision > Precision::kDefault)
    return "multiplies float32 once: precision DEFAULT alone";
  plans->shifted = PlanIm2colWgrad(q, static_cast<int64_t>(ByteWidth(dtype)));
  plans->pixels.reason = "takes 16 bits alone";
  if (ByteWidth(dtype) == 2) plans->pixels = PlanPixelsWgrad(q);
  return plans->shifted.reason;
}
constexpr auto Plan = PlanOf<Plans, Make>;

int64_t PartialBytes(const Problem& q, const Plans& plans) {
  int64_t splits = plans.shifted.splits;
  if (plans.pixels.reason == nullptr) splits = std::max(splits, plans.pixels.splits);
  const int64_t bytes = 4 * splits * q.in_channels * q.out_per_group() * q.taps();
  return CeilDiv(bytes, 256) * 256;
}

template <typename T, int FM, int FN>
cudaError_t LaunchFragments(const Call& call, const Im2colWgradPlan& plan) {
  using E = tf32::Element<T>;
  auto* kernel = WgradKernel<E, FM, FN>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
  if (status != cudaSuccess) return status;
  kernel<<<static_cast<unsigned>(plan.blocks * plan.splits), kThreads, plan.shared_bytes,
           call.stream>>>(static_cast<const typename E::Type*>(call.x),
                          static_cast<const typename E::Type*>(call.y),
                          static_cast<float*>(call.workspace), MakeParams(call.problem, plan));
  return cudaGetLastError();
}

template <typename T, int FM>
cudaError_t LaunchRows(const Call& call, const Im2colWgradPlan& plan) {
  switch (plan.fragments_n) {
    case 1:
      return LaunchFragments<T, FM, 1>(call, plan);
    case 2:
      return LaunchFragments<T, FM, 2>(call, plan);
    default:
      return LaunchFragments<T, FM, 4>(call, plan);
  }
}

template <typename T>
cudaError_t LaunchSums(const Call& call, int64_t splits) {
  const Problem& q = call.problem;
  return LaunchSumSplits<T>(static_cast<const float*>(call.workspace), call.w,
                            q.in_channels * q.out_per_group() * q.taps(), splits, call.stream);
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Plans& plans) {
  if constexpr (sizeof(T) == 2) {
    const PixelsWgradPlan& pixels = plans.pixels;
    if (pixels.reason == nullptr && im2col::IsAligned(call.x, 16) &&
        im2col::IsAligned(call.y, pixels.vector)) {
      const cudaError_t status = im2col::LaunchPixelsWgrad(call, pixels);
      return status != cudaSuccess ? status : LaunchSums<T>(call, pixels.splits);
    }
  }
  Im2colWgradPlan plan = plans.shifted;
  // A slice of a buffer may start anywhere. Without vectors the plan has the same splits.
  const auto aligned = [](const void* image, const Im2colLines& lines) {
    return im2col::IsAligned(image, lines.box.vector * sizeof(T));
  };
  if (!aligned(call.x, plan.x) || !aligned(call.y, plan.dy)) {
    Im2colWgradLimits limits;
    limits.most_vector = 1;
    plan = PlanIm2colWgrad(call.problem, sizeof(T), limits);
    if (plan.reason != nullptr) return cudaErrorMisalignedAddress;
  }
  cudaError_t status = cudaErrorInvalidValue;
  switch (plan.fragments_m) {
    case 2:
      status = LaunchRows<T, 2>(call, plan);
      break;
    case 3:
      status = LaunchRows<T, 3>(call, plan);
      break;
    case 4:
      status = LaunchRows<T, 4>(call, plan);
      break;
    default:
      break;
  }
  return status != cudaSuccess ? status : LaunchSums<T>(call, plan.splits);
}

cudaError_t LaunchWeight(const Call& call, const Plans& plans) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchType<__half>(call, plans);
    case DType::kBF16:
      return LaunchType<__nv_bfloat16>(call, plans);
    case DType::kF32:
      return LaunchType<float>(call, plans);
    default:
      return cudaErrorNotSupported;
  }
}

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  return PartialBytes(problem, planned->plan) + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const cudaError_t status = LaunchWeight(call, planned->plan);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(
      call, static_cast<uint8_t*>(call.workspace) + PartialBytes(call.problem, planned->plan));
}

}  // namespace
}  // namespace im2col_wgrad

const KernelEntry kCudaMmaIm2colWgradEntry = {Algorithm::kCudaMmaIm2colWgrad,
                                              im2col_wgrad::Supports, im2col_wgrad::Workspace,
                                              im2col_wgrad::Launch};

}  // namespace transconv::cuda
