// Brings weights into the order in which the matrix-product kernel reads them (core/gemm_plan.h):
// [column tile][slab][8 chunks of 16 bytes][columns of the tile], a chunk being four TF32 values or
// eight of 16 bits that are neighbours in the sum. What does not exist is zero.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_

#include <cstdint>

#include "core/gemm_plan.h"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda {

constexpr int kPackGemmThreads = 64;

struct PackGemmParams {
  const void* weight;  // (in_channels, out_channels, kh, kw)
  uint8_t* packed;
  int columns, sums;              // of the product that exist
  int column_stride, sum_stride;  // elements
  int tile_columns, slabs, values;
  bool fours;
  bool vectors;  // the sum's elements are neighbours, and every column's begin is aligned
};

// A thread packs one column of one slab.
template <typename T>
__global__ void __launch_bounds__(kPackGemmThreads)
    PackGemmKernel(const __grid_constant__ PackGemmParams p) {
  constexpr int kElements = kGemmSlabBytes / sizeof(T), kCell = 16 / sizeof(T);
  using Element = tf32::Element<T>;
  using Raw = typename Element::Type;
  ptx::LetKernelBehindStart();
  const int blocks = p.tile_columns / kPackGemmThreads;
  const int at = static_cast<int>(blockIdx.x) % blocks * kPackGemmThreads + threadIdx.x;
  const int slab = static_cast<int>(blockIdx.x) / blocks % p.slabs;
  const int tile = static_cast<int>(blockIdx.x) / blocks / p.slabs;
  const int column = tile * p.tile_columns + GemmColumn(at, p.fours);
  const Raw* const from =
      static_cast<const Raw*>(p.weight) + static_cast<int64_t>(column) * p.column_stride;
  __align__(16) Raw cells[kElements];
  if (p.vectors && column < p.columns && (slab + 1) * kElements <= p.sums) {
    const uint4* const vectors = reinterpret_cast<const uint4*>(from + slab * kElements);
#pragma unroll
    for (int i = 0; i < kGemmSlabBytes / 16; ++i) reinterpret_cast<uint4*>(cells)[i] = vectors[i];
  } else {
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int sum = slab * kElements + k;
      const bool inside = column < p.columns && sum < p.sums;
      cells[k] = inside ? from[sum * p.sum_stride] : Raw{0};
    }
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int k = 0; k < kElements; ++k) cells[k] = Element::Load(cells[k]);
  }
  uint8_t* const to =
      p.packed + (static_cast<int64_t>(tile) * p.slabs + slab) * p.tile_columns * kGemmSlabBytes +
      at * 16;
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    __align__(16) Raw cell[kCell];
#pragma unroll
    for (int i = 0; i < kCell; ++i) {
      const int k = chunk * kCell + i;
      // Unrolled, so that no register is addressed: `values` has three cases.
      const GemmElement one(k, 1, sizeof(T)), two(k, 2, sizeof(T)), four(k, 4, sizeof(T));
      cell[i] = p.values == 1   ? cells[one.line]
                : p.values == 2 ? cells[2 * two.line + two.value]
                                : cells[4 * four.line + four.value];
    }
    *reinterpret_cast<uint4*>(to + chunk * p.tile_columns * 16) =
        *reinterpret_cast<const uint4*>(cell);
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_
