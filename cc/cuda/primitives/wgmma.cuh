// Hopper's warpgroup matrix instructions over blocked-8 operands in shared memory.
//
// A cell is 16 bytes: one row (pixel, or output channel) by eight consecutive channels. Without a
// swizzle, a K-major descriptor reads element (r, k) of a 16-channel step from
//
//     start + (r % 8) * 16 + (r / 8) * stride + (k / 8) * chunk + (k % 8) * 2
//
// and an MN-major one reads (r, k), k being pixels, from
//
//     start + (r % 8) * 2 + (r / 8) * stride + (k % 8) * 16 + (k / 8) * chunk.
//
// Starts may lie anywhere on 16 bytes at full speed, so that a kernel tap is a start address.
#ifndef TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace transconv::cuda::wgmma {

// Byte distances between chunks of eight k and between groups of eight rows; start is added later.
__device__ __forceinline__ uint64_t Descriptor(uint32_t chunk, uint32_t stride) {
  return (static_cast<uint64_t>((chunk & 0x3FFFF) >> 4) << 16) |
         (static_cast<uint64_t>((stride & 0x3FFFF) >> 4) << 32);
}

__device__ __forceinline__ void Fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void Commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void Wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accumulators across the asynchronous instructions.
template <int N>
__device__ __forceinline__ void Pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define TRANSCONV_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TRANSCONV_D16(d, i) \
  TRANSCONV_D4(d, i), TRANSCONV_D4(d, i + 4), TRANSCONV_D4(d, i + 8), TRANSCONV_D4(d, i + 12)
#define TRANSCONV_D32(d, i) TRANSCONV_D16(d, i), TRANSCONV_D16(d, i + 16)
#define TRANSCONV_D64(d, i) TRANSCONV_D32(d, i), TRANSCONV_D32(d, i + 32)
#define TRANSCONV_D68(d, i) TRANSCONV_D64(d, i), TRANSCONV_D4(d, i + 64)
#define TRANSCONV_D72(d, i) TRANSCONV_D68(d, i), TRANSCONV_D4(d, i + 68)

#define TRANSCONV_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TRANSCONV_R32 \
  TRANSCONV_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRANSCONV_R64                                                                             \
  TRANSCONV_R32                                                                                   \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TRANSCONV_R68 TRANSCONV_R64 ",%64,%65,%66,%67"
#define TRANSCONV_R72 TRANSCONV_R68 ",%68,%69,%70,%71"

// D[64 x N] (+)= A[64 x 16] B[16 x N], both K-major; `accumulate` 0 overwrites D.
template <typename Operand, int N>
struct Multiply;

#define TRANSCONV_WGMMA(Operand, type, N, D, R, a, b, p)                                           \
  template <>                                                                                      \
  struct Multiply<Operand, N> {                                                                    \
    static __device__ __forceinline__ void Run(float (&d)[N / 2], uint64_t A, uint64_t B,          \
                                               int accumulate) {                                   \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" p                                            \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" R "}, %" a \
                   ", %" b ", p, 1, 1, 0, 0; }"                                                    \
                   : D(d, 0)                                                                       \
                   : "l"(A), "l"(B), "r"(accumulate));                                             \
    }                                                                                              \
  };

TRANSCONV_WGMMA(__half, "f16", 32, TRANSCONV_D16, TRANSCONV_R16, "16", "17", "18")
TRANSCONV_WGMMA(__half, "f16", 64, TRANSCONV_D32, TRANSCONV_R32, "32", "33", "34")
TRANSCONV_WGMMA(__half, "f16", 128, TRANSCONV_D64, TRANSCONV_R64, "64", "65", "66")
TRANSCONV_WGMMA(__half, "f16", 136, TRANSCONV_D68, TRANSCONV_R68, "68", "69", "70")
TRANSCONV_WGMMA(__half, "f16", 144, TRANSCONV_D72, TRANSCONV_R72, "72", "73", "74")
TRANSCONV_WGMMA(__nv_bfloat16, "bf16", 32, TRANSCONV_D16, TRANSCONV_R16, "16", "17", "18")
TRANSCONV_WGMMA(__nv_bfloat16, "bf16", 64, TRANSCONV_D32, TRANSCONV_R32, "32", "33", "34")
TRANSCONV_WGMMA(__nv_bfloat16, "bf16", 128, TRANSCONV_D64, TRANSCONV_R64, "64", "65", "66")
TRANSCONV_WGMMA(__nv_bfloat16, "bf16", 136, TRANSCONV_D68, TRANSCONV_R68, "68", "69", "70")
TRANSCONV_WGMMA(__nv_bfloat16, "bf16", 144, TRANSCONV_D72, TRANSCONV_R72, "72", "73", "74")

