// Hopper's weight gradient of stride 1: whole rows roll through shared memory
// (core/rolling_plan.h).
//
//     4 producer warps    load an item, two rows of x and dy for 64 channels each, convert it to 16
//                         bits and store it as cells; x and dy are read and converted once
//     12 consumer warps   one warpgroup for each of three horizontal taps; the three vertical taps
//                         are the columns of one matrix instruction, since rows of dy lie at a
//                         fixed distance
//
// What makes it fast is how little the producers do for a load: no tables, no divisions, and loops
// small enough for the compiler to keep every load in flight apart. Blocks write their sums,
// in float32 and at a fixed interval, to private slots, which sm90_wgrad's second kernel adds in
// order. float32 carries a block exponent for each image; data that leaves its window starts a new
// segment with another exponent, from the item before on.
//
// 16-bit elements are loaded two columns at a time where rows allow it: as many loads in flight
// bring twice the cells.
//
// PRODUCTS = 3, as accurate as float32: the high and low bits of 32 channels are the 64 channels of
// either operand, so that the same instruction gives all four products (RollingSplit).
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_CUH_

#include <cstdint>

#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/sm90_wgrad_rolling_pairs.cuh"
#include "cuda/kernels/sm90_wgrad_rolling_params.cuh"
#include "cuda/kernels/sm90_wgrad_rolling_producer.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  static constexpr int kParts = PRODUCTS == 3 ? 2 : 1;
  using Ring = RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES, kParts>;
  static constexpr bool kScaled = sizeof(T) == 4;
  static constexpr int kN = 32 * OUT_HALVES * kParts * kRollingTaps;
  static constexpr int kHigh = PRODUCTS == 3 ? RollingSplit::kPairs : 0;
  static constexpr int kFlush = kFlushPixels / (2 * COLUMNS);  // steps

  const RollingParams& p;
  Control& control;
  const uint32_t ring;
  const int group;  // warpgroup, which is the horizontal tap

  __device__ void Run() const {
    float sum[kN / 2];
    float high[kHigh + 1][2];  // the products of high parts, in float32
    int slot = 0;
    uint32_t parity = 0;
    bool clear = true;
    const int lane = threadIdx.x % 32;
    ptx::BarrierWait(ptx::SharedAddress(&control.full[0]), 0);
    RollingItem item(&control.item[0], lane);
    do {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sum[i] = 0.f;
#pragma unroll
      for (int i = 0; i < kHigh; ++i) high[i][0] = high[i][1] = 0.f;
      const int exponent = item.exponent();
      // `slot` holds an item that may be the upper one of a step.
      for (int n = 0; n < kFlush && !item.last();) {
        const int next = slot + 1 == kRollingSlots ? 0 : slot + 1;
        const uint32_t next_parity = next == 0 ? parity ^ 1 : parity;
        ptx::BarrierWait(ptx::SharedAddress(&control.full[next]), next_parity);
        item = RollingItem(&control.item[next], lane);
        if (!item.first()) {
          Step(sum, high, slot);
          ++n;
        }
        if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[slot]));
        slot = next;
        parity = next_parity;
        if (item.exponent() != exponent) break;
      }
      Flush(sum, high, exponent, clear);
      clear = false;
    } while (!item.last());
  }

  // Adds to the block's slot, or begins it.
  __device__ __forceinline__ void Flush(const float (&sum)[kN / 2],
                                        const float (&high)[kHigh + 1][2], int exponent,
                                        bool clear) const {
    float4* const to = reinterpret_cast<float4*>(p.slots) +
                       (control.work.slot * int64_t{kRollingTaps} + group) * (kRollingTaps * 1024);
    const int thread = threadIdx.x % 128;
    // Two factors: their product may leave float32's range.
    const float scale = kScaled ? PowerOfTwo(exponent / 2 - kTargetExponent) : 1.f;
    const float scale_too = kScaled ? PowerOfTwo(exponent - exponent / 2 - kTargetExponent) : 1.f;
    // Not all loads at once: they would need as many registers as the sums.
    if constexpr (PRODUCTS == 3) {
      float2* const quarter =
          reinterpret_cast<float2*>(to) +
          RollingSplit::SlotPair(control.work.in_block, control.work.out_block, thread, 0);
#pragma unroll
      for (int i = 0; i < kHigh; ++i) {
        float2* const at = quarter + RollingSplit::SlotPair(0, 0, 0, i);
        float value[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto product = [&](int x_part, int dy_part) {
            return sum[RollingSplit::Accumulator(i, e, x_part, dy_part)];
          };
          constexpr float kLow = RollingSplit::kLow;
          const float low = product(1, 0) + product(0, 1) + product(1, 1) * kLow;
          value[e] = high[i][e] + low * kLow;
        }
        asm volatile("" ::: "memory");
        const float2 old = clear ? make_float2(0.f, 0.f) : *at;
        *at =
            make_float2(old.x + value[0] * scale * scale_too, old.y + value[1] * scale * scale_too);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) {
        constexpr int kBlocks = 4 * OUT_HALVES;  // of 8 columns of one tap
        float4* const at = to + (i / kBlocks * 8 + i % kBlocks) * 128 + thread;
        asm volatile("" ::: "memory");
        const float4 old = clear ? make_float4(0.f, 0.f, 0.f, 0.f) : *at;
        *at = make_float4(
            old.x + sum[4 * i] * scale * scale_too, old.y + sum[4 * i + 1] * scale * scale_too,
            old.z + sum[4 * i + 2] * scale * scale_too, old.w + sum[4 * i + 3] * scale * scale_too);
      }
    }
  }

  // Adds two rows.
  __device__ __forceinline__ void Step(float (&sum)[kN / 2], float (&high)[kHigh + 1][2],
                                       int slot) const {
    const uint64_t x =
        wgmma::Descriptor(128, Ring::kXChunk) | ((ring + Ring::kXAt + slot * Ring::kXItem) >> 4);
    const uint64_t dy =
        wgmma::Descriptor(128, Ring::kDyChunk) | ((ring + slot * Ring::kDyItem + group * 16) >> 4);
    constexpr int kSteps = COLUMNS / 16, kTogether = PRODUCTS == 3 ? kPromote / 2 : kSteps;
    // Not unrolled: the compiler would give the sums other registers behind every addition and
    // serialise the instructions.
#pragma unroll 1
    for (int first = 0; first < kSteps; first += kTogether) {
      wgmma::Pin(sum);
      wgmma::Fence();
#pragma unroll
      for (int k = first; k < first + kTogether; ++k) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          wgmma::MultiplyRows<Operand, kN>::Run(sum, x + (row * (Ring::kXRow >> 4) + 16u * k),
                                                dy + (row * (Ring::kDyRow >> 4) + 16u * k));
        }
      }
      wgmma::Commit();
      wgmma::Wait<0>();
      wgmma::Pin(sum);
#pragma unroll
      for (int i = 0; i < kHigh; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& product = sum[RollingSplit::Accumulator(i, e, 0, 0)];
          high[i][e] += product;
          product = 0.f;
        }
      }
    }
  }
};

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, 1)
    RollingWgradKernel(const __grid_constant__ RollingParams p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t ring = ptx::SharedAddress(shared) + kControlBytes;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRollingSlots; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumerWarps);
    }
    ptx::BarrierInitFence();
    control.work = WorkOf<PRODUCTS == 3 ? RollingSplit::kChannels : 64>(p);
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    if constexpr (PRODUCTS == 3) ptx::RegistersDown<kProducerRegisters>();
    if constexpr (sizeof(T) == 2) {
      if (p.pairs_of_columns) {
        PairProducer<COLUMNS, IN_HALVES, OUT_HALVES>(p, control, ring, warp, lane).Run();
        return;
      }
    }
    Producer<T, COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS>(p, control, ring, warp, lane).Run();
  } else {
    if constexpr (PRODUCTS == 3) ptx::RegistersUp<kConsumerRegisters>();
    Consumer<T, COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS>{p, control, ring, warp / 4 - 1}.Run();
  }
}

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_CUH_
