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

#include "core/im2col_box.h"

namespace transconv::cuda::im2col {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
  T value[N];
};

// One axis of a thread's walk. Offsets wrap around: those of positions outside are never used.
struct Walk {
  int at, end;  // coordinate in the image
  int step, span;
  uint32_t next_global;  // on to the first position of the next one of the outer axis
  int next_shared;
};

template <int kVector, typename E>
__device__ __forceinline__ void StageVectors(float* to, const typename E::Type* __restrict__ from,
                                             const Im2colBox& b, const int (&origin)[3]) {
  constexpr int kAhead = kVector == 4 ? 4 : 8;
  using Source = Vector<typename E::Type, kVector>;
  using Target = Vector<float, kVector>;
  int rest = static_cast<int>(threadIdx.x);
  Walk walk[3];
  uint32_t global = 0, global_step = 0;
  int shared = 0, shared_step = 0;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const BoxAxis& axis = b.axis[i];
    const int first = i < 2 ? b.by_count[i].Split(rest) : rest;
    walk[i].step = b.step[i] * axis.unit;
    walk[i].span = axis.count * axis.unit;
    walk[i].at = origin[i] + first * axis.unit;
    walk[i].end = origin[i] + walk[i].span;
    global += static_cast<uint32_t>(walk[i].at) * static_cast<uint32_t>(axis.global);
    global_step += static_cast<uint32_t>(walk[i].step) * static_cast<uint32_t>(axis.global);
    shared += first * axis.shared;
    shared_step += b.step[i] * axis.shared;
    if (i < 2) {
      const BoxAxis& outer = b.axis[i + 1];
      walk[i].next_global =
          static_cast<uint32_t>(outer.unit) * static_cast<uint32_t>(outer.global) -
          static_cast<uint32_t>(walk[i].span) * static_cast<uint32_t>(axis.global);
      walk[i].next_shared = outer.shared - axis.count * axis.shared;
    }
  }
  const int unit1 = b.axis[1].unit, unit2 = b.axis[2].unit;
  while (walk[2].at < walk[2].end) {
    Source found[kAhead];
    int place[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const bool inside =
          static_cast<unsigned>(walk[0].at) < static_cast<unsigned>(b.axis[0].limit) &&
          static_cast<unsigned>(walk[1].at) < static_cast<unsigned>(b.axis[1].limit) &&
          static_cast<unsigned>(walk[2].at) < static_cast<unsigned>(b.axis[2].limit);
      place[j] = walk[2].at < walk[2].end ? shared : -1;
#pragma unroll
      for (int k = 0; k < kVector; ++k) found[j].value[k] = 0;  // zero's bits in every type
      if (inside && place[j] >= 0) found[j] = *reinterpret_cast<const Source*>(from + global);
      global += global_step;
      shared += shared_step;
      walk[0].at += walk[0].step;
      walk[1].at += walk[1].step;
      walk[2].at += walk[2].step;
      if (walk[0].at >= walk[0].end) {
        walk[0].at -= walk[0].span;
        walk[1].at += unit1;
        global += walk[0].next_global;
        shared += walk[0].next_shared;
      }
      if (walk[1].at >= walk[1].end) {
        walk[1].at -= walk[1].span;
        walk[2].at += unit2;
        global += walk[1].next_global;
        shared += walk[1].next_shared;
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (place[j] < 0) continue;
      Target value;
#pragma unroll
      for (int k = 0; k < kVector; ++k) value.value[k] = E::Load(found[j].value[k]);
      *reinterpret_cast<Target*>(to + place[j]) = value;
    }
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
