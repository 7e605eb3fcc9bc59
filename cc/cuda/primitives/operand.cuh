// How element types become 16-bit tensor-core operands.
//
// float16 and bfloat16 are taken as they are. float32 is multiplied in float16, scaled by a power
// of two that follows the data (a "block exponent"): float16 keeps TF32's 11-bit significand at
// twice TF32's rate, and the scale keeps magnitudes inside float16's range. A scale serves while
// the largest scaled magnitude of a block of data stays inside a window of 19 binades.
#ifndef TRANSCONV_CUDA_PRIMITIVES_OPERAND_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_OPERAND_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

template <typename T>
struct Element;
template <>
struct Element<float> {
  using Operand = __half;
  using Raw = float;
};
template <>
struct Element<__half> {
  using Operand = __half;
  using Raw = uint16_t;
};
template <>
struct Element<__nv_bfloat16> {
  using Operand = __nv_bfloat16;
  using Raw = uint16_t;
};

// The window, as float16 bit patterns.
constexpr uint32_t kWindowLow = 0x2c00;   // 2^-4
constexpr uint32_t kWindowHigh = 0x7800;  // 2^15
constexpr int kTargetExponent = 12;       // a fresh scale puts the maximum at 2^12 or above
constexpr int kCellsHeadroom = 2;         // of one scale for everything: the maximum at 2^14
constexpr int kMinExponent = -100;        // of the data: the scale itself stays representable

__device__ __forceinline__ float PowerOfTwo(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}
// What data whose largest magnitude has this exponent is multiplied by.
__device__ __forceinline__ float ScaleOf(int exponent) {
  return PowerOfTwo(kTargetExponent - exponent);
}
__device__ __forceinline__ int ExponentOf(float scale) {
  return kTargetExponent - ((__float_as_int(scale) >> 23) - 127);
}
// Whether a block whose largest scaled magnitude this is (a float16 pattern) needs another scale.
// `may_fall`: nothing has been summed with the present one yet.
__device__ __forceinline__ bool LeavesWindow(uint32_t largest, bool may_fall) {
  return largest >= kWindowHigh || (may_fall && largest < kWindowLow);
}

// A table entry for a cell outside the image.
constexpr uint32_t kNoCell = 0xffffffffu;

// Gathers eight channels of one pixel per lane. `base` is the same for the whole warp, so that each
// load is one instruction with a uniform base and a 32-bit lane offset (bytes, or kNoCell).
// Channels from `channels` on do not exist and read as zero. No branches: with one in between, the
// compiler lets all loads in flight share a scoreboard, and then the first that is waited for waits
// for the last.
template <typename Raw>
__device__ __forceinline__ void GatherCell(Raw (&v)[8], const char* base, uint32_t channel_bytes,
                                           uint32_t offset, int channels) {
  const uint32_t wanted = offset == kNoCell ? 0u : (1u << min(max(channels, 0), 8)) - 1;
  const char* const cell = base + offset;
  // One multiply-add for each address, none waiting for another.
#pragma unroll
  for (uint32_t k = 0; k < 8; ++k) {
    v[k] = ptx::LoadIf(reinterpret_cast<const Raw*>(ptx::Advance(cell, k, channel_bytes)),
                       wanted & 1u << k);
  }
}

// A cell's place relative to its tile's origin in the source image, both below 2^16.
__device__ __forceinline__ uint32_t PackPlace(int y, int x) {
  return static_cast<uint32_t>(y) << 16 | static_cast<uint32_t>(x);
}
// Its byte offset in the image for a tile at (origin_y, origin_x), or kNoCell.
__device__ __forceinline__ uint32_t OffsetOf(uint32_t place, int origin_y, int origin_x, int height,
                                             int width, uint32_t pixel_bytes) {
  const int y = origin_y + static_cast<int>(place >> 16);
  const int x = origin_x + static_cast<int>(place & 0xffff);
  const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(height) &&
                      static_cast<unsigned>(x) < static_cast<unsigned>(width);
  return inside ? static_cast<uint32_t>(y * width + x) * pixel_bytes : kNoCell;
}

