// The CUDA side of the three custom calls: check, find the algorithm's entry, launch it.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/algorithms.h"
#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/registry.h"
#include "ffi/attrs.h"
#include "ffi/check.h"
#include "ffi/problem.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace transconv {
namespace {

ffi::Error Launch(Algorithm algorithm, const NamedBuffer& workspace, cuda::Call call) {
  const char* op = OpName(call.pass);
  const cuda::KernelEntry* entry = cuda::FindEntry(algorithm);
  if (entry == nullptr) {
    return BadArgument(
        op, "this module has no algorithm " + std::to_string(static_cast<int32_t>(algorithm)));
  }
  TRANSCONV_RETURN_IF_ERROR(
      CheckWorkspace(op, workspace, entry->workspace(call.pass, call.problem, call.dtype)));
  call.workspace = workspace.buffer.untyped_data();
  if (call.problem.batch == 0) return ffi::Error::Success();
  const cudaError_t status = entry->launch(call);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("jax_transconv.") + op + ": " + cudaGetErrorName(status) +
                              ": " + cudaGetErrorString(status));
}

ffi::Error Forward(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer bias,
                   ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace,
                   GeometryAttrs geometry, Algorithm algorithm) {
  const NamedBuffer vector{"bias", bias};
  cuda::Call call;
  call.pass = Pass::kForward;
  call.stream = stream;
  TRANSCONV_RETURN_IF_ERROR(MakeProblem({call.pass, {"x", x}, {"w", w}, {"y", *y}, &vector},
                                        geometry, &call.problem, &call.dtype));
  call.x = x.untyped_data();
  call.w = w.untyped_data();
  call.y = y->untyped_data();
  call.vector = vector.dim(0) == 0 ? nullptr : bias.untyped_data();
  return Launch(algorithm, {"workspace", *workspace}, call);
}

ffi::Error GradInput(cudaStream_t stream, ffi::AnyBuffer dy, ffi::AnyBuffer w,
                     ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> workspace,
                     GeometryAttrs geometry, Algorithm algorithm) {
  cuda::Call call;
  call.pass = Pass::kGradInput;
  call.stream = stream;
  TRANSCONV_RETURN_IF_ERROR(MakeProblem({call.pass, {"dx", *dx}, {"w", w}, {"dy", dy}}, geometry,
                                        &call.problem, &call.dtype));
  call.x = dx->untyped_data();
  call.w = w.untyped_data();
  call.y = dy.untyped_data();
  return Launch(algorithm, {"workspace", *workspace}, call);
}

ffi::Error GradWeight(cudaStream_t stream, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                      ffi::Result<ffi::AnyBuffer> dw, ffi::Result<ffi::AnyBuffer> db,
                      ffi::Result<ffi::AnyBuffer> workspace, GeometryAttrs geometry,
                      Algorithm algorithm) {
  const NamedBuffer vector{"db", *db};
  cuda::Call call;
  call.pass = Pass::kGradWeight;
  call.stream = stream;
  TRANSCONV_RETURN_IF_ERROR(MakeProblem({call.pass, {"x", x}, {"dw", *dw}, {"dy", dy}, &vector},
                                        geometry, &call.problem, &call.dtype));
  call.x = x.untyped_data();
  call.w = dw->untyped_data();
  call.y = dy.untyped_data();
  call.vector = vector.dim(0) == 0 ? nullptr : db->untyped_data();
  return Launch(algorithm, {"workspace", *workspace}, call);
}

}  // namespace
}  // namespace transconv

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCudaForward, transconv::Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCudaGradInput, transconv::GradInput,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"),
                              {ffi::Traits::kCmdBufferCompatible});

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCudaGradWeight, transconv::GradWeight,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<cudaStream_t>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"),
                              {ffi::Traits::kCmdBufferCompatible});
