// Brings an image into cells of eight channels in 16 bits, for the kernels that copy them.
//
// The result is [image][group][chunk of 8 channels][row][column][8], columns in the order of
// ColumnOrder, missing channels and columns being zeros, and for three products once more with the
// low parts. float32 becomes float16 with one scale for the whole tensor: full precision for 2^25
// below the largest magnitude. The scale is a guess from a sample; packing finds the true
// magnitude, and in the rare case that it is beyond the guess, a last kernel packs once more. Three
// products sample everything.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "cuda/primitives/column_order.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

constexpr int kPackCellsThreads = 256;

// One of the two images of a pass.
struct PackCellsParams {
  const void* source;
  uint4* cells;
  Magnitudes* magnitudes;        // float32; zeros to begin with
  int64_t size, vectors, pitch;  // of the source, in elements; vectors of the sample, how far apart
  int64_t head;                  // elements before the first vector
  int64_t image, channel, pixel;  // strides of the source in elements
  int64_t low;                    // cells from a high part to its low part
  int channels_per_group;
  int columns;                                     // of the source; the cells of a row may be more
  Divider by_cell, by_chunk, by_group, by_column;  // cells of a chunk, of a row
  ColumnOrder order;
  int count;  // of cells; none if the image needs no packing
  int parts;  // of kPackCellsThreads cells
};
struct PackBothParams {
  PackCellsParams image[2];
};

// Largest finite magnitude of every pitch-th vector of four, and of the values around them;
// blockIdx.y is the image.
static __global__ void __launch_bounds__(kPackCellsThreads)
    SampleKernel(const __grid_constant__ PackBothParams both) {
  ptx::LetKernelBehindStart();
  const PackCellsParams& p = both.image[blockIdx.y];
  uint32_t found = 0;
  const auto take = [&](float v) {
    const uint32_t bits = __float_as_uint(v) & 0x7fffffffu;
    if (bits < 0x7f800000u) found = max(found, bits);
  };
  const int64_t stride = int64_t{gridDim.x} * kPackCellsThreads;
  const int64_t first = blockIdx.x * int64_t{kPackCellsThreads} + threadIdx.x;
  const float* const source = static_cast<const float*>(p.source);
  const float4* const vectors = reinterpret_cast<const float4*>(source + p.head);
  if (first < p.head) take(source[first]);
#pragma unroll 4
  for (int64_t i = first; i < p.vectors; i += stride) {
    const float4 v = vectors[i * p.pitch];
    take(v.x);
    take(v.y);
    take(v.z);
    take(v.w);
  }
  const int64_t tail = p.head + (p.size - p.head) / 4 * 4;
  for (int64_t i = tail + first; i < p.size; i += stride) take(source[i]);
  found = __reduce_max_sync(0xffffffffu, found);
  // The order of blocks does not matter to a maximum.
  if (threadIdx.x % 32 == 0 && found != 0) atomicMax(&p.magnitudes->sample, found);
}

// Cell i is a pixel of a chunk: i = ((image * groups + group) * chunks + chunk) * cells + pixel.
template <typename T, int PRODUCTS, bool AGAIN>
__device__ __forceinline__ void PackPart(const PackCellsParams& p, int part, int exponent) {
  using Raw = typename Element<T>::Raw;
  const int cell = part * kPackCellsThreads + static_cast<int>(threadIdx.x);
  uint32_t largest = 0;
  if (cell < p.count) {
    int image = cell;
    int row = p.by_cell.Split(image);
    const int column = p.by_column.Split(row);
    const int chunk = p.by_chunk.Split(image), group = p.by_group.Split(image);
    const int channel = group * p.channels_per_group + 8 * chunk;
    const int channels = column < p.columns ? min(p.channels_per_group - 8 * chunk, 8) : 0;
    const int pixel = row * p.columns + column;
    const Raw* const from =
        static_cast<const Raw*>(p.source) + image * p.image + channel * p.channel + pixel * p.pixel;
    Raw v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = k < channels ? from[k * p.channel] : Raw{0};
    if constexpr (sizeof(T) == 4 && !AGAIN) largest = LargestBits(v, 0);
    const float scale = sizeof(T) == 4 ? ScaleOf(exponent) : 1.f;
    uint32_t packed[4], low[4];
    ConvertCell<T, PRODUCTS, 1>(v, scale, packed, low, 0);
    uint4* const to = p.cells + (cell - column + p.order.PlaceOf(column));
    *to = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    if constexpr (PRODUCTS == 3) to[p.low] = make_uint4(low[0], low[1], low[2], low[3]);
  }
  if constexpr (sizeof(T) == 4 && !AGAIN) {
    largest = __reduce_max_sync(0xffffffffu, largest);
    // Most warps find that others have seen larger values.
    volatile const uint32_t* const seen = &p.magnitudes->all;
    if (threadIdx.x % 32 == 0 && largest > *seen) atomicMax(&p.magnitudes->all, largest);
  }
}

template <typename T, int PRODUCTS>
__global__ void __launch_bounds__(kPackCellsThreads)
    PackCellsKernel(const __grid_constant__ PackBothParams both) {
  ptx::WaitForKernelsBefore();
  ptx::LetKernelBehindStart();
  const int index = static_cast<int>(blockIdx.x);
  const bool second = index >= both.image[0].parts;
  const PackCellsParams& p = both.image[second ? 1 : 0];
  const int exponent = sizeof(T) == 4 ? GuessedExponent<PRODUCTS>(*p.magnitudes) : 0;
  PackPart<T, PRODUCTS, false>(p, index - (second ? both.image[0].parts : 0), exponent);
}

// Packs again what the guess was too low for.
static __global__ void __launch_bounds__(kPackCellsThreads)
    PackAgainKernel(const __grid_constant__ PackBothParams both) {
  ptx::WaitForKernelsBefore();
  ptx::LetKernelBehindStart();
  const PackCellsParams& p = both.image[blockIdx.y];
  const int exponent = PackedExponent<1>(*p.magnitudes);
  if (exponent == GuessedExponent<1>(*p.magnitudes)) return;
  for (int i = static_cast<int>(blockIdx.x); i < p.parts; i += static_cast<int>(gridDim.x)) {
    PackPart<float, 1, true>(p, i, exponent);
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_
