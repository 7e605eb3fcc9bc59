// From an algorithm's id to its kernel's entry.
#ifndef TRANSCONV_CUDA_REGISTRY_H_
#define TRANSCONV_CUDA_REGISTRY_H_

#include "core/algorithms.h"
#include "cuda/call.h"

namespace transconv::cuda {

inline const KernelEntry* FindEntry(Algorithm algorithm) {
  switch (algorithm) {
#define TRANSCONV_ALGORITHM(name, id, text)
#define TRANSCONV_CUDA_ALGORITHM(name, id, text) \
  case Algorithm::name:                          \
    return &name##Entry;
#include "core/algorithms.def"
#undef TRANSCONV_ALGORITHM
#undef TRANSCONV_CUDA_ALGORITHM
    default:
      return nullptr;
  }
}

inline const char* Supports(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype) {
  const KernelEntry* entry = FindEntry(algorithm);
  return entry == nullptr ? "the module has no such algorithm"
                          : entry->supports(pass, problem, dtype);
}

inline int64_t WorkspaceBytes(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype) {
  const KernelEntry* entry = FindEntry(algorithm);
  return entry == nullptr ? -1 : entry->workspace(pass, problem, dtype);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_REGISTRY_H_