// Largest finite magnitude of a thread's raw values, as its bits; for choosing an exponent.
template <typename Raw, int N>
__device__ __forceinline__ uint32_t LargestBits(const Raw (&v)[N], uint32_t largest) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const uint32_t bits = __float_as_uint(static_cast<float>(v[k])) & 0x7fffffffu;
    if (bits < 0x7f800000u && bits > largest) largest = bits;
  }
  return largest;
}
// The exponent that data with this largest magnitude needs, given the present one.
__device__ __forceinline__ int NeededExponent(uint32_t largest_bits, int exponent, bool may_fall) {
  if (largest_bits == 0) return exponent;
  const int needed = max(static_cast<int>(largest_bits >> 23) - 127, kMinExponent);
  return may_fall ? needed : max(needed, exponent);
}

// The exponent of cells that are packed with one scale, from their largest magnitude's bits. As
// nothing larger can follow, they take what float16 has above a fresh scale.
__device__ __forceinline__ int CellsExponent(uint32_t largest_bits) {
  return NeededExponent(largest_bits, kMinExponent + kCellsHeadroom, true) - kCellsHeadroom;
}

// What is known of a packed tensor's magnitudes, as bits of float32: the largest of a sample, and
// the largest of all once it has been packed.
struct Magnitudes {
  uint32_t sample, all;
};
// The exponent of cells that were packed with a guess from the sample and, if that did not serve,
// packed again. Three products lose digits at the lower end of a guess: their sample is everything.
constexpr int kGuessHeadroom = 3;
template <int PRODUCTS>
__device__ __forceinline__ int GuessedExponent(const Magnitudes& m) {
  return CellsExponent(m.sample) + (PRODUCTS == 3 ? 0 : kGuessHeadroom);
}
template <int PRODUCTS>
__device__ __forceinline__ int PackedExponent(const Magnitudes& m) {
  return max(GuessedExponent<PRODUCTS>(m), CellsExponent(m.all));
}

// One cell: eight channels in 16 bits, and for three products the part that rounding cut off, times
// LOW_SCALE. Returns the larger of `largest` and the cell's magnitudes, per half.
template <typename T, int PRODUCTS, int LOW_SCALE>
__device__ __forceinline__ uint32_t ConvertCell(const typename Element<T>::Raw (&v)[8], float scale,
                                                uint32_t (&packed)[4], uint32_t (&low)[4],
                                                uint32_t largest) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      const float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
      packed[i] = ptx::PackHalf2(a, b);
      if constexpr (PRODUCTS == 3) {
        const __half2 h = reinterpret_cast<const __half2&>(packed[i]);
        low[i] =
            ptx::PackHalf2((a - __low2float(h)) * LOW_SCALE, (b - __high2float(h)) * LOW_SCALE);
      }
    } else {
      packed[i] = v[2 * i] | static_cast<uint32_t>(v[2 * i + 1]) << 16;
    }
  }
  if constexpr (sizeof(T) == 4) {
    largest = ptx::MaxAbsHalf2(largest, ptx::MaxAbsHalf2(ptx::MaxAbsHalf2(packed[0], packed[1]),
                                                         ptx::MaxAbsHalf2(packed[2], packed[3])));
  }
  return largest;
}

// The same of one channel, in the lower halves.
template <typename T, int PRODUCTS, int LOW_SCALE>
__device__ __forceinline__ uint32_t ConvertChannel(typename Element<T>::Raw v, float scale,
                                                   uint32_t* packed, uint32_t* low,
                                                   uint32_t largest) {
  if constexpr (sizeof(T) == 4) {
    const float a = v * scale;
    *packed = ptx::PackHalf2(a, 0.f);
    if constexpr (PRODUCTS == 3) {
      const __half2 h = reinterpret_cast<const __half2&>(*packed);
      *low = ptx::PackHalf2((a - __low2float(h)) * LOW_SCALE, 0.f);
    }
    largest = ptx::MaxAbsHalf2(largest, *packed);
  } else {
    *packed = v;
  }
  return largest;
}

template <typename T>
__device__ __forceinline__ T Round(float v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(v);
  } else {
    return __float2bfloat16_rn(v);
  }
}

// Two neighbours, stored at once.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};
template <typename T>
__device__ __forceinline__ Pair<T> RoundPair(float first, float second) {
  if constexpr (sizeof(T) == 4) {
    return {first, second};
  } else if constexpr (std::is_same_v<T, __half>) {
    const __half2 v = __floats2half2_rn(first, second);
    return {v.x, v.y};
  } else {
    const __nv_bfloat162 v = __floats2bfloat162_rn(first, second);
    return {v.x, v.y};
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_OPERAND_CUH_
