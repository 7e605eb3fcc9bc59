// Brings an image into cells of eight channels in 16 bits, for the kernels that copy them.
//
// The result is [image][group][chunk of 8 channels][pixel][8], missing channels being zeros, and
// for three products once more with the low parts. float32 becomes float16 with one scale for the
// whole tensor: full precision for 2^26 below the largest magnitude, which a first pass finds.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda {

constexpr int kPackCellsThreads = 256;

// Largest finite magnitude of a tensor, as its bits; `largest` starts at zero.
static __global__ void __launch_bounds__(kPackCellsThreads)
    LargestKernel(const float* source, int64_t count, uint32_t* largest) {
  uint32_t found = 0;
  const int64_t stride = int64_t{gridDim.x} * kPackCellsThreads;
  const int64_t first = blockIdx.x * int64_t{kPackCellsThreads} + threadIdx.x;
  const auto take = [&](float v) {
    const uint32_t bits = __float_as_uint(v) & 0x7fffffffu;
    if (bits < 0x7f800000u) found = max(found, bits);
  };
  const float4* const vectors = reinterpret_cast<const float4*>(source);
#pragma unroll 4
  for (int64_t i = first; i < count / 4; i += stride) {
    const float4 v = vectors[i];
    take(v.x);
    take(v.y);
    take(v.z);
    take(v.w);
  }
  for (int64_t i = count / 4 * 4 + first; i < count; i += stride) take(source[i]);
  found = __reduce_max_sync(0xffffffffu, found);
  // The order of blocks does not matter to a maximum.
  if (threadIdx.x % 32 == 0 && found != 0) atomicMax(largest, found);
}

struct PackCellsParams {
  const void* source;
  uint4* cells;
  const uint32_t* largest;         // float32
  int64_t image, channel, pixel;   // strides of the source in elements
  int64_t low;                     // cells from a high part to its low part
  int pixels, channels_per_group;  // of an image, of a group
  int chunks, groups;              // chunks of a group
  Divider by_chunk, by_group;
  int blocks;  // of a chunk's pixels
};

// Block b packs pixels of one chunk: b = ((image * groups + group) * chunks + chunk) * blocks + i.
template <typename T, int PRODUCTS>
__global__ void __launch_bounds__(kPackCellsThreads)
    PackCellsKernel(const __grid_constant__ PackCellsParams p) {
  using Raw = typename Element<T>::Raw;
  const int64_t row = blockIdx.x / p.blocks;
  const int pixel = static_cast<int>(blockIdx.x - row * p.blocks) * kPackCellsThreads +
                    static_cast<int>(threadIdx.x);
  if (pixel >= p.pixels) return;
  int image = static_cast<int>(row);
  const int chunk = p.by_chunk.Split(image), group = p.by_group.Split(image);
  const int channel = group * p.channels_per_group + 8 * chunk;
  const int channels = min(p.channels_per_group - 8 * chunk, 8);
  const Raw* const from =
      static_cast<const Raw*>(p.source) + image * p.image + channel * p.channel + pixel * p.pixel;
  Raw v[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = k < channels ? from[k * p.channel] : Raw{0};
  const float scale = sizeof(T) == 4 ? ScaleOf(CellsExponent(*p.largest)) : 1.f;
  uint32_t packed[4], low[4];
  ConvertCell<T, PRODUCTS, 1>(v, scale, packed, low, 0);
  uint4* const to = p.cells + row * p.pixels + pixel;
  *to = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  if constexpr (PRODUCTS == 3) to[p.low] = make_uint4(low[0], low[1], low[2], low[3]);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_CELLS_CUH_
