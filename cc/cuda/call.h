// One pass as every CUDA launcher receives it, and the entry that each algorithm exports.
// Plain C++ and raw pointers: nothing here knows XLA.
#ifndef TRANSCONV_CUDA_CALL_H_
#define TRANSCONV_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/algorithms.h"
#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv::cuda {

// `x` is x or dx, `w` is w or dw, `y` is y or dy, `vector` is bias or db (null when absent): which
// of them the pass writes follows from the pass.
struct Call {
  Pass pass = Pass::kForward;
  Problem problem;
  DType dtype = DType::kF32;
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  void* vector = nullptr;
  void* workspace = nullptr;
  cudaStream_t stream = nullptr;
};

// What one algorithm offers. `supports` says why a problem is not one for it, or null. Launchers
// neither allocate nor synchronise, and are safe to capture in a CUDA graph. `workspace` must not
// depend on the device: it is asked for while tracing.
struct KernelEntry {
  Algorithm algorithm;
  const char* (*supports)(Pass pass, const Problem& problem, DType dtype);
  int64_t (*workspace)(Pass pass, const Problem& problem, DType dtype);
  cudaError_t (*launch)(const Call& call);
};

#define TRANSCONV_ALGORITHM(name, id, text)
#define TRANSCONV_CUDA_ALGORITHM(name, id, text) extern const KernelEntry name##Entry;
#include "core/algorithms.def"
#undef TRANSCONV_ALGORITHM
#undef TRANSCONV_CUDA_ALGORITHM

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_CALL_H_
