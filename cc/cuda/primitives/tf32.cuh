// TF32: float32 with 11 bits of significand. Every float16 and bfloat16 is one.
#ifndef TRANSCONV_CUDA_PRIMITIVES_TF32_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_TF32_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace transconv::cuda::tf32 {

// An element type's bits in memory, and the way between them and float32.
template <typename T>
struct Element;
template <>
struct Element<float> {
  using Type = float;
  static __device__ __forceinline__ float Load(float v) {
    uint32_t r;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
#else  // three instructions, on later cards too
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
#endif
    return __uint_as_float(r);
  }
  static __device__ __forceinline__ float Widen(float v) { return v; }
  static __device__ __forceinline__ float Round(float v) { return v; }
};
template <>
struct Element<__half> {
  using Type = uint16_t;
  static __device__ __forceinline__ float Load(uint16_t v) {
    return __half2float(__ushort_as_half(v));
  }
  static __device__ __forceinline__ float Widen(uint16_t v) { return Load(v); }
  static __device__ __forceinline__ uint16_t Round(float v) {
    return __half_as_ushort(__float2half_rn(v));
  }
};
template <>
struct Element<__nv_bfloat16> {
  using Type = uint16_t;
  static __device__ __forceinline__ float Load(uint16_t v) {
    return __uint_as_float(static_cast<uint32_t>(v) << 16);
  }
  static __device__ __forceinline__ float Widen(uint16_t v) { return Load(v); }
  static __device__ __forceinline__ uint16_t Round(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
  }
};

// d (16 x 8) += a (16 x 8) b (8 x 8), by a warp. Of lane 4 g + t, a is (g, t), (g + 8, t),
// (g, t + 4), (g + 8, t + 4); b is (t, g), (t + 4, g); d is (g, 2t), (g, 2t + 1), (g + 8, 2t),
// (g + 8, 2t + 1).
__device__ __forceinline__ void Multiply(float (&d)[4], const float (&a)[4], float b0, float b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

}  // namespace transconv::cuda::tf32

#endif  // TRANSCONV_CUDA_PRIMITIVES_TF32_CUH_
