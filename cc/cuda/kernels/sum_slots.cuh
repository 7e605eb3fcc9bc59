// The second stage of the Hopper weight gradients: adds the slots of all splits in their order, and
// puts every weight where it belongs. Bit-reproducible, no atomics.
//
// A slot holds 64 x 64 sums of one tap in the order of the matrix instruction's registers. A block
// takes 16 input and 8 output channels for up to kSumTaps taps, so that what it writes is
// contiguous. Of few channels blocks have fewer taps each, so that all multiprocessors read: what
// is written then is little. Warps share a block's taps and, of few taps, the splits.
#ifndef TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_
#define TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_

#include <algorithm>
#include <cstdint>

#include "core/wgrad_plan.h"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda {

struct SumParams {
  const float* slots;
  void* dw;  // (in_channels, out_channels / groups, kh, kw)
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, splits;
  WgradForm form;
  int taps, block_taps, tap_blocks;
  unsigned blocks;
  // Whether the last eight channels of a ragged count are the last chunk (core/rolling_plan.h).
  bool moved_back;
  int64_t count;                   // float4 of one split
  int16_t place[kWgradMaxPlaces];  // of a tap: (pass * tap groups + tap group) * slots + slot
};

constexpr int kSumThreads = 512, kSumWarps = kSumThreads / 32;
constexpr int kSumTaps = 16;      // of a block, at most
constexpr int kSumShared = 64;    // sums of a warp in shared memory
constexpr int kSumChain = 16;     // splits that a warp should add one after the other
constexpr int kSumParts = 8 * 4;  // blocks of one slot
constexpr int kSumBlocks = 264;   // that read as fast as a large card does

// Deals the taps of `slots` slots of channels to blocks.
inline void DealSums(int64_t slots, SumParams* p) {
  const int64_t units = slots * kSumParts;
  const int64_t wanted = std::clamp<int64_t>(CeilDiv(kSumBlocks, units), 1, p->taps);
  p->block_taps = std::min(static_cast<int>(CeilDiv(p->taps, wanted)), kSumTaps);
  p->tap_blocks = static_cast<int>(CeilDiv(p->taps, p->block_taps));
  p->blocks = static_cast<unsigned>(units * p->tap_blocks);
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) SumSlotsKernel(const __grid_constant__ SumParams p) {
  __shared__ float4 sums[kSumShared][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int unit = static_cast<int>(blockIdx.x);
  const int rows = unit % 4, columns = unit / 4 % 8;
  unit /= kSumParts;
  const int first_tap = unit % p.tap_blocks * p.block_taps;
  unit /= p.tap_blocks;
  const int half = unit % p.form.halves;
  unit /= p.form.halves;
  const int out_block = unit % p.out_blocks;
  const int in_block = unit / p.out_blocks % p.in_blocks;
  const int group = unit / p.out_blocks / p.in_blocks;
  const int first_in = (in_block * p.form.halves + half) * 64 + 16 * rows;
  const int first_out = out_block * 64 + 8 * columns;
  if (first_in >= p.in_per_group || first_out >= p.out_per_group) return;

  const int taps = min(p.taps - first_tap, p.block_taps);
  // Of the splits.
  const int chains = max((p.splits + kSumChain - 1) / kSumChain, min(kSumWarps / taps, p.splits));
  const int parts = min(chains, kSumShared / taps);
  for (int i = warp; i < taps * parts; i += kSumWarps) {
    const int tap = i / parts, part = i - tap * parts;
    const int place = p.place[first_tap + tap];
    const int slot = place % p.form.slots, lane_of_taps = place / p.form.slots;
    const int tap_group = lane_of_taps % p.form.tap_groups();
    const int pass = lane_of_taps / p.form.tap_groups();
    const int warpgroup = tap_group + half;  // halves have the same taps
    const int64_t tile =
        (static_cast<int64_t>(unit * p.passes + pass) * p.form.warpgroups + warpgroup) *
            p.form.slots +
        slot;
    const int begin = part * p.splits / parts, end = (part + 1) * p.splits / parts;
    const float4* at = reinterpret_cast<const float4*>(p.slots) + begin * p.count +
                       (tile * 8 + columns) * 128 + 32 * rows + lane;
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
    for (int s = begin; s < end; ++s, at += p.count) {
      const float4 v = *at;
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    sums[i][lane] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 16 * 8 * taps; i += kSumThreads) {
    const int tap = i % taps, out = i / taps % 8, in = i / taps / 8;
    const int from = 4 * (in % 8) + out / 2, element = 2 * (in / 8) + out % 2;
    float sum = 0.f;
    for (int part = 0; part < parts; ++part) {
      sum += reinterpret_cast<const float*>(&sums[tap * parts + part][from])[element];
    }
    const int in_chunk = first_in + in / 8 * 8;
    int to_in = in_chunk, to_out = first_out;
    if (p.moved_back) {
      to_in = min(to_in, p.in_per_group - 8);
      to_out = min(to_out, p.out_per_group - 8);
    }
    to_in += in % 8;
    to_out += out;
    if (to_in >= in_chunk && to_out >= first_out && to_in < p.in_per_group &&
        to_out < p.out_per_group) {
      const int64_t weight =
          (static_cast<int64_t>(group) * p.in_per_group + to_in) * p.out_per_group + to_out;
      static_cast<T*>(p.dw)[weight * p.taps + first_tap + tap] = Round<T>(sum);
    }
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_
