// The second stage of the Hopper weight gradients: adds the slots of all splits in their order, and
// puts every weight where it belongs. Bit-reproducible, no atomics.
#ifndef TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_
#define TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_

#include <cstdint>

#include "core/wgrad_plan.h"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda {

struct SumParams {
  const float* slots;
  void* dw;  // (in_channels, out_channels / groups, kh, kw)
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, units, splits;
  WgradForm form;
  int taps;
  // Whether the last eight channels of a ragged count are the last chunk (core/rolling_plan.h).
  bool moved_back;
  int64_t count;  // float4 of one split
  int16_t tap[kWgradMaxPlaces];
};

constexpr int kSumThreads = 128;

template <typename T>
__global__ void __launch_bounds__(kSumThreads) SumSlotsKernel(const __grid_constant__ SumParams p) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kSumThreads) + threadIdx.x;
  if (i >= p.count) return;
  // i = (((unit * warpgroups + group) * slots + slot) * 8 + j) * 128 + thread
  const int thread = static_cast<int>(i % 128), j = static_cast<int>(i / 128 % 8);
  const int64_t tile = i / 1024;
  const int slot = static_cast<int>(tile % p.form.slots);
  const int group = static_cast<int>(tile / p.form.slots % p.form.warpgroups);
  int unit = static_cast<int>(tile / p.form.slots / p.form.warpgroups);
  const int pass = unit % p.passes;
  unit /= p.passes;
  const int out_block = unit % p.out_blocks;
  unit /= p.out_blocks;
  const int in_block = unit % p.in_blocks, channel_group = unit / p.in_blocks;
  // Halves have the same taps.
  const int half = p.form.halves == 2 ? group : 0, tap_group = group - half;
  const int tap = p.tap[(pass * p.form.tap_groups() + tap_group) * p.form.slots + slot];
  if (tap < 0 || out_block * 64 + 8 * j >= p.out_per_group) return;

  const float4* at = reinterpret_cast<const float4*>(p.slots) + i;
  float sum[4] = {};
#pragma unroll 8
  for (int s = 0; s < p.splits; ++s, at += p.count) {
    const float4 v = *at;
    sum[0] += v.x;
    sum[1] += v.y;
    sum[2] += v.z;
    sum[3] += v.w;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int in_chunk = (in_block * p.form.halves + half) * 64 + 16 * (thread / 32) + 8 * (e / 2);
    const int out_chunk = out_block * 64 + 8 * j;
    int in = in_chunk, out = out_chunk;
    if (p.moved_back) {
      in = min(in, p.in_per_group - 8);
      out = min(out, p.out_per_group - 8);
    }
    in += thread % 32 / 4;
    out += 2 * (thread % 4) + e % 2;
    if (in >= in_chunk && out >= out_chunk && in < p.in_per_group && out < p.out_per_group) {
      const int64_t place =
          ((static_cast<int64_t>(channel_group) * p.in_per_group + in) * p.out_per_group + out) *
              p.taps +
          tap;
      static_cast<T*>(p.dw)[place] = Round<T>(sum[e]);
    }
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_SUM_SLOTS_CUH_
