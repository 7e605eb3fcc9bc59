// What the kernels on the ordinary float units share: types, loads and stores, ordered sums.
#ifndef TRANSCONV_CUDA_PRIMITIVES_SIMT_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_SIMT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace transconv::cuda {

// 16-bit types multiply and add in float32 and round once.
template <typename T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};

__device__ inline float Load(const __half* p) { return __half2float(*p); }
__device__ inline float Load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ inline float Load(const float* p) { return *p; }
__device__ inline double Load(const double* p) { return *p; }
__device__ inline void Store(__half* p, float v) { *p = __float2half_rn(v); }
__device__ inline void Store(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }
__device__ inline void Store(float* p, float v) { *p = v; }
__device__ inline void Store(double* p, double v) { *p = v; }

// Sum of a block's values, in a fixed order; every thread must call it.
template <int kThreads, typename A>
__device__ inline A BlockSum(A value) {
  __shared__ A warps[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  A sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += warps[i];
  __syncthreads();
  return sum;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_SIMT_CUH_
