// Entry points of the CPU backend: plain types, no XLA.
#ifndef TRANSCONV_CPU_LAUNCH_H_
#define TRANSCONV_CPU_LAUNCH_H_

#include <cstdint>
#include <memory>

#include "core/algorithms.h"
#include "core/dtypes.h"
#include "core/geometry.h"
#include "cpu/runner.h"

namespace transconv::cpu {

// One custom call. Which of the pointers are written depends on the pass: forward reads x, w and
// vector (the bias, or null) and writes y; grad_input reads y (as dy) and w and writes x (as dx);
// grad_weight reads x and y and writes w (as dw) and vector (as db, or null).
struct Call {
  Pass pass = Pass::kForward;
  Algorithm algorithm = Algorithm::kCpuTiled;
  Problem problem;
  DType dtype = DType::kF32;
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  void* vector = nullptr;
  void* workspace = nullptr;
  int64_t threads = 1;
};

// Bytes of workspace, or -1 when the size overflows or the algorithm is not ours. It depends on the
// problem alone, never on the machine, because it is baked into lowered programs.
int64_t WorkspaceBytes(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype);

// Why the algorithm can't do the problem, or null.
const char* Supports(Pass pass, Algorithm algorithm, const Problem& problem, DType dtype);

// Null when the algorithm can't do the problem.
std::shared_ptr<Job> MakeJob(const Call& call);

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_LAUNCH_H_
