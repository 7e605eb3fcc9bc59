// The forward pass by im2col for every type.
#include "cuda/kernels/im2col_forward.cuh"
#include "cuda/launch/mma_im2col_launch.cuh"

namespace transconv::cuda::im2col {
namespace {

template <typename T, int MF, int KS>
cudaError_t LaunchFragments(const Call& call, const Im2colForwardPlan& plan) {
  using E = tf32::Element<T>;
  using Type = typename E::Type;
  auto* kernel = ForwardKernel<E, MF, KS>;
  const Problem& q = call.problem;
  unsigned blocks = 0;
  const cudaError_t status = GridOf(kernel, plan.shared_bytes, q.groups * plan.tiles, &blocks);
  if (status != cudaSuccess) return status;
  const ForwardParams p = MakeForwardParams(q, plan, LimitsFor<T>(call.x).most_vector,
                                            LimitsFor<T>(call.y).most_vector, blocks);
  kernel<<<static_cast<unsigned>(p.streams * q.groups), kBoxThreads, plan.shared_bytes,
           call.stream>>>(static_cast<const Type*>(call.x), static_cast<const Type*>(call.w),
                          static_cast<const Type*>(call.vector), static_cast<Type*>(call.y), p);
  return cudaGetLastError();
}

template <typename T, int KS>
cudaError_t LaunchSteps(const Call& call, const Im2colForwardPlan& plan) {
  if constexpr (KS < 8) {
    if (plan.m_frags == 4) return LaunchFragments<T, 4, KS>(call, plan);
  }
  return LaunchFragments<T, 2, KS>(call, plan);
}

template <typename T>
cudaError_t LaunchType(const Call& call, const Im2colForwardPlan& plan) {
  switch (plan.k_steps) {
    case 1:
      return LaunchSteps<T, 1>(call, plan);
    case 2:
      return LaunchSteps<T, 2>(call, plan);
    case 4:
      return LaunchSteps<T, 4>(call, plan);
    default:
      return LaunchSteps<T, 8>(call, plan);
  }
}

}  // namespace

cudaError_t LaunchForward(const Call& call, const Im2colForwardPlan& plan) {
  switch (call.dtype) {
    case DType::kF16:
      return LaunchType<__half>(call, plan);
    case DType::kBF16:
      return LaunchType<__nv_bfloat16>(call, plan);
    case DType::kF32:
      return LaunchType<float>(call, plan);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace transconv::cuda::im2col
