// The tile kernel's producers that read the image itself: any layout, converted to 16 bits on the
// way, float32 with an exponent that follows the data.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_TILE_GATHER_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_TILE_GATHER_CUH_

#include <cstdint>

#include "core/pack_order.h"
#include "cuda/kernels/cells_ahead.cuh"
#include "cuda/kernels/sm90_tile_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_tile {

template <typename T, int PRODUCTS>
struct Producer : CellTables {
  using Raw = typename Element<T>::Raw;
  static constexpr bool kScaled = sizeof(T) == 4, kAsync = sizeof(T) == 4;

  Control& control;
  const uint32_t stages, raw;  // shared addresses of stage 0 and of this lane's cells in flight
  int exponent = kMinExponent;
  float scale = ScaleOf(kMinExponent);

  // What a stage's gathers start from.
  struct Source {
    const char* base;
    const uint32_t* offsets;
    int channels;  // that exist; 0 if there is no such stage
  };

  __device__ Source SourceOf(const Tile& tile, int which) const {
    return {static_cast<const char*>(p.source) + tile.image * p.source_batch +
                static_cast<int64_t>(tile.group) * p.k_per_group * p.source_channel,
            OffsetsOf(which), p.k_per_group};
  }

  // Where a unit's loads start, and how many channels exist from there on.
  struct Place {
    const char* base;
    uint32_t offset;
    int channels;
  };
  __device__ __forceinline__ Place PlaceOf(const Source& from, int unit) const {
    const int chunk = ChunkOf(unit);
    return {from.base + chunk * (8 * int64_t{p.source_channel}), from.offsets[CellOf(unit)],
            from.channels - chunk * 8};
  }
  __device__ __forceinline__ void Gather(Raw (&v)[8], const Source& from, int unit) const {
    const Place place = PlaceOf(from, unit);
    GatherCell(v, place.base, p.source_channel, place.offset, place.channels);
  }

  __device__ __forceinline__ void Start(CellsAhead<kAhead>& cells, const Source& from,
                                        int unit) const {
    const Place place = PlaceOf(from, unit);
    cells.Start(place.base, p.source_channel, place.offset, place.channels);
  }

  // Converts one unit and stores its cells; returns the largest scaled magnitudes, two halves.
  __device__ __forceinline__ uint32_t Put(const Raw (&v)[8], uint32_t stage, int unit,
                                          uint32_t largest) const {
    const uint32_t to = TargetOf(unit);
    uint32_t packed[4], low[4];
    largest = ConvertCell<T, PRODUCTS, kLowScale>(v, scale, packed, low, largest);
    const bool exists = to != kNoCell;
    const uint32_t at = stage + ChunkOf(unit) * p.chunk_pitch + to;
    ptx::StoreShared128If(at, make_uint4(packed[0], packed[1], packed[2], packed[3]), exists);
    if constexpr (PRODUCTS == 3) {
      ptx::StoreShared128If(at + p.low_at, make_uint4(low[0], low[1], low[2], low[3]), exists);
    }
    return largest;
  }

  // Largest of a value over all producer warps.
  __device__ uint32_t MaxOfAll(uint32_t value, uint32_t* slots) const {
    value = __reduce_max_sync(0xffffffffu, value);
    if (lane == 0) slots[warp] = value;
    ptx::NamedBarrier<1, kProducers>();
    return __reduce_max_sync(0xffffffffu, slots[lane % kProducerWarps]);
  }

