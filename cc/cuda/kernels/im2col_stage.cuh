// Copies a box of an image (core/im2col_box.h) into shared memory, as the values that the tensor
// cores multiply: float32 rounded to TF32, which holds 16-bit types exactly.
//
// The box's vectors are spread over the block's threads in the order of the image. A thread steps
// through the three axes by additions alone; several of its loads are on their way at a time,
// before the first of them is converted and stored. A vector is inside of the image or outside as a
// whole, and then it is zeros.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_STAGE_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_STAGE_CUH_

#include <cstdint>
#include <cstring>

#include "core/im2col_box.h"

namespace transconv::cuda::im2col {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T value[N];
};

// To shared memory in one instruction; of its own accord the compiler splits some.
template <int N>
__device__ __forceinline__ void StoreVector(float* to, const Vector<float, N>& v) {
#ifdef __CUDA_ARCH__
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (N == 4) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(v.value[0]),
                 "f"(v.value[1]), "f"(v.value[2]), "f"(v.value[3])
                 : "memory");
  } else if constexpr (N == 2) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(v.value[0]), "f"(v.value[1])
                 : "memory");
  } else {
    *to = v.value[0];
  }
#else
  *reinterpret_cast<Vector<float, N>*>(to) = v;
#endif
}

// The same to global memory, for 4, 8 or 16 bytes.
template <typename T, int N>
__device__ __forceinline__ void StoreGlobal(T* to, const Vector<T, N>& v) {
#ifdef __CUDA_ARCH__
  constexpr int kWords = sizeof(v) / 4;
  uint32_t word[kWords];
  memcpy(word, &v, sizeof(v));
  if constexpr (kWords == 4) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]),
                 "r"(word[2]), "r"(word[3])
                 : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1])
                 : "memory");
  } else {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
  }
#else
  *reinterpret_cast<Vector<T, N>*>(to) = v;
#endif
}

// kLines lines at a time, and kSteps vectors of each.
template <int kVector, int kLines, int kSteps, typename E>
__device__ __forceinline__ void StageLines(float* to, const typename E::Type* __restrict__ from,
                                           const Im2colBox& b, const int (&origin)[3]) {
  using Source = Vector<typename E::Type, kVector>;
  const int lanes = 1 << b.lanes_log2, apart = kBoxThreads >> b.lanes_log2;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int count = b.axis[0].count;
  for (int first = static_cast<int>(threadIdx.x) >> b.lanes_log2; first < b.lines;
       first += apart * kLines) {
    // Offsets wrap around; those of lines outside of the image are not used.
    uint32_t source[kLines];
    int target[kLines];
    unsigned limit[kLines];
#pragma unroll
    for (int i = 0; i < kLines; ++i) {
      const int line = first + i * apart;
      int outer = line;
      const int inner = b.by_count1.Split(outer);
      const int at1 = origin[1] + inner * b.axis[1].unit;
      const int at2 = origin[2] + outer * b.axis[2].unit;
      const bool inside = static_cast<unsigned>(at1) < static_cast<unsigned>(b.axis[1].limit) &&
                          static_cast<unsigned>(at2) < static_cast<unsigned>(b.axis[2].limit);
      limit[i] = inside && line < b.lines ? static_cast<unsigned>(b.axis[0].limit) : 0u;
      source[i] = static_cast<uint32_t>(at1) * static_cast<uint32_t>(b.axis[1].global) +
                  static_cast<uint32_t>(at2) * static_cast<uint32_t>(b.axis[2].global);
      target[i] = line < b.lines ? inner * b.axis[1].shared + outer * b.axis[2].shared : -1;
    }
    for (int step = lane; step < count; step += kSteps * lanes) {
      Source found[kLines][kSteps] = {};
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const int at = origin[0] + (step + j * lanes) * b.axis[0].unit;
        const bool there = step + j * lanes < count;
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
          if (there && static_cast<unsigned>(at) < limit[i]) {
            found[i][j] = *reinterpret_cast<const Source*>(from + (source[i] + at));
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kSteps; ++j) {
        const int place = (step + j * lanes) * kVector;
#pragma unroll
        for (int i = 0; i < kLines; ++i) {
          Vector<float, kVector> value;
#pragma unroll
          for (int k = 0; k < kVector; ++k) value.value[k] = E::Load(found[i][j].value[k]);
          if (target[i] >= 0 && step + j * lanes < count) {
            StoreVector(to + (target[i] + place), value);
          }
        }
      }
    }
  }
}

template <int kVector, typename E>
__device__ __forceinline__ void StageVectors(float* to, const typename E::Type* from,
                                             const Im2colBox& b, const int (&origin)[3]) {
  if (b.axis[0].count > 2 << b.lanes_log2) {
    StageLines<kVector, 1, 4, E>(to, from, b, origin);
  } else {
    StageLines<kVector, 4, 1, E>(to, from, b, origin);
  }
}

// `from` is the image's first element of the first channel that the box may have (of the group);
// row, column and channel are the box's first in the image, outside of it or not. `to` is aligned
// to 16 bytes; the box's first element is at to[b.Shift(column)].
template <typename E>
__device__ __forceinline__ void StageBox(float* to, const typename E::Type* from,
                                         const Im2colBox& b, int row, int column, int channel) {
  const int run = column * b.scale - b.Shift(column);
  const bool pixels = b.form == BoxForm::kPixels;
  const int origin[3] = {pixels ? channel : run, pixels ? column : row,
                         pixels                       ? row
                         : b.form == BoxForm::kPlanes ? channel
                                                      : 0};
  if (b.vector == 4) {
    StageVectors<4, E>(to, from, b, origin);
  } else if (b.vector == 2) {
    StageVectors<2, E>(to, from, b, origin);
  } else {
    StageVectors<1, E>(to, from, b, origin);
  }
}

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_STAGE_CUH_
