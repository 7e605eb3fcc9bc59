// Brings weights in float32 into the order in which the matrix-product kernel reads them
// (core/gemm_plan.h): [column tile][slab][8 chunks of 16 bytes][columns of the tile], a chunk being
// four TF32 values that are neighbours in the sum. What does not exist is zero.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_

#include <cstdint>

#include "core/gemm_plan.h"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda {

constexpr int kPackGemmThreads = 64;

struct PackGemmParams {
  const float* weight;  // (in_channels, out_channels, kh, kw)
  uint8_t* packed;
  int columns, sums;              // of the product that exist
  int column_stride, sum_stride;  // elements
  int tile_columns, slabs;
  bool fours;
  bool vectors;  // the sum's elements are neighbours, and every column's begin is aligned
};

// A thread packs one column of one slab; lines of the image have VALUES neighbours of a pixel.
template <int VALUES>
__global__ void __launch_bounds__(kPackGemmThreads)
    PackGemmKernel(const __grid_constant__ PackGemmParams p) {
  constexpr int kElements = kGemmSlabBytes / 4;
  ptx::LetKernelBehindStart();
  const int blocks = p.tile_columns / kPackGemmThreads;
  const int at = static_cast<int>(blockIdx.x) % blocks * kPackGemmThreads + threadIdx.x;
  const int slab = static_cast<int>(blockIdx.x) / blocks % p.slabs;
  const int tile = static_cast<int>(blockIdx.x) / blocks / p.slabs;
  const int column = tile * p.tile_columns + GemmColumn(at, p.fours);
  const float* const from = p.weight + static_cast<int64_t>(column) * p.column_stride;
  __align__(16) float cells[kElements];
  if (p.vectors && column < p.columns && (slab + 1) * kElements <= p.sums) {
    const float4* const vectors = reinterpret_cast<const float4*>(from + slab * kElements);
#pragma unroll
    for (int i = 0; i < kGemmSlabBytes / 16; ++i) reinterpret_cast<float4*>(cells)[i] = vectors[i];
  } else {
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const int sum = slab * kElements + k;
      const bool inside = column < p.columns && sum < p.sums;
      cells[k] = inside ? from[sum * p.sum_stride] : 0.f;
    }
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) cells[k] = tf32::Element<float>::Load(cells[k]);
  uint8_t* const to =
      p.packed + (static_cast<int64_t>(tile) * p.slabs + slab) * p.tile_columns * kGemmSlabBytes +
      at * 16;
#pragma unroll
  for (int chunk = 0; chunk < 8; ++chunk) {
    __align__(16) float cell[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const GemmElement element(chunk * 4 + i, VALUES);
      cell[i] = cells[VALUES * element.line + element.value];
    }
    *reinterpret_cast<float4*>(to + chunk * p.tile_columns * 16) =
        *reinterpret_cast<const float4*>(cell);
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_GEMM_CUH_
