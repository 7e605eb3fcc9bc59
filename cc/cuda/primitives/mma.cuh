// The matrix instruction of compute capability 8.0 and later, and the loads that feed it.
#ifndef TRANSCONV_CUDA_PRIMITIVES_MMA_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace transconv::cuda::mma {

// Four matrices of 8 rows of 16 bytes; lane l names row l % 8 of matrix l / 8. A lane receives two
// neighbours of row lane / 4 or, transposed, of column lane / 4.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// The other way round, to eight rows of 16 bytes a matrix, at the address of lane 8 i + row (from
// cards 9.0 on). A lane has of matrix i row lane / 4, columns 2 (lane % 4) and the next; a row of
// shared memory gets a column.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t shared, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// d (16 x 8) += a (16 x 16) b (16 x 8), summed in float32.
template <typename Operand>
__device__ __forceinline__ void Multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<Operand, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two results as neighbours in memory, the first in the lower half.
template <typename Operand>
__device__ __forceinline__ uint32_t Pack(float first, float second) {
  uint32_t word;
  if constexpr (std::is_same_v<Operand, __half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
}

template <typename Operand>
__device__ __forceinline__ float Widen(uint16_t bits) {
  if constexpr (std::is_same_v<Operand, __half>) {
    return __half2float(__ushort_as_half(bits));
  } else {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
  }
}

}  // namespace transconv::cuda::mma

#endif  // TRANSCONV_CUDA_PRIMITIVES_MMA_CUH_
