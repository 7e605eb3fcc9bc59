// The entry of the Hopper matrix product of lines.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_lines.cuh"
#include "cuda/kernels/sm90_lines.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/sm90_lines_call.cuh"

namespace transconv::cuda {
namespace sm90_lines {
namespace {

template <int kVector>
const char* Make(const Problem& q, Pass pass, DType dtype, LinesPlan* plan) {
  return PlanLines(q, pass, dtype, kSm90Blocks, kVector, plan);
}
// Tensors of a call start where they like: what a copy can bring differs, and the window with it. A
// problem needs a plan for each.
std::shared_ptr<const Planned<LinesPlan>> Plan(Pass pass, const Problem& q, DType dtype,
                                               int vector) {
  return vector == 16  ? PlanOf<LinesPlan, Make<16>>(pass, q, dtype)
         : vector == 8 ? PlanOf<LinesPlan, Make<8>>(pass, q, dtype)
                       : PlanOf<LinesPlan, Make<4>>(pass, q, dtype);
}

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  for (const int vector : {16, 8, 4}) {
    if (const char* reason = Plan(pass, problem, dtype, vector)->reason) return reason;
  }
  return nullptr;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  if (Supports(pass, problem, dtype) != nullptr) return -1;
  int64_t bytes = 0;
  for (const int vector : {16, 8, 4}) {
    bytes = std::max(bytes, Plan(pass, problem, dtype, vector)->plan.workspace_bytes);
  }
  return bytes;
}

template <int N, int HALVES, int STEPS, int PRODUCTS>
cudaError_t LaunchKernel(const Call& call, const LinesPlan& g) {
  const PackLinesParams pack = PackParamsOf(call, g);
  PackLinesKernel<STEPS, PRODUCTS><<<PackBlocks(pack), kPackLinesThreads, 0, call.stream>>>(pack);
  cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  int device = 0, multiprocessors = 0;
  if ((status = cudaGetDevice(&device)) != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  auto* kernel = LinesKernel<N, HALVES, STEPS, PRODUCTS>;
  const int shared = g.shared_bytes();
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status != cudaSuccess) return status;
  const LinesParams p = ParamsOf(call, g);
  return LaunchBehind(kernel, Blocks(p, multiprocessors), Threads<LinesCopiers(N, HALVES)>::kAll,
                      static_cast<size_t>(shared), call.stream, p, static_cast<unsigned>(p.splits));
}

template <int N, int HALVES, int PRODUCTS = 1>
cudaError_t LaunchSteps(const Call& call, const LinesPlan& g) {
  return g.steps == 3 ? LaunchKernel<N, HALVES, 3, PRODUCTS>(call, g)
                      : LaunchKernel<N, HALVES, 4, PRODUCTS>(call, g);
}

cudaError_t LaunchPlan(const Call& call, const LinesPlan& g) {
  if (g.products == 3) {
    return g.instruction == 32 ? LaunchSteps<32, 1, 3>(call, g) : LaunchSteps<64, 1, 3>(call, g);
  }
  const bool halves = g.phase[0].halves == 2;
  switch (g.instruction) {
    case 256:
      return LaunchSteps<256, 1>(call, g);
    case 128:
      return halves ? LaunchSteps<128, 2>(call, g) : LaunchSteps<128, 1>(call, g);
    default:
      return halves ? LaunchSteps<64, 2>(call, g) : LaunchSteps<64, 1>(call, g);
  }
}

cudaError_t Launch(const Call& call) {
  const int vector = Aligned(call.pass == Pass::kForward ? call.x : call.y, 16);
  const auto planned = Plan(call.pass, call.problem, call.dtype, vector);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  return LaunchPlan(call, planned->plan);
}

}  // namespace
}  // namespace sm90_lines

const KernelEntry kCudaSm90LinesEntry = {Algorithm::kCudaSm90Lines, sm90_lines::Supports,
                                         sm90_lines::Workspace, sm90_lines::Launch};

}  // namespace transconv::cuda
