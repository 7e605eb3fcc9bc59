// What the producers of the rolling kernels say about an item when it is full.
#ifndef TRANSCONV_CUDA_KERNELS_ROLLING_ITEM_CUH_
#define TRANSCONV_CUDA_KERNELS_ROLLING_ITEM_CUH_

#include "core/rolling_plan.h"

namespace transconv::cuda {

struct RollingItem {
  int word;
  __device__ RollingItem(int exponent, bool first, bool last)
      : word(exponent * 4 + (first ? 2 : 0) + (last ? 1 : 0)) {}
  // Read by one lane, the one that will give the item's slot back.
  __device__ RollingItem(const int* at, int lane) : word(0) {
    if (lane == 0) word = *at;
    word = __shfl_sync(0xffffffffu, word, 0);
  }
  __device__ int exponent() const { return word >> 2; }
  // Of its segment: joins no earlier item.
  __device__ bool first() const { return (word & 2) != 0; }
  __device__ bool last() const { return (word & 1) != 0; }
};

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_ROLLING_ITEM_CUH_
