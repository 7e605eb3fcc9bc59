// Brings weights into the order and the number format in which the tile kernels read them.
//
// The result is [group][m block of 64][row residue][slab of 16 k][tap][operand][2 chunks][64
// rows][8], m being the target's channel and k the source's; missing channels are zeros. Operands
// are the weight itself or, for three products, its high part, its low part, and the high part
// divided by kLowScale, which meets the pixels' low part stored times kLowScale. float32 rows carry
// a power of two of their own, so that float16 holds them with all its bits. Operands that have 32
// channels twice are in core/pack_order.h; a split one has the low part times kLowScale.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_WEIGHTS_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_WEIGHTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/divider.h"
#include "core/pack_order.h"
#include "core/tile_plan.h"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

constexpr int kPackThreads = 512;
constexpr int kPackLoads = 10;     // of a thread at a time
constexpr int kPackKept = 8192;    // weights of a row that are read once; the rest twice
constexpr int kPackExponent = 13;  // a row's largest weight becomes 2^13 or above

struct PackParams {
  const void* weight;  // (in_channels, out_channels / groups, kh, kw)
  uint8_t* packed;
  float* scales;                             // by target channel; float32 only
  int64_t stride_m, stride_k, stride_group;  // elements
  int groups, m_per_group, k_per_group, m_blocks, slabs;
  int taps, packed_taps;  // of the kernel; of the operand, more than those where it is stacked
  Divider by_tap, by_packed_tap;
  int block_channels, stack;  // as in PackedRow
  int first_tap[kMaxResidues + 1];
  int16_t tap_kernel[kMaxTileTaps];
};

// One block packs one row of the M operand.
template <typename T, int PRODUCTS, bool SPLIT = false>
__global__ void __launch_bounds__(kPackThreads)
    PackWeightsKernel(const __grid_constant__ PackParams p) {
  ptx::LetKernelBehindStart();
  const int rows = p.m_blocks * kPackedRows, group = blockIdx.x / rows;
  const PackedRow own(blockIdx.x % rows, p.block_channels, p.stack);
  const int channel = own.channel;
  const bool exists = channel < p.m_per_group;
  const T* row = static_cast<const T*>(p.weight) + group * p.stride_group + channel * p.stride_m;
  const auto at = [&](int k, int tap) { return row + k * p.stride_k + tap; };

  // float32: the row as it is, tap after tap of one channel after the other. It is read in the
  // order of memory, all of a thread's loads at a time, as the latency of each would be felt.
  __shared__ float kept[sizeof(T) == 4 ? kPackKept : 1];
  float scale = 1.f;
  if constexpr (sizeof(T) == 4) {
    __shared__ uint32_t warps[kPackThreads / 32];
    uint32_t largest = 0;
    const int count = exists ? p.k_per_group * p.taps : 0;
    for (int first = threadIdx.x; first < count; first += kPackLoads * kPackThreads) {
      float v[kPackLoads];
#pragma unroll
      for (int j = 0; j < kPackLoads; ++j) {
        const int i = first + j * kPackThreads;
        int k = i;
        const int tap = p.by_tap.Split(k);
        v[j] = i < count ? *at(k, tap) : 0.f;
      }
#pragma unroll
      for (int j = 0; j < kPackLoads; ++j) {
        const int i = first + j * kPackThreads;
        if (i < min(count, kPackKept)) kept[i] = v[j];
        const uint32_t bits = __float_as_uint(v[j]) & 0x7fffffffu;
        if (bits < 0x7f800000u) largest = max(largest, bits);
      }
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < kPackThreads / 32; ++i) largest = max(largest, warps[i]);
    const int exponent = max(static_cast<int>(largest >> 23) - 127, -100);
    scale = __int_as_float((kPackExponent - exponent + 127) << 23);
    if (threadIdx.x == 0 && exists && !own.second) {
      p.scales[static_cast<int64_t>(group) * p.m_per_group + channel] =
          __int_as_float((exponent - kPackExponent + 127) << 23);
    }
  }

  // Of the operand, scaled.
  const auto weight = [&](int k, int tap) {
    if constexpr (sizeof(T) == 4) {
      const int i = k * p.taps + tap;
      return (i < kPackKept ? kept[i] : *at(k, tap)) * scale;
    } else {
      return *at(k, tap);
    }
  };
  const int taps = p.packed_taps;
  const int64_t block = (static_cast<int64_t>(group) * p.m_blocks + own.block) * p.slabs * taps;
  for (int i = threadIdx.x; i < p.slabs * taps * 2; i += kPackThreads) {
    int slab = i / 2;
    const int chunk = i % 2, t = p.by_packed_tap.Split(slab);
    const int tap = own.TapOf(t, p.taps);
    const int kernel = tap >= 0 ? p.tap_kernel[tap] : 0;
    int residue = 0;
    while (t >= p.first_tap[residue + 1]) ++residue;
    const int count = p.first_tap[residue + 1] - p.first_tap[residue];
    const int64_t place = block + static_cast<int64_t>(p.slabs) * p.first_tap[residue] +
                          static_cast<int64_t>(slab) * count + (t - p.first_tap[residue]);
    __align__(16) T operands[PRODUCTS == 3 && sizeof(T) == 4 ? 1 : 8];
    __align__(16) __half halves[3][8];
    for (int c = 0; c < 8; ++c) {
      const int k = slab * 16 + chunk * 8 + c;
      const bool inside = exists && tap >= 0 && k < p.k_per_group;
      if constexpr (sizeof(T) == 4) {
        const float v = inside ? weight(k, kernel) : 0.f;
        const __half high = __float2half_rn(v);
        if constexpr (SPLIT) {
          const float low = (v - __half2float(high)) * kLowScale;
          halves[0][c] = own.second ? __float2half_rn(low) : high;
          continue;
        }
        halves[0][c] = high;
        halves[1][c] = __float2half_rn(v - __half2float(high));
        halves[2][c] = __float2half_rn(__half2float(high) * (1.f / kLowScale));
      } else {
        operands[c] = inside ? weight(k, kernel) : static_cast<T>(0.f);
      }
    }
    using Tap = PackedTap<SPLIT>;
    uint8_t* out = p.packed + place * (PRODUCTS * Tap::kBytes) + Tap::RowAt(chunk, own.row);
    if (SPLIT && !own.second) *reinterpret_cast<uint4*>(out - Tap::kFirst) = make_uint4(0, 0, 0, 0);
    for (int o = 0; o < PRODUCTS; ++o) {
      if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<uint4*>(out + o * Tap::kBytes) =
            *reinterpret_cast<const uint4*>(halves[o]);
      } else {
        *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(operands);
      }
    }
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_WEIGHTS_CUH_