  // A stage left the window: finds the scale that it needs and, if that is another one, gathers it
  // again. Within a tile the exponent never falls, since sums of earlier stages already carry it.
  // Rare, so a call; by value, so that the caller's state stays in registers.
  static __device__ __noinline__ int Redo(const TileParams& p, Control& control, uint32_t* places,
                                          Source source, uint32_t stage, int exponent, bool first) {
    Producer self{
        {p, places, static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32},
        control,
        0,
        0,
        exponent,
        0.f};
    uint32_t largest = 0;
    for (int u = self.warp; u < self.Units(); u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, source, u);
      largest = LargestBits(v, largest);
    }
    largest = self.MaxOfAll(largest, control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    const int needed = NeededExponent(largest, exponent, first);
    if (needed == exponent) return exponent;
    self.scale = ScaleOf(needed);
    for (int u = self.warp; u < self.Units(); u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, source, u);
      self.Put(v, stage, u, 0);
    }
    return needed;
  }

  __device__ void Run() {
    int index = blockIdx.x, which = 0;
    const Tile first = Next(index);
    if (index >= p.tiles) return;
    BuildPlaces();
    ptx::NamedBarrier<1, kProducers>();
    BuildOffsets(first, 0);
    ptx::NamedBarrier<1, kProducers>();
    Source current = SourceOf(first, 0);
    CellsAhead<kAhead> cells{raw, p.ahead};
    Raw v[kAsync ? 1 : kUnits][8];
    if constexpr (kAsync) {
      for (int i = 0; i < p.ahead; ++i) Start(cells, current, UnitOf(i));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) Gather(v[i], current, UnitOf(i));
    }

    int stage = 0;
    uint32_t parity = 1, turn = 0;
    while (index < p.tiles) {
      int next_index = index + gridDim.x;
      const Tile next_tile = Next(next_index);
      const bool more = next_index < p.tiles;
      ptx::NamedBarrier<1, kProducers>();  // nobody gathers by the table that is overwritten now
      if (more) BuildOffsets(next_tile, which ^ 1);
      ptx::NamedBarrier<1, kProducers>();
      for (int slab = 0; slab < p.slabs; slab += p.depth) {
        Source next = current;
        next.base += p.depth * kSlabChannels * int64_t{p.source_channel};
        next.channels -= p.depth * kSlabChannels;
        if (slab + p.depth >= p.slabs) {
          next = SourceOf(next_tile, which ^ 1);
          if (!more) next.channels = 0;
        }
        ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
        const uint32_t at = stages + stage * p.stage_bytes;
        uint32_t largest = 0;
        if constexpr (kAsync) {
          int i = 0;
          for (; i < p.units_per_warp - p.ahead; ++i) {
            cells.Take(v[0]);
            largest = Put(v[0], at, UnitOf(i), largest);
            Start(cells, current, UnitOf(i + p.ahead));
          }
          for (; i < p.units_per_warp; ++i) {
            cells.Take(v[0]);
            largest = Put(v[0], at, UnitOf(i), largest);
            Start(cells, next, UnitOf(i + p.ahead - p.units_per_warp));
          }
        } else {
          for (int j = 0; j < p.units_per_warp; j += kUnits) {
            const bool last = j + kUnits >= p.units_per_warp;
#pragma unroll
            for (int i = 0; i < kUnits; ++i) {
              largest = Put(v[i], at, UnitOf(j + i), largest);
              const Source from{last ? next.base : current.base,
                                last ? next.offsets : current.offsets,
                                last ? next.channels : current.channels};
              Gather(v[i], from, UnitOf(last ? i : j + i + kUnits));
            }
          }
        }
        if constexpr (kScaled) {
          largest = max(largest & 0xffffu, largest >> 16);
          largest = MaxOfAll(largest, control.exchange[turn]);
          turn ^= 1;
          if (LeavesWindow(largest, slab == 0)) {
            exponent = Redo(p, control, places, current, at, exponent, slab == 0);
            scale = ScaleOf(exponent);
          }
          if (threadIdx.x == 0) control.exponent[stage] = exponent;
        }
        ptx::FenceAsync();
        __syncwarp();
        if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
        current = next;
      }
      index = next_index;
      which ^= 1;
    }
    ptx::CopyAsyncWait<0>();
  }
};

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_KERNELS_SM90_TILE_GATHER_CUH_
