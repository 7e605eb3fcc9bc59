// The CPU side of the three custom calls: check, make a job, run it on XLA's own thread pool.
#include <cstdint>
#include <memory>
#include <utility>

#include "core/algorithms.h"
#include "core/geometry.h"
#include "cpu/launch.h"
#include "cpu/runner.h"
#include "ffi/attrs.h"
#include "ffi/check.h"
#include "ffi/problem.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace transconv {
namespace {

ffi::Future Ready(ffi::Error error = ffi::Error::Success()) {
  ffi::Promise promise;
  ffi::Future future(promise);
  if (error.failure()) {
    promise.SetError(std::move(error));
  } else {
    promise.SetAvailable();
  }
  return future;
}

ffi::Error JobError(bool out_of_memory) {
  return out_of_memory ? ffi::Error(ffi::ErrorCode::kResourceExhausted,
                                    "jax_transconv: out of memory for a thread's scratch")
                       : ffi::Error::Success();
}

// The calling thread works too. What it does not finish completes the future from the pool, so an
// XLA thread never sleeps here.
ffi::Future Launch(ffi::ThreadPool& pool, const NamedBuffer& workspace, cpu::Call call) {
  const char* op = OpName(call.pass);
  ffi::Error error = CheckWorkspace(
      op, workspace, cpu::WorkspaceBytes(call.pass, call.algorithm, call.problem, call.dtype));
  if (error.failure()) return Ready(std::move(error));
  call.workspace = workspace.buffer.untyped_data();
  call.threads = pool.num_threads();

  std::shared_ptr<cpu::Job> job = cpu::MakeJob(call);
  if (job == nullptr) {
    return Ready(BadArgument(op, "this problem is not one for algorithm " +
                                     std::to_string(static_cast<int32_t>(call.algorithm))));
  }
  if (job->workers() <= 1) {
    job->Work();
    return Ready(JobError(job->out_of_memory()));
  }
  ffi::CountDownPromise promise(1);
  ffi::Future future(promise);
  job->OnDone([promise, state = job.get()]() mutable {
    promise.CountDown(JobError(state->out_of_memory()));
  });
  for (int64_t i = 1; i < job->workers(); ++i) {
    pool.Schedule([job] { job->Work(); });
  }
  job->Work();
  return future;
}

ffi::Future Forward(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::AnyBuffer bias,
                    ffi::Result<ffi::AnyBuffer> y, ffi::Result<ffi::AnyBuffer> workspace,
                    GeometryAttrs geometry, Algorithm algorithm) {
  const NamedBuffer vector{"bias", bias};
  cpu::Call call;
  call.pass = Pass::kForward;
  call.algorithm = algorithm;
  ffi::Error error = MakeProblem({call.pass, {"x", x}, {"w", w}, {"y", *y}, &vector}, geometry,
                                 &call.problem, &call.dtype);
  if (error.failure()) return Ready(std::move(error));
  call.x = x.untyped_data();
  call.w = w.untyped_data();
  call.y = y->untyped_data();
  call.vector = vector.dim(0) == 0 ? nullptr : bias.untyped_data();
  return Launch(pool, {"workspace", *workspace}, call);
}

ffi::Future GradInput(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer w,
                      ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> workspace,
                      GeometryAttrs geometry, Algorithm algorithm) {
  cpu::Call call;
  call.pass = Pass::kGradInput;
  call.algorithm = algorithm;
  ffi::Error error = MakeProblem({call.pass, {"dx", *dx}, {"w", w}, {"dy", dy}}, geometry,
                                 &call.problem, &call.dtype);
  if (error.failure()) return Ready(std::move(error));
  call.x = dx->untyped_data();
  call.w = w.untyped_data();
  call.y = dy.untyped_data();
  return Launch(pool, {"workspace", *workspace}, call);
}

ffi::Future GradWeight(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer dy,
                       ffi::Result<ffi::AnyBuffer> dw, ffi::Result<ffi::AnyBuffer> db,
                       ffi::Result<ffi::AnyBuffer> workspace, GeometryAttrs geometry,
                       Algorithm algorithm) {
  const NamedBuffer vector{"db", *db};
  cpu::Call call;
  call.pass = Pass::kGradWeight;
  call.algorithm = algorithm;
  ffi::Error error = MakeProblem({call.pass, {"x", x}, {"dw", *dw}, {"dy", dy}, &vector}, geometry,
                                 &call.problem, &call.dtype);
  if (error.failure()) return Ready(std::move(error));
  call.x = x.untyped_data();
  call.w = dw->untyped_data();
  call.y = dy.untyped_data();
  call.vector = vector.dim(0) == 0 ? nullptr : db->untyped_data();
  return Launch(pool, {"workspace", *workspace}, call);
}

}  // namespace
}  // namespace transconv

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCpuForward, transconv::Forward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCpuGradInput, transconv::GradInput,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(TransconvCpuGradWeight, transconv::GradWeight,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<transconv::GeometryAttrs>("geometry")
                                  .Attr<transconv::Algorithm>("algorithm"));
