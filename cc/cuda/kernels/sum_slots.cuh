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

#include "core/divider.h"
#include "core/wgrad_plan.h"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda {

struct SumParams {
  const float* slots;
  void* dw;  // (in_channels, out_channels / groups, kh, kw)
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, splits;
  WgradForm form;
  int taps;
  // Whether the last eight channels of a ragged count are the last chunk (core/rolling_plan.h).
  bool moved_back;
  int64_t count;  // float4 of one split
  // Of a tap: (pass * tap groups + tap group) * slots + slot. DealSums makes it the slot among
  // those of a pair of channel blocks, of the first half.
  int16_t place[kWgradMaxPlaces];

  // What DealSums fills in, so that the kernel, which has little else to do than to find its place,
  // does not divide.
  unsigned blocks;
  int block_taps, parts;  // parts of the splits, that warps add
  int places;             // slots of a pair of channel blocks
  Divider by_tap_blocks, by_halves, by_out, by_in, by_parts, by_taps;
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
  const int tap_blocks = static_cast<int>(CeilDiv(p->taps, p->block_taps));
  p->blocks = static_cast<unsigned>(units * tap_blocks);
  const int chains = static_cast<int>(CeilDiv(p->splits, kSumChain));
  const int busy = std::min(kSumWarps / p->block_taps, p->splits);
  p->parts = std::min(std::max(chains, busy), kSumShared / p->block_taps);
  p->places = p->passes * p->form.warpgroups * p->form.slots;
  for (int tap = 0; tap < p->taps; ++tap) {
    const int slot = p->place[tap] % p->form.slots, group = p->place[tap] / p->form.slots;
    const int pass = group / p->form.tap_groups(), tap_group = group % p->form.tap_groups();
    p->place[tap] =
        static_cast<int16_t>((pass * p->form.warpgroups + tap_group) * p->form.slots + slot);
  }
  p->by_tap_blocks = Divider(tap_blocks);
  p->by_halves = Divider(p->form.halves);
  p->by_out = Divider(p->out_blocks);
  p->by_in = Divider(p->in_blocks);
  p->by_parts = Divider(p->parts);
  p->by_taps = Divider(p->block_taps);
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) SumSlotsKernel(const __grid_constant__ SumParams p) {
  __shared__ float4 sums[kSumShared][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int unit = static_cast<int>(blockIdx.x);
  const int rows = unit % 4, columns = unit / 4 % 8;
  unit /= kSumParts;
  const int first_tap = p.by_tap_blocks.Split(unit) * p.block_taps;
  const int half = p.by_halves.Split(unit);
  int group = unit;
  const int out_block = p.by_out.Split(group), in_block = p.by_in.Split(group);
  const int first_in = (in_block * p.form.halves + half) * 64 + 16 * rows;
  const int first_out = out_block * 64 + 8 * columns;
  if (first_in >= p.in_per_group || first_out >= p.out_per_group) return;

  const int taps = min(p.taps - first_tap, p.block_taps);
  const int64_t first_tile = int64_t{unit} * p.places + half * p.form.slots;
  for (int i = warp; i < taps * p.parts; i += kSumWarps) {
    int tap = i;
    const int part = p.by_parts.Split(tap);
    const int64_t tile = first_tile + p.place[first_tap + tap];
    const auto split = [&](int n) {
      return static_cast<int>(p.by_parts.Quotient(static_cast<uint32_t>(n * p.splits)));
    };
    const int begin = split(part), end = split(part + 1);
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
  for (int i = threadIdx.x; i < 16 * 8 * p.block_taps; i += kSumThreads) {
    int rest = i;
    const int tap = p.by_taps.Split(rest), out = rest % 8, in = rest / 8;
    if (tap >= taps) continue;
    const int from = 4 * (in % 8) + out / 2, element = 2 * (in / 8) + out % 2;
    float sum = 0.f;
    for (int part = 0; part < p.parts; ++part) {
      sum += reinterpret_cast<const float*>(&sums[tap * p.parts + part][from])[element];
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
