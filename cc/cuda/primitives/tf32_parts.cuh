// float32 as two values of TF32, for products as accurate as float32's.
#ifndef TRANSCONV_CUDA_PRIMITIVES_TF32_PARTS_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_TF32_PARTS_CUH_

#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda::tf32 {

// What rounding to TF32 leaves of a value, rounded to TF32: both together have 22 bits. Of what is
// not finite, nothing.
__device__ __forceinline__ float LowPart(float value, float high) {
  const float low = Element<float>::Load(value - high);
  return low == low ? low : 0.f;
}

}  // namespace transconv::cuda::tf32

#endif  // TRANSCONV_CUDA_PRIMITIVES_TF32_PARTS_CUH_
