// Cells of float32 in flight, ahead of their use.
//
// A ring in shared memory that every lane fills by asynchronous copies and reads alone, so that it
// needs no barrier. Loads into registers cannot do this: all loads of a loop share one scoreboard,
// and to wait for the oldest is to wait for the newest.
#ifndef TRANSCONV_CUDA_KERNELS_CELLS_AHEAD_CUH_
#define TRANSCONV_CUDA_KERNELS_CELLS_AHEAD_CUH_

#include <cstdint>

#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

constexpr int kCellBytes = 32 * 8 * 4;  // of a warp: 32 cells of 8 channels

// Cells that a warp with `units` of them in a stage has in flight, of at most `most`.
constexpr int AheadOf(int units, int most) {
  return units >= most ? most : units >= 4 ? 4 : units >= 2 ? 2 : 1;
}

template <int kMost>
struct CellsAhead {
  const uint32_t ring;  // shared address of this lane's first value
  const int ahead;      // AheadOf(..., kMost)
  int slot = 0;

  // Eight channels of one pixel per lane, as GatherCell; into the slot that was taken last.
  __device__ __forceinline__ void Start(const char* base, uint32_t channel_bytes, uint32_t offset,
                                        int channels) {
    const uint32_t to = ring + slot * kCellBytes;
    const char* at = base + offset;
    const bool inside = offset != kNoCell;
    if (channels >= 8) {
#pragma unroll
      for (int k = 0; k < 8; ++k, at += channel_bytes) ptx::CopyAsync4(to + 128 * k, at, inside);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k, at += channel_bytes) {
        ptx::CopyAsync4(to + 128 * k, at, inside && k < channels);
      }
    }
    ptx::CopyAsyncCommit();
    slot = slot + 1 == ahead ? 0 : slot + 1;
  }

  // The oldest cell; the next Start takes its slot.
  __device__ __forceinline__ void Take(float (&v)[8]) const {
    if (ahead == kMost) {
      ptx::CopyAsyncWait<kMost - 1>();
    } else if (ahead == 4) {
      ptx::CopyAsyncWait<3>();
    } else if (ahead == 2) {
      ptx::CopyAsyncWait<1>();
    } else {
      ptx::CopyAsyncWait<0>();
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = ptx::LoadShared(ring + slot * kCellBytes + 128 * k);
  }
};

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_CELLS_AHEAD_CUH_
