// Copies of boxes of a tensor of five dimensions to shared memory by the tensor memory accelerator
// (TMA), zeros where they lie outside.
#ifndef TRANSCONV_CUDA_PRIMITIVES_BOX_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_BOX_CUH_

#include <cstdint>

namespace transconv::cuda {

// A tensor of elements of 2, 4 or 8 bytes, and its boxes; the first dimension is dense, a box
// begins at 128 bytes of shared memory and lies there without gaps. A swizzled one, whose rows are
// of 128 bytes, begins at 1024, and the 16-byte chunks of row r lie at chunk ^ (r % 8).
struct BoxTensor {
  uint32_t element = 8;
  bool swizzled = false;
  const void* base = nullptr;  // aligned to 16 bytes
  uint64_t size[5] = {1, 1, 1, 1, 1};
  uint64_t stride[4] = {16, 16, 16, 16};  // of all dimensions but the first: bytes, in 16s
  uint32_t box[5] = {1, 1, 1, 1, 1};      // up to 256 elements
  uint32_t step[5] = {1, 1, 1, 1, 1};     // up to 8: every step-th is copied
};
constexpr uint32_t kMostBox = 256, kMostBoxStep = 8;

// The same as the hardware has it (launch/encode_box.h).
struct alignas(128) BoxMap {
  uint64_t opaque[16];
};

struct BoxPlace {
  int at[5];
};

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_BOX_CUH_
