// The `_cuda` extension module: names and capsules, nothing else.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include "cuda/registry.h"
#include "ffi/module.h"
#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCudaForward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCudaGradInput);
XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCudaGradWeight);

NB_MODULE(_cuda, m) {
  namespace nb = nanobind;
  m.doc() = "CUDA kernels of jax_transconv";
  m.def("registrations", [] {
    nb::dict result;
    result["jax_transconv.forward.v1"] = transconv::Capsule(TransconvCudaForward);
    result["jax_transconv.grad_input.v1"] = transconv::Capsule(TransconvCudaGradInput);
    result["jax_transconv.grad_weight.v1"] = transconv::Capsule(TransconvCudaGradWeight);
    return result;
  });
  m.def("build_info", [] {
    nb::dict result;
    result["cuda_runtime"] = CUDART_VERSION;
    result["architectures"] = TRANSCONV_CUDA_ARCHITECTURES;
    return result;
  });
  transconv::DefineCommon(m, "cuda:", transconv::cuda::WorkspaceBytes, transconv::cuda::Supports);
}
