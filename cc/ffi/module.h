// What the nanobind modules of all backends share: capsules, the algorithm list, workspace sizes.
#ifndef TRANSCONV_FFI_MODULE_H_
#define TRANSCONV_FFI_MODULE_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "core/algorithms.h"
#include "core/dtypes.h"
#include "core/geometry.h"
#include "xla/ffi/api/c_api.h"

namespace transconv {

namespace nb = nanobind;

template <typename T>
nb::capsule Capsule(T* handler) {
  static_assert(std::is_invocable_r_v<XLA_FFI_Error*, T, XLA_FFI_CallFrame*>,
                "not an XLA FFI handler");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

// Defines `name`(pass, algorithm, sizes...), a function of a whole problem.
template <typename Function>
void DefineOnProblem(nb::module_& m, const char* name, Function function) {
  m.def(
      name,
      [name, function](int32_t pass, int32_t algorithm, int64_t batch, int64_t in_channels,
                       int64_t out_channels, int64_t groups, int64_t in_h, int64_t in_w,
                       int64_t out_h, int64_t out_w, int64_t kernel_h, int64_t kernel_w,
                       int64_t stride_h, int64_t stride_w, int64_t dilation_h, int64_t dilation_w,
                       int64_t crop_lo_h, int64_t crop_lo_w, int32_t layout, int32_t precision,
                       int32_t dtype) {
        Problem p;
        p.batch = batch;
        p.in_channels = in_channels;
        p.out_channels = out_channels;
        p.groups = groups;
        p.h = {in_h, out_h, kernel_h, stride_h, dilation_h, crop_lo_h};
        p.w = {in_w, out_w, kernel_w, stride_w, dilation_w, crop_lo_w};
        p.layout = static_cast<Layout>(layout);
        p.precision = static_cast<Precision>(precision);
        const bool positive = batch >= 0 && in_channels >= 0 && out_channels >= 0 && groups > 0 &&
                              in_h > 0 && in_w > 0 && out_h >= 0 && out_w >= 0 && kernel_h > 0 &&
                              kernel_w > 0 && stride_h > 0 && stride_w > 0 && dilation_h > 0 &&
                              dilation_w > 0;
        if (!positive || in_channels % groups != 0 || out_channels % groups != 0 || pass < 0 ||
            pass > 2 || dtype < 0 || dtype > 3 || layout < 0 || layout > 1) {
          throw nb::value_error((std::string(name) + ": not a legal problem").c_str());
        }
        return function(static_cast<Pass>(pass), static_cast<Algorithm>(algorithm), p,
                        static_cast<DType>(dtype));
      },
      nb::arg("pass"), nb::arg("algorithm"), nb::kw_only(), nb::arg("batch"),
      nb::arg("in_channels"), nb::arg("out_channels"), nb::arg("groups"), nb::arg("in_h"),
      nb::arg("in_w"), nb::arg("out_h"), nb::arg("out_w"), nb::arg("kernel_h"), nb::arg("kernel_w"),
      nb::arg("stride_h"), nb::arg("stride_w"), nb::arg("dilation_h"), nb::arg("dilation_w"),
      nb::arg("crop_lo_h"), nb::arg("crop_lo_w"), nb::arg("layout"), nb::arg("precision"),
      nb::arg("dtype"));
}

// Bytes, or a negative number when the problem is not one that the algorithm can size.
using WorkspaceFunction = int64_t (*)(Pass, Algorithm, const Problem&, DType);
// Why the algorithm can't run a problem, or null.
using SupportsFunction = const char* (*)(Pass, Algorithm, const Problem&, DType);

// Defines algorithms(), built_against(), workspace_bytes() and unsupported(). `prefix` is "cpu:" or
// "cuda:".
inline void DefineCommon(nb::module_& m, const char* prefix, WorkspaceFunction workspace,
                         SupportsFunction supports) {
  m.def("algorithms", [prefix] {
    nb::dict result;
    for (const AlgorithmName& a : kAlgorithms) {
      if (std::strncmp(a.text, prefix, std::strlen(prefix)) == 0) {
        result[a.text] = static_cast<int32_t>(a.algorithm);
      }
    }
    return result;
  });
  m.def("built_against", [] { return nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
  DefineOnProblem(m, "workspace_bytes",
                  [workspace](Pass pass, Algorithm algorithm, const Problem& p, DType dtype) {
                    const int64_t bytes = workspace(pass, algorithm, p, dtype);
                    if (bytes < 0) {
                      throw nb::value_error(
                          "workspace_bytes: the size overflows, or the algorithm can't run this");
                    }
                    return bytes;
                  });
  DefineOnProblem(m, "unsupported",
                  [supports](Pass pass, Algorithm algorithm, const Problem& p,
                             DType dtype) -> std::optional<std::string> {
                    const char* reason = supports(pass, algorithm, p, dtype);
                    if (reason == nullptr) return std::nullopt;
                    return std::string(reason);
                  });
}

}  // namespace transconv

#endif  // TRANSCONV_FFI_MODULE_H_
