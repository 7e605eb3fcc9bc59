// Hopper's forward pass and gradient of x at stride 1: whole rows roll through shared memory
// (core/rolling_plan.h), while all weights of a block of 64 target channels stay there.
//
//     8 producer warps   load an item, two source rows of all channels, convert it to 16 bits and
//                        store it as cells; every row is read and converted once. Up to 32
//                        channels leave shared memory for what is loaded ahead
//     8 consumer warps   two warpgroups, a target row each, or pairs in turns (RollingTaps): for
//                        every tap and 16 channels one matrix instruction, whose pixel operand
//                        starts at the tap's cell; then the rows leave as in
//                        kernels/store_rows.cuh
//
// float32 is multiplied in float16 with a block exponent (primitives/operand.cuh). Data that leaves
// its window starts a new segment with another exponent, from the item before on. With three
// products, cells have a low part too, and the operand's other 32 rows are the weights' low parts.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_

#include <cstdint>

#include "core/pack_order.h"
#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/sm90_rolling_ahead.cuh"
#include "cuda/kernels/sm90_rolling_gather.cuh"
#include "cuda/kernels/sm90_rolling_params.cuh"
#include "cuda/kernels/store_rows.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_rolling {

constexpr int kJoinBarrier = 2;  // the first of four

template <typename T, int N, int HALVES, int PRODUCTS>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  using Ring = RollingTileRing<N, HALVES>;
  static constexpr bool kScaled = sizeof(T) == 4;

  const RollingParams& p;
  Control& control;
  const uint32_t weights, ring;  // shared addresses
  T* const staging;              // this warp's: 8 channels
  const int group;               // warpgroup
  const int warp, lane;

  // What belongs to this lane's two channels.
  struct Channels {
    float factor[2], bias[2];
  };
  // Of the warp's sixteen, in their group.
  __device__ __forceinline__ int FirstChannel() const {
    if constexpr (PRODUCTS == 3) return RollingTaps::ChannelOf(true, warp);
    return control.work.m_block * (p.stacked ? kStackChannels : kPackedRows) +
           RollingTaps::ChannelOf(p.stacked, warp);
  }
  __device__ __forceinline__ Channels ChannelsOf() const {
    Channels own;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = FirstChannel() + (PRODUCTS == 3 ? warp / 2 : half) * 8 + lane / 4;
      const int64_t channel = static_cast<int64_t>(control.work.group) * p.m_per_group + m;
      const bool exists = m < p.m_per_group;
      own.bias[half] = exists && p.bias != nullptr
                           ? static_cast<float>(static_cast<const T*>(p.bias)[channel])
                           : 0.f;
      own.factor[half] = kScaled && exists ? p.scales[channel] : 0.f;
    }
    return own;
  }

  __device__ void Run() const {
    float sum[N / 2];
    const Channels own = ChannelsOf();
    const int first_step = control.work.first_step;
    int image = first_step / p.pairs, pair = first_step % p.pairs, step = 0;
    int slot = 0;
    uint32_t parity = 0, turn = group == 0 ? 1 : 0;
    bool released = false;  // `slot`
    ptx::BarrierWait(ptx::SharedAddress(&control.weights), 0);
    ptx::BarrierWait(ptx::SharedAddress(&control.full[0]), 0);
    RollingItem item(&control.item[0], lane);
    while (!item.last()) {
      const int next = slot + 1 == kRollingSlots ? 0 : slot + 1;
      const uint32_t next_parity = next == 0 ? parity ^ 1 : parity;
      ptx::BarrierWait(ptx::SharedAddress(&control.full[next]), next_parity);
      item = RollingItem(&control.item[next], lane);
      const bool joins = !item.first();
      const bool takes = joins && RollingTaps::Takes(p.stacked, group, step);
      if (takes) {
        if constexpr (PRODUCTS == 3) {
          MultiplyThrice(sum, slot, next);
        } else {
          ptx::BarrierWait(ptx::SharedAddress(&control.turn[group]), turn);
          turn ^= 1;
          Multiply(sum, slot, next);
        }
      }
      if (lane == 0 && !released) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[slot]));
      // The step that starts at the next item is the other warpgroup's, where they take turns.
      released = takes && p.stacked;
      if (lane == 0 && released) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[next]));
      slot = next;
      parity = next_parity;
      if (takes) {
        Store(sum, own, image, 2 * pair + RollingTaps::RowOf(p.stacked, group, warp),
              item.exponent());
      }
      if (joins) {
        ++step;
        if (++pair == p.pairs) {
          pair = 0;
          ++image;
        }
      }
    }
    if (lane == 0) ptx::BulkWait<0>();
  }

  // Source rows from `first` on of two items: those of a target row, or of a pair.
  __device__ __forceinline__ void Multiply(float (&sum)[N / 2], int slot, int next) const {
    using Tap = PackedTap<false>;
    const RollingTilePitch pitch = RollingTilePitch::Of(p.columns, kCellChunks<HALVES, 1>);
    const uint64_t a = wgmma::Descriptor(Tap::kChunk, 128) | (weights >> 4);
    const uint64_t b = wgmma::Descriptor(pitch.chunk, 128) | ((ring + 16 * p.skew) >> 4);
    const int first = p.stacked ? 0 : group;
    const uint32_t slab = p.rows_h * p.taps_w * (Tap::kBytes >> 4);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0.f;
    wgmma::Pin(sum);
    wgmma::Fence();
    uint32_t tap = 0;
    for (int y = 0; y < p.rows_h; ++y) {
      const int row = first + y;
      const uint32_t at = (row < 2 ? slot : next) * (pitch.item >> 4) + row % 2 * (pitch.row >> 4);
      for (int x = 0; x < p.taps_w; ++x, tap += Tap::kBytes >> 4) {
        wgmma::Fence();
#pragma unroll
        for (int k = 0; k < 2 * HALVES; ++k) {
          wgmma::Multiply<Operand, N>::Run(sum, a + (tap + k * slab),
                                           b + (at + x + 2 * k * (pitch.chunk >> 4)), 1);
        }
      }
    }
    wgmma::Commit();
    if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.turn[1 - group]));
    wgmma::Wait<0>();
    wgmma::Pin(sum);
  }

  // One target row with three products. The weights are split: rows 0 to 31 of the sums are high
  // parts by high parts, rows 32 to 63 what has one low part, times kLowScale. Sums of the tensor
  // cores are cut off, not rounded, so those of a few taps each are added to `sum`.
  __device__ __forceinline__ void MultiplyThrice(float (&sum)[N / 2], int slot, int next) const {
    using Tap = PackedTap<true>;
    const RollingTilePitch pitch = RollingTilePitch::Of(p.columns, kCellChunks<HALVES, 3>);
    const uint64_t zeros = wgmma::Descriptor(Tap::kChunk, 128) | (weights >> 4);
    const uint64_t b = wgmma::Descriptor(pitch.chunk, 128) | ((ring + 16 * p.skew) >> 4);
    const uint32_t slab = p.rows_h * p.taps_w * (Tap::kBytes >> 4);
    const uint32_t low = Ring::kChunks * (pitch.chunk >> 4);
    float part[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = part[i] = 0.f;
    for (int y = 0; y < p.rows_h; ++y) {
      const int row = group + y;
      const uint32_t at = (row < 2 ? slot : next) * (pitch.item >> 4) + row % 2 * (pitch.row >> 4);
      for (int k = 0; k < 2 * HALVES; ++k) {
        const uint64_t a = zeros + (y * p.taps_w * (Tap::kBytes >> 4) + k * slab);
        const uint64_t cells = b + (at + 2 * k * (pitch.chunk >> 4));
        for (int begin = 0; begin < p.taps_w; begin += p.chunk_taps) {
          const int end = min(begin + p.chunk_taps, p.taps_w);
          wgmma::Pin(part);
          wgmma::Fence();
          for (int x = begin; x < end; ++x) {
            const uint64_t tap = a + static_cast<uint32_t>(x * (Tap::kBytes >> 4));
            const uint64_t cell = cells + static_cast<uint32_t>(x);
            wgmma::Fence();
            wgmma::Multiply<Operand, N>::Run(part, tap + (Tap::kFirst >> 4), cell, x > begin);
            wgmma::Multiply<Operand, N>::Run(part, tap, cell + low, 1);
          }
          wgmma::Commit();
          wgmma::Wait<0>();
          wgmma::Pin(part);
#pragma unroll
          for (int i = 0; i < N / 2; ++i) sum[i] += part[i];
        }
      }
    }
  }

  // Joins the high and the low sums of sixteen channels, which two warps have: each gives the other
  // one half by way of its staging and keeps the other half.
  __device__ __forceinline__ void Join(const float (&sum)[N / 2], float (&joined)[N / 4]) const {
    const bool is_low = warp >= 2;
    float* const own = reinterpret_cast<float*>(staging) + lane;
    if (lane == 0) ptx::BulkWaitRead<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const float first = sum[4 * (i / 2) + i % 2], second = sum[4 * (i / 2) + 2 + i % 2];
      joined[i] = is_low ? second : first;
      own[32 * i] = is_low ? first : second;
    }
    const int barrier = kJoinBarrier + 2 * group + warp % 2;
    ptx::NamedBarrierOf<64>(barrier);
    const float* const other = own + (is_low ? -2 : 2) * 8 * p.staging_pitch;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const float v = other[32 * i];
      joined[i] =
          is_low ? fmaf(joined[i], 1.f / kLowScale, v) : fmaf(v, 1.f / kLowScale, joined[i]);
    }
    ptx::NamedBarrierOf<64>(barrier);  // the other has read what was staged here
  }

  __device__ __forceinline__ void Store(float (&sum)[N / 2], const Channels& own, int image,
                                        int row, int exponent) const {
    if (row >= p.target_h) return;
    const Work& work = control.work;
    const int m = FirstChannel();
    const int64_t channel = static_cast<int64_t>(work.group) * p.m_per_group + m;
    // Two factors: their product may leave float32's range.
    const float power = kScaled ? PowerOfTwo(exponent - kTargetExponent) : 1.f;
    const StripRow strip{image * p.target_batch + channel * p.target_channel +
                             static_cast<int64_t>(row) * p.target_w,
                         p.target_channel,
                         p.m_per_group - m,
                         p.target_w,
                         work.column,
                         1,
                         1,
                         work.strip,
                         p.strips,
                         p.strip,
                         p.lead,
                         32 / static_cast<int>(sizeof(T)),
                         p.even};
    if constexpr (PRODUCTS == 3) {
      float joined[N / 4];
      Join(sum, joined);
      const auto value = [&](int, int i) {
        return fmaf(joined[i] * own.factor[0], power, own.bias[0]);
      };
      StoreStripHalf<T, N, 1>(value, strip, warp / 2, static_cast<T*>(p.target), staging,
                              p.staging_pitch, lane);
      return;
    }
    const auto value = [&](int, int half, int i) {
      return kScaled ? fmaf(sum[i] * own.factor[half], power, own.bias[half])
                     : sum[i] + own.bias[half];
    };
    StoreStripRow<T, N, 1>(value, strip, static_cast<T*>(p.target), staging, p.staging_pitch, lane);
  }
};

