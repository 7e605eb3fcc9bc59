// The copy of a box (box.cuh).
#ifndef TRANSCONV_CUDA_PRIMITIVES_BOX_LOAD_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_BOX_LOAD_CUH_

#include <cstdint>

#include "cuda/primitives/box.cuh"

namespace transconv::cuda::ptx {

// It begins at a place which may lie outside.
__device__ __forceinline__ void BoxLoad(uint32_t shared, const BoxMap& map, const BoxPlace& place,
                                        uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared),
      "l"(&map), "r"(place.at[0]), "r"(place.at[1]), "r"(place.at[2]), "r"(place.at[3]),
      "r"(place.at[4]), "r"(barrier)
      : "memory");
}

}  // namespace transconv::cuda::ptx

#endif  // TRANSCONV_CUDA_PRIMITIVES_BOX_LOAD_CUH_
