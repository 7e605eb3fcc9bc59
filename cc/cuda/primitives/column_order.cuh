// In which order the columns of packed cells lie.
#ifndef TRANSCONV_CUDA_PRIMITIVES_COLUMN_ORDER_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_COLUMN_ORDER_CUH_

#include <cstdint>

#include "core/divider.h"

namespace transconv::cuda {

// The columns of a row by their remainder of a step, as what reads every step-th column reads whole
// sectors then. All remainders have as many places; where a row's columns do not fill them, the
// last ones are empty.
struct ColumnOrder {
  int run = 1;  // places of a remainder
  Divider by_step = Divider(1);

  ColumnOrder() = default;
  ColumnOrder(int64_t width, int64_t step)
      : run(static_cast<int>(CeilDiv(width, step))), by_step(step) {}
  __device__ __forceinline__ int PlaceOf(int column) const {
    const int remainder = by_step.Split(column);
    return remainder * run + column;
  }
};

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_COLUMN_ORDER_CUH_
