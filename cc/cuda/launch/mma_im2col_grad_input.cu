// The input gradient by im2col for every type.
#include "cuda/kernels/im2col_grad_input.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda::im2col {
namespace {

template <typename T, int MF, int NF>
cudaError_t LaunchFragments(const Call& call, const Im2colPlan& plan) {
  using E = tf32::Element<T>;
  using Type = typename E::Type;
  auto* kernel = GradInputKernel<E, MF, NF>;
  const int64_t each = call.problem.groups * plan.n_blocks;
  unsigned blocks = 0;
  const cudaError_t status = GridOf(kernel, plan.shared_bytes, each * plan.tiles, &blocks);
  if (status != cudaSuccess) return status;
  const GradInputParams p =
      MakeGradInputParams(call.problem, plan, IsAligned(call.x, 2 * sizeof(Type)), blocks);
  kernel<<<static_cast<unsigned>(p.streams * each), kBoxThreads, plan.shared_bytes, call.stream>>>(
      static_cast<const Type*>(call.y), static_cast<const Type*>(call.w),
      static_cast<Type*>(call.x), p);
  return cudaGetLastError();
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Im2colPlan& plan) {
  switch (plan.n_frags) {
    case 1:
      return LaunchFragments<T, 4, 1>(call, plan);
    case 2:
      return LaunchFragments<T, 2, 2>(call, plan);
    case 4:
      return LaunchFragments<T, 2, 4>(call, plan);
    default:
      return LaunchFragments<T, 2, 8>(call, plan);
  }
}

// `plan` is one for aligned sources.
template <typename T>
cudaError_t LaunchSource(const Call& call, const Im2colPlan& plan) {
  const Im2colLimits limits = LimitsFor<T>(call.y);
  if (limits.most_vector == Im2colLimits().most_vector) return LaunchType<T>(call, plan);
  const Im2colPlan other = PlanIm2colGradInput(call.problem, sizeof(T), limits);
  return other.reason == nullptr ? LaunchType<T>(call, other) : cudaErrorMisalignedAddress;
}

}  // namespace

cudaError_t LaunchGradInput(const Call& call, const Im2colPlan& plan) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchSource<__half>(call, plan);
    case DType::kBF16:
      return LaunchSource<__nv_bfloat16>(call, plan);
    case DType::kF32:
      return LaunchSource<float>(call, plan);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace transconv::cuda::im2col
