// The weight-gradient kernel's producers that read the images themselves: any layout, converted to
// 16 bits on the way, float32 with exponents that follow the data.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_GATHER_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_GATHER_CUH_

#include <cstdint>

#include "cuda/kernels/cells_ahead.cuh"
#include "cuda/kernels/sm90_wgrad_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad {

template <typename T, typename Form, int PRODUCTS>
struct GatherProducer : CellTables<Form> {
  using Tables = CellTables<Form>;
  using Tables::lane;
  using Tables::p;
  using Tables::warp;
  using Tables::work;
  static constexpr int kUnits = Form::kUnits, kAhead = Form::kAhead;
  static constexpr int kProducers = Form::kProducers, kProducerWarps = Form::kProducerWarps;
  using Raw = typename Element<T>::Raw;
  static constexpr bool kScaled = sizeof(T) == 4, kAsync = sizeof(T) == 4;

  Control& control;
  const uint32_t stages, raw;  // shared addresses, the second of this lane's cells in flight
  const char* const x;         // channel 0 of this block's
  const char* const dy;

  // A unit's loads: where they start, and how many channels exist from there on.
  struct Place {
    const char* base;
    uint32_t channel_bytes, offset;
    int channels;
  };
  __device__ __forceinline__ Place PlaceOf(int image, int which, int unit) const {
    const int chunk = this->ChunkOf(unit);
    const bool is_x = this->IsX(unit);
    const uint32_t channel = is_x ? p.x_channel : p.dy_channel;
    const char* const base = (is_x ? x : dy) + image * (is_x ? p.x_batch : p.dy_batch);
    return {base + chunk * (8 * int64_t{channel}), channel, this->OffsetOfUnit(which, unit),
            image >= 0 ? this->Channels(unit) - chunk * 8 : 0};
  }
  __device__ __forceinline__ void Gather(Raw (&v)[8], int image, int which, int unit) const {
    const Place place = PlaceOf(image, which, unit);
    GatherCell(v, place.base, place.channel_bytes, place.offset, place.channels);
  }
  __device__ __forceinline__ void Start(CellsAhead<kAhead>& cells, int image, int which,
                                        int unit) const {
    const Place place = PlaceOf(image, which, unit);
    cells.Start(place.base, place.channel_bytes, place.offset, place.channels);
  }

  __device__ __forceinline__ void Put(const Raw (&v)[8], uint32_t stage, int unit, float x_scale,
                                      float dy_scale, uint32_t& x_largest,
                                      uint32_t& dy_largest) const {
    const bool is_x = this->IsX(unit);
    uint32_t packed[4], low[4];
    const uint32_t largest = ConvertCell<T, PRODUCTS, 1>(v, is_x ? x_scale : dy_scale, packed, low,
                                                         is_x ? x_largest : dy_largest);
    x_largest = is_x ? largest : x_largest;
    dy_largest = is_x ? dy_largest : largest;
    const uint32_t target = this->TargetOf(unit);
    const bool exists = target != kNoCell;
    const uint32_t at = stage + target;
    ptx::StoreShared128If(at, make_uint4(packed[0], packed[1], packed[2], packed[3]), exists);
    if constexpr (PRODUCTS == 3) {
      ptx::StoreShared128If(at + p.part_bytes, make_uint4(low[0], low[1], low[2], low[3]), exists);
    }
  }

