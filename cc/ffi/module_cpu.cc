// The `_cpu` extension module: names and capsules, nothing else.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "cpu/isa.h"
#include "cpu/launch.h"
#include "ffi/module.h"
#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCpuForward);
XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCpuGradInput);
XLA_FFI_DECLARE_HANDLER_SYMBOL(TransconvCpuGradWeight);

NB_MODULE(_cpu, m) {
  namespace nb = nanobind;
  m.doc() = "CPU kernels of jax_transconv";
  m.def("registrations", [] {
    nb::dict result;
    result["jax_transconv.forward.v1"] = transconv::Capsule(TransconvCpuForward);
    result["jax_transconv.grad_input.v1"] = transconv::Capsule(TransconvCpuGradInput);
    result["jax_transconv.grad_weight.v1"] = transconv::Capsule(TransconvCpuGradWeight);
    return result;
  });
  m.def("build_info", [] {
    nb::dict result;
#if defined(__clang__)
    result["compiler"] = std::string("clang ") + __clang_version__;
#elif defined(__GNUC__)
    result["compiler"] = std::string("gcc ") + __VERSION__;
#else
    result["compiler"] = "unknown";
#endif
    nb::list built;
    for (const transconv::cpu::KernelTable* table : transconv::cpu::BuiltKernels()) {
      if (table != nullptr) built.append(table->name);
    }
    result["isa_built"] = built;
    result["isa_used"] = transconv::cpu::Kernels().name;
    return result;
  });
  transconv::DefineCommon(m, "cpu:", transconv::cpu::WorkspaceBytes, transconv::cpu::Supports);
}
