// Hopper's warpgroup matrix instructions with the row operand in registers: what has to be gathered
// or rounded on its way from shared memory need not be stored there a second time.
//
// A thread of lane (g = lane / 4, t = lane % 4) in warp w of the warpgroup has rows 16 w + g and
// 16 w + g + 8 of A, as words a[0] = A[g][k], a[1] = A[g + 8][k], a[2] = A[g][k + 4 words],
// a[3] = A[g + 8][k + 4 words] with k = t in words: one TF32 value, or two neighbouring 16-bit
// ones. It must not change them until the instruction has ended. B is K-major and blocked as in
// wgmma.cuh; a cell of 16 bytes is four TF32 values or eight of 16 bits, and a step takes two
// chunks of cells.
#ifndef TRANSCONV_CUDA_PRIMITIVES_WGMMA_REGISTERS_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_REGISTERS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace transconv::cuda::wgmma {

#define TRANSCONV_SUMS8(d, i)                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TRANSCONV_SUMS16(d, i) TRANSCONV_SUMS8(d, i), TRANSCONV_SUMS8(d, i + 8)
#define TRANSCONV_SUMS32(d, i) TRANSCONV_SUMS16(d, i), TRANSCONV_SUMS16(d, i + 16)
#define TRANSCONV_SUMS64(d, i) TRANSCONV_SUMS32(d, i), TRANSCONV_SUMS32(d, i + 32)
#define TRANSCONV_SUMS96(d, i) TRANSCONV_SUMS64(d, i), TRANSCONV_SUMS32(d, i + 64)
#define TRANSCONV_SUMS128(d, i) TRANSCONV_SUMS64(d, i), TRANSCONV_SUMS64(d, i + 64)
#define TRANSCONV_NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TRANSCONV_NAMES32 \
  TRANSCONV_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRANSCONV_NAMES64                                                                         \
  TRANSCONV_NAMES32                                                                               \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TRANSCONV_NAMES96                                                                     \
  TRANSCONV_NAMES64                                                                           \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85," \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define TRANSCONV_NAMES128                                                                     \
  TRANSCONV_NAMES96                                                                            \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,"                                            \
  "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123," \
  "%124,%125,%126,%127"

// Of a B operand whose rows of 128 bytes lie one behind the other, from a multiple of 1024 on, with
// the 16-byte chunks of row r at chunk ^ (r % 8); a step begins 32 bytes behind the last. Rows that
// are copied as they lie in memory are so written a whole line at a time.
__device__ __forceinline__ uint64_t SwizzledDescriptor() {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16;
}

// And where neighbours are columns, in 16 bits: rows of 64 columns, those of all k, and 64 columns
// on those of the next, `chunk` bytes away. A step begins 16 rows behind the last.
__device__ __forceinline__ uint64_t SwizzledRowsDescriptor(uint32_t chunk) {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{(chunk & 0x3FFFF) >> 4} << 16;
}
constexpr int kSwizzledRow = 128;  // bytes

// D[64 x N] (+)= A[64 x 32 bytes] B[32 bytes x N]; `accumulate` 0 overwrites D. Operand float is
// TF32, of which the instruction ignores the lowest 13 bits: round before. ROWS: of B, neighbours
// are columns.
template <typename Operand, int N, bool ROWS = false>
struct MultiplyRegisters;

#define TRANSCONV_WGMMA_REGISTERS(Operand, type, K, N, D, R, a0, a1, a2, a3, b, p, rows, tail) \
  template <>                                                                                  \
  struct MultiplyRegisters<Operand, N, rows> {                                                 \
    static __device__ __forceinline__ void Run(float (&d)[N / 2], const uint32_t (&a)[4],      \
                                               uint64_t B, int accumulate) {                   \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" p                                        \
                   ", 0;\n"                                                                    \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." type "." type " {" R  \
                   "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", p, 1, 1" tail "; }"       \
                   : D(d, 0)                                                                   \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(B), "r"(accumulate));     \
    }                                                                                          \
  };
#define TRANSCONV_WGMMA_32(Operand, type, K, rows, tail)                                           \
  TRANSCONV_WGMMA_REGISTERS(Operand, type, K, 32, TRANSCONV_SUMS16, TRANSCONV_NAMES16, "16", "17", \
                            "18", "19", "20", "21", rows, tail)
#define TRANSCONV_WGMMA_64(Operand, type, K, rows, tail)                                           \
  TRANSCONV_WGMMA_REGISTERS(Operand, type, K, 64, TRANSCONV_SUMS32, TRANSCONV_NAMES32, "32", "33", \
                            "34", "35", "36", "37", rows, tail)
#define TRANSCONV_WGMMA_128(Operand, type, K, rows, tail)                                     \
  TRANSCONV_WGMMA_REGISTERS(Operand, type, K, 128, TRANSCONV_SUMS64, TRANSCONV_NAMES64, "64", \
                            "65", "66", "67", "68", "69", rows, tail)
#define TRANSCONV_WGMMA_192(Operand, type, K, rows, tail)                                     \
  TRANSCONV_WGMMA_REGISTERS(Operand, type, K, 192, TRANSCONV_SUMS96, TRANSCONV_NAMES96, "96", \
                            "97", "98", "99", "100", "101", rows, tail)
#define TRANSCONV_WGMMA_256(Operand, type, K, rows, tail)                                        \
  TRANSCONV_WGMMA_REGISTERS(Operand, type, K, 256, TRANSCONV_SUMS128, TRANSCONV_NAMES128, "128", \
                            "129", "130", "131", "132", "133", rows, tail)
#define TRANSCONV_WGMMA_OF(Operand, type, K, rows, tail) \
  TRANSCONV_WGMMA_64(Operand, type, K, rows, tail)       \
  TRANSCONV_WGMMA_128(Operand, type, K, rows, tail)      \
  TRANSCONV_WGMMA_192(Operand, type, K, rows, tail)      \
  TRANSCONV_WGMMA_256(Operand, type, K, rows, tail)

TRANSCONV_WGMMA_32(float, "tf32", 8, false, "")
TRANSCONV_WGMMA_OF(float, "tf32", 8, false, "")
TRANSCONV_WGMMA_OF(__half, "f16", 16, false, ", 0")
TRANSCONV_WGMMA_OF(__nv_bfloat16, "bf16", 16, false, ", 0")
TRANSCONV_WGMMA_OF(__half, "f16", 16, true, ", 1")
TRANSCONV_WGMMA_OF(__nv_bfloat16, "bf16", 16, true, ", 1")

#undef TRANSCONV_WGMMA_OF
#undef TRANSCONV_WGMMA_256
#undef TRANSCONV_WGMMA_192
#undef TRANSCONV_WGMMA_128
#undef TRANSCONV_WGMMA_64
#undef TRANSCONV_WGMMA_32
#undef TRANSCONV_WGMMA_REGISTERS
#undef TRANSCONV_NAMES128
#undef TRANSCONV_NAMES96
#undef TRANSCONV_NAMES64
#undef TRANSCONV_NAMES32
#undef TRANSCONV_NAMES16
#undef TRANSCONV_SUMS128
#undef TRANSCONV_SUMS96
#undef TRANSCONV_SUMS64
#undef TRANSCONV_SUMS32
#undef TRANSCONV_SUMS16
#undef TRANSCONV_SUMS8

}  // namespace transconv::cuda::wgmma

#endif  // TRANSCONV_CUDA_PRIMITIVES_WGMMA_REGISTERS_CUH_
