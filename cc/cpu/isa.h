// One table of kernels per instruction set, and the choice among them.
#ifndef TRANSCONV_CPU_ISA_H_
#define TRANSCONV_CPU_ISA_H_

#include <cstdint>

#include "core/dtypes.h"
#include "cpu/views.h"

namespace transconv::cpu {

// Indexed by DType where there are four of something.
struct KernelTable {
  const char* name;
  // Packing reports whether all weights are finite. If not, nothing else of the job may use them:
  // the zeros that stand for positions outside the tensor would not stay zero in the product.
  bool (*pack_weight[4])(const GatherView&, int64_t item);
  void (*gather[4])(const GatherView&, int64_t item, void* scratch);
  int64_t (*gather_scratch[4])(const GatherView&);
  void (*weight_grad[4])(const WeightGradView&, int64_t item, void* scratch);
  int64_t (*weight_grad_scratch[4])(const WeightGradView&);
  void (*weight_grad_reduce[4])(const WeightGradView&, int64_t item);
  void (*bias_grad[4])(const WeightGradView&, int64_t item);
  void (*depthwise_pack[4])(const DepthwiseView&, int64_t item);
  void (*depthwise[4])(const DepthwiseView&, int64_t item);
  void (*depthwise_rows[4])(const DepthwiseRowsView&, int64_t item, void* scratch);
  int64_t (*depthwise_rows_scratch[4])(const DepthwiseRowsView&);
  void (*depthwise_grad[4])(const DepthwiseView&, int64_t item);
  void (*direct[4])(const DirectView&, int64_t begin, int64_t end);
};

inline constexpr int kNumKernelTables = 3;
using KernelTables = const KernelTable* const[kNumKernelTables];
// Best last; null for an instruction set that this build does not have.
const KernelTables& BuiltKernels();
// The best table that this processor runs.
const KernelTable& Kernels();

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_ISA_H_
