// What the Hopper kernels share on the host: the machine, the limits of their 32-bit offsets, their
// products, and what the rolling kernels are for.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_LIMITS_H_
#define TRANSCONV_CUDA_LAUNCH_SM90_LIMITS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv::cuda {

constexpr int kSm90SharedBytes = 227 * 1024;  // what one block may have
// Blocks that fill a machine. A constant, so that results and workspace are the same on all.
constexpr int kSm90Blocks = 132;

// Why a problem is too large, or null. Whole tensors may be of any size.
inline const char* TooLarge(const Problem& q, DType dtype) {
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  constexpr int64_t kUnsigned = std::numeric_limits<uint32_t>::max();
  const bool last = q.layout == Layout::kNHWC;
  const int64_t element = static_cast<int64_t>(ByteWidth(dtype));
  const int64_t x = q.h.in * q.w.in * (last ? q.in_channels : 1) * element;
  const int64_t y = q.h.out * q.w.out * (last ? q.out_channels : 1) * element;
  if (std::max(x, y) >= kUnsigned || std::max(q.h.in * q.w.in, q.h.out * q.w.out) > kInt) {
    return "an image exceeds 32-bit offsets";
  }
  if (std::max(q.in_channels, q.out_channels) > kInt / 1024 || q.batch > kInt / 2 ||
      std::max({q.h.stride, q.w.stride, q.h.dilation, q.w.dilation}) > kInt / 65536) {
    return "an extent exceeds 32-bit arithmetic";
  }
  return nullptr;
}

// The largest copy of at most `vector` bytes that a tensor's start allows: a slice of a buffer may
// start anywhere.
inline int Aligned(const void* tensor, int vector) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(tensor);
  while (at % static_cast<uintptr_t>(vector) != 0) vector /= 2;
  return vector;
}

// Products of a float32 multiplication: three are as accurate as a multiply-add.
inline int ProductsOf(const Problem& q, DType dtype) {
  return dtype == DType::kF32 && q.precision != Precision::kDefault ? 3 : 1;
}

// Why a problem is none for the rolling kernels, or null.
inline const char* CannotRoll(const Problem& q, DType dtype) {
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (q.layout != Layout::kNCHW) return "reads rows of one channel: NCHW alone";
  if (std::max({q.h.stride, q.w.stride, q.h.dilation, q.w.dilation}) != 1) {
    return "needs stride 1 and dilation 1";
  }
  return TooLarge(q, dtype);
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_LIMITS_H_