  // Largest x and dy values over all producer warps.
  __device__ void MaxOfAll(uint32_t (&value)[2], uint32_t (*slots)[kMostProducerWarps]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value[i] = __reduce_max_sync(0xffffffffu, value[i]);
      if (lane == 0) slots[i][warp] = value[i];
    }
    ptx::NamedBarrier<1, kProducers>();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value[i] = __reduce_max_sync(0xffffffffu, slots[i][lane % kProducerWarps]);
    }
  }

  struct Exponents {
    int x, dy;
  };

  // A tile left the window: finds the scales that it needs and, if they are others, gathers it
  // again. Rare, so a call; by value, so that the caller's state stays in registers.
  static __device__ __noinline__ Exponents Redo(GatherProducer self, int image, int which,
                                                uint32_t stage, Exponents now, bool may_fall) {
    const WgradParams& p = self.p;
    uint32_t largest[2] = {0, 0};
    for (int u = self.warp; u < 8 * p.cell_groups; u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, image, which, u);
      const int i = self.IsX(u) ? 0 : 1;
      if (i == 0) {
        largest[0] = LargestBits(v, largest[0]);
      } else {
        largest[1] = LargestBits(v, largest[1]);
      }
    }
    self.MaxOfAll(largest, self.control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    const Exponents needed{NeededExponent(largest[0], now.x, may_fall),
                           NeededExponent(largest[1], now.dy, may_fall)};
    if (needed.x == now.x && needed.dy == now.dy) return now;
    for (int u = self.warp; u < 8 * p.cell_groups; u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, image, which, u);
      self.Put(v, stage, u, ScaleOf(needed.x), ScaleOf(needed.dy), largest[0], largest[1]);
    }
    return needed;
  }

  __device__ void Run() {
    if (work.first >= work.last) return;
    int image = this->BuildOffsets(work.first, 0);
    ptx::NamedBarrier<1, kProducers>();
    CellsAhead<kAhead> cells{raw, p.ahead};
    Raw v[kAsync ? 1 : kUnits][8];
    if constexpr (kAsync) {
      for (int i = 0; i < p.ahead; ++i) Start(cells, image, 0, this->UnitOf(i));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) Gather(v[i], image, 0, this->UnitOf(i));
    }
    Exponents exponents{kMinExponent, kMinExponent};
    float x_scale = ScaleOf(kMinExponent), dy_scale = ScaleOf(kMinExponent);
    int stage = 0, which = 0;
    uint32_t parity = 1;
    for (int tile = work.first; tile < work.last; ++tile) {
      const bool more = tile + 1 < work.last;
      ptx::NamedBarrier<1, kProducers>();  // nobody gathers by the table that is overwritten now
      const int next_image = more ? this->BuildOffsets(tile + 1, which ^ 1) : -1;
      ptx::NamedBarrier<1, kProducers>();
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
      const uint32_t at = stages + stage * p.stage_bytes;
      uint32_t largest[2] = {0, 0};
      if constexpr (kAsync) {
        int i = 0;
        for (; i < p.units_per_warp - p.ahead; ++i) {
          cells.Take(v[0]);
          Put(v[0], at, this->UnitOf(i), x_scale, dy_scale, largest[0], largest[1]);
          Start(cells, image, which, this->UnitOf(i + p.ahead));
        }
        for (; i < p.units_per_warp; ++i) {
          cells.Take(v[0]);
          Put(v[0], at, this->UnitOf(i), x_scale, dy_scale, largest[0], largest[1]);
          Start(cells, next_image, which ^ 1, this->UnitOf(i + p.ahead - p.units_per_warp));
        }
      } else {
        for (int j = 0; j < p.units_per_warp; j += kUnits) {
          const bool last = j + kUnits >= p.units_per_warp;
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
            Put(v[i], at, this->UnitOf(j + i), x_scale, dy_scale, largest[0], largest[1]);
            Gather(v[i], last ? next_image : image, last ? which ^ 1 : which,
                   this->UnitOf(last ? i : j + i + kUnits));
          }
        }
      }
      if constexpr (kScaled) {
        largest[0] = max(largest[0] & 0xffffu, largest[0] >> 16);
        largest[1] = max(largest[1] & 0xffffu, largest[1] >> 16);
        MaxOfAll(largest, control.exchange[which]);
        const bool fresh = (tile - work.first) % p.flush == 0;
        if (LeavesWindow(largest[0], fresh) || LeavesWindow(largest[1], fresh)) {
          exponents = Redo(*this, image, which, at, exponents, fresh);
          x_scale = ScaleOf(exponents.x);
          dy_scale = ScaleOf(exponents.dy);
        }
        if (threadIdx.x == 0) control.exponent[stage] = exponents.x + exponents.dy;
      }
      ptx::FenceAsync();
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[stage]));
      if (++stage == p.stages) {
        stage = 0;
        parity ^= 1;
      }
      which ^= 1;
      image = next_image;
    }
    ptx::CopyAsyncWait<0>();
  }
};

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_GATHER_CUH_
