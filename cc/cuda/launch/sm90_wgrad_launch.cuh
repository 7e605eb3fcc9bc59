// The launches of the Hopper weight-gradient kernel.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_LAUNCH_CUH_

#include "cuda/call.h"
#include "cuda/kernels/sm90_wgrad.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/encode_box.h"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/pack_cells_launch.cuh"
#include "cuda/launch/sm90_wgrad_programme.cuh"

namespace transconv::cuda::sm90_wgrad {

template <typename T, typename Form, bool RUN, int PRODUCTS, bool CELLS>
cudaError_t LaunchKernel(const Call& call, const Programme& g) {
  cudaError_t status = cudaSuccess;
  if constexpr (CELLS) {
    status = LaunchPackCells<T, PRODUCTS>(PackParamsOf(call, g), call.stream);
    if (status != cudaSuccess) return status;
  }
  auto* kernel = WgradKernel<T, Form, RUN, PRODUCTS, CELLS>;
  status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared_bytes);
  if (status != cudaSuccess) return status;
  WgradParams p;
  FillParams(call, g, &p);
  if constexpr (CELLS) {
    if (p.x_packed) status = EncodeBox(BoxesOfX(p, g), &p.x_boxes);
    if (p.dy_packed && status == cudaSuccess) status = EncodeBox(BoxesOfDy(p, g), &p.dy_boxes);
    if (status != cudaSuccess) return status;
  }
  const unsigned grid = static_cast<unsigned>(g.splits * g.units);
  if constexpr (CELLS) {
    status = LaunchBehind(kernel, grid, kThreads, g.shared_bytes, call.stream, p);
  } else {
    kernel<<<grid, kThreads, g.shared_bytes, call.stream>>>(p);
    status = cudaGetLastError();
  }
  if (status != cudaSuccess) return status;

  const SumParams s = SumParamsOf(call, g);
  // Not early: measured, blocks that wait beside the last matrix blocks cost more than a launch.
  SumSlotsKernel<T><<<s.blocks, kSumThreads, 0, call.stream>>>(s);
  return cudaGetLastError();
}

// All forms of one element type and kind of producer; instantiated in files of their own.
template <typename T, bool CELLS>
cudaError_t LaunchForms(const Call& call, const Programme& g) {
  const WgradForm& form = g.plan.form;
  if constexpr (sizeof(T) == 4) {
    if (g.products == 3) {
      if (form.halves == 2) return LaunchKernel<T, Thirds, false, 3, CELLS>(call, g);
      return form.warpgroups == 2 ? LaunchKernel<T, Pair, false, 3, CELLS>(call, g)
                                  : LaunchKernel<T, Single, false, 3, CELLS>(call, g);
    }
  }
  if (form.halves == 2) return LaunchKernel<T, Halves, false, 1, CELLS>(call, g);
  if constexpr (!CELLS) {
    if (form.warpgroups == 2) {
      return g.plan.run ? LaunchKernel<T, Pair, true, 1, false>(call, g)
                        : LaunchKernel<T, Pair, false, 1, false>(call, g);
    }
  }
  return g.plan.run ? LaunchKernel<T, Taps, true, 1, CELLS>(call, g)
                    : LaunchKernel<T, Taps, false, 1, CELLS>(call, g);
}
#define TRANSCONV_DECLARE(T)                                                        \
  extern template cudaError_t LaunchForms<T, false>(const Call&, const Programme&); \
  extern template cudaError_t LaunchForms<T, true>(const Call&, const Programme&);
TRANSCONV_DECLARE(float)
TRANSCONV_DECLARE(__half)
TRANSCONV_DECLARE(__nv_bfloat16)
#undef TRANSCONV_DECLARE

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_WGRAD_LAUNCH_CUH_