#undef TRANSCONV_WGMMA

// D[64 x 64 * TILES] += A B with both operands MN-major; the accumulators come as tiles of 64
// columns. Sums over pixels: rows are channels of one image, columns channels of the other.
template <typename Operand, int TILES>
struct MultiplyPixels;

#define TRANSCONV_R96                                                                         \
  TRANSCONV_R64                                                                               \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85," \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"

#define TRANSCONV_WGMMA_PIXELS(Operand, type)                                                      \
  template <>                                                                                      \
  struct MultiplyPixels<Operand, 1> {                                                              \
    static __device__ __forceinline__ void Run(float (&d)[1][32], uint64_t A, uint64_t B) {        \
      asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" TRANSCONV_R32  \
                   "}, %32, %33, 1, 1, 1, 1, 1;"                                                   \
                   : TRANSCONV_D32(d[0], 0)                                                        \
                   : "l"(A), "l"(B));                                                              \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct MultiplyPixels<Operand, 3> {                                                              \
    static __device__ __forceinline__ void Run(float (&d)[3][32], uint64_t A, uint64_t B) {        \
      asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {" TRANSCONV_R96 \
                   "}, %96, %97, 1, 1, 1, 1, 1;"                                                   \
                   : TRANSCONV_D32(d[0], 0), TRANSCONV_D32(d[1], 0), TRANSCONV_D32(d[2], 0)        \
                   : "l"(A), "l"(B));                                                              \
    }                                                                                              \
  };

TRANSCONV_WGMMA_PIXELS(__half, "f16")
TRANSCONV_WGMMA_PIXELS(__nv_bfloat16, "bf16")

#undef TRANSCONV_WGMMA_PIXELS

// The same with flat accumulators, for any number of columns.
template <typename Operand, int N>
struct MultiplyRows;

#define TRANSCONV_R48 \
  TRANSCONV_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define TRANSCONV_D48(d, i) TRANSCONV_D32(d, i), TRANSCONV_D16(d, i + 32)
#define TRANSCONV_D96(d, i) TRANSCONV_D64(d, i), TRANSCONV_D32(d, i + 64)

#define TRANSCONV_WGMMA_ROWS(Operand, type, N, D, R, a, b)                                         \
  template <>                                                                                      \
  struct MultiplyRows<Operand, N> {                                                                \
    static __device__ __forceinline__ void Run(float (&d)[N / 2], uint64_t A, uint64_t B) {        \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" R "}, %" a \
                   ", %" b ", 1, 1, 1, 1, 1;"                                                      \
                   : D(d, 0)                                                                       \
                   : "l"(A), "l"(B));                                                              \
    }                                                                                              \
  };

TRANSCONV_WGMMA_ROWS(__half, "f16", 96, TRANSCONV_D48, TRANSCONV_R48, "48", "49")
TRANSCONV_WGMMA_ROWS(__half, "f16", 192, TRANSCONV_D96, TRANSCONV_R96, "96", "97")
TRANSCONV_WGMMA_ROWS(__nv_bfloat16, "bf16", 96, TRANSCONV_D48, TRANSCONV_R48, "48", "49")
TRANSCONV_WGMMA_ROWS(__nv_bfloat16, "bf16", 192, TRANSCONV_D96, TRANSCONV_R96, "96", "97")

#undef TRANSCONV_WGMMA_ROWS

}  // namespace transconv::cuda::wgmma

#endif  // TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_