template <typename T, int N, int HALVES, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, 1)
    RollingTileKernel(const __grid_constant__ RollingParams p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t base = ptx::SharedAddress(shared), weights = base + kControlBytes;
  const uint32_t ring = base + static_cast<uint32_t>(p.ring_at);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRollingSlots; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumerWarps);
    }
    for (uint64_t& turn : control.turn) {
      ptx::BarrierInit(ptx::SharedAddress(&turn), kConsumerWarps / 2);
    }
    ptx::BarrierInit(ptx::SharedAddress(&control.weights), 1);
    ptx::BarrierInitFence();
    control.work = WorkOf(p);
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    if constexpr (PRODUCTS == 3) ptx::RegistersDown<kProducerRegisters>();
    if constexpr (HALVES == 1) {
      if (PRODUCTS == 3 || p.raw_at > 0) {
        const uint32_t raw = base + static_cast<uint32_t>(p.raw_at);
        ProducerAhead<T, N, PRODUCTS>(p, control, ring, raw, warp, lane).Run();
        return;
      }
    }
    if constexpr (PRODUCTS == 1) {
      Producer<T, N, HALVES, 1>(p, control, ring, warp, lane).Run();
    }
  } else {
    if constexpr (PRODUCTS == 3) ptx::RegistersUp<kConsumerRegisters>();
    ptx::WaitForKernelsBefore();  // weights and scales are packed beside the first loads
    const int consumer = warp - kProducerWarps;
    if (consumer == 0 && lane == 0) {
      const uint32_t bytes = static_cast<uint32_t>(p.weight_bytes);
      const uint32_t loaded = ptx::SharedAddress(&control.weights);
      const int64_t block = int64_t{control.work.group} * p.m_blocks + control.work.m_block;
      ptx::BarrierArriveExpect(loaded, bytes);
      ptx::BulkLoad(weights, p.weights + block * bytes, bytes, loaded);
    }
    T* staging = reinterpret_cast<T*>(shared + p.staging_at) + consumer * 8 * p.staging_pitch;
    Consumer<T, N, HALVES, PRODUCTS>{p,       control,      weights,      ring,
                                     staging, consumer / 4, consumer % 4, lane}
        .Run();
  }
}

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_
