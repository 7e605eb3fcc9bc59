// The producers of the rolling forward pass and gradient of x: load items, convert them to 16 bits
// and store them as cells, float32 with an exponent that follows the data.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_ROLLING_GATHER_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_ROLLING_GATHER_CUH_

#include <cstdint>

#include "core/pack_order.h"
#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/sm90_rolling_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_rolling {

template <typename T, int N, int HALVES, int PRODUCTS>
struct Producer {
  using Raw = typename Element<T>::Raw;
  using Ring = RollingTileRing<N, HALVES>;
  static constexpr bool kScaled = sizeof(T) == 4;

  const RollingParams& p;
  Control& control;
  const uint32_t ring;  // shared address
  const int warp, lane;
  uint32_t inside = 0;  // which cells of a full item exist for this lane, as in Item

  // An item's rows, and which of this lane's cells exist: a bit for every row and unit, then one
  // for the tail. A dead item has none.
  struct Item {
    const char* at;
    uint32_t cells;
  };
  static constexpr uint32_t kRow0 = (1u << Ring::kUnits) - 1, kRow1 = kRow0 << Ring::kUnits;
  static constexpr uint32_t kTail = 1u << 2 * Ring::kUnits;

  __device__ Producer(const RollingParams& p, Control& control, uint32_t ring, int warp, int lane)
      : p(p), control(control), ring(ring), warp(warp), lane(lane) {
    if (8 * Ring::ChunkOf(warp) >= p.k_per_group) return;  // zeros, like the weights there
    const int column = control.work.column + p.first_column;
    const auto in_source = [&](int x) {
      return static_cast<unsigned>(x) < static_cast<unsigned>(p.source_w);
    };
    for (int g = 0; g < Ring::kUnits; ++g) {
      if (in_source(column + 32 * g + lane)) inside |= (1u + (1u << Ring::kUnits)) << g;
    }
    const int tail = Ring::TailColumn(lane);
    if (tail < p.columns && in_source(column + tail)) inside |= kTail;
  }

  __device__ __forceinline__ Item ItemOf(int image, int item, bool exists) const {
    const Work& work = control.work;
    const int row = 2 * item + p.first_row;
    const auto in_source = [&](int y) {
      return static_cast<unsigned>(y) < static_cast<unsigned>(p.source_h);
    };
    uint32_t cells = 0;
    if (in_source(row)) cells |= kRow0;
    if (in_source(row + 1)) cells |= kRow1;
    if (in_source(row + Ring::TailRow(warp, lane))) cells |= kTail;
    if (!exists) cells = 0;
    const int channel = work.group * p.k_per_group + 8 * Ring::ChunkOf(warp);
    const char* at =
        static_cast<const char*>(p.source) + image * p.source_batch +
        channel * static_cast<int64_t>(p.source_channel) +
        (static_cast<int64_t>(row) * p.source_w + work.column + p.first_column + lane) *
            int{sizeof(T)};
    return {at, cells & inside};
  }
  __device__ __forceinline__ Item ItemOf(const RollingWalk& walk) const {
    return ItemOf(walk.image, walk.item, walk.more);
  }

  // A round's loads: where unit 0 starts, and a bit for each unit that exists.
  struct Source {
    const char* at;
    uint32_t cells;
  };
  __device__ __forceinline__ Source SourceOf(const Item& item, int row) const {
    const char* at = item.at;
    if (row == 1) at += static_cast<int64_t>(p.source_w) * int{sizeof(T)};
    return {at, item.cells >> row * Ring::kUnits};
  }
  __device__ __forceinline__ void Gather(Raw (&v)[8], const Source& from, int unit) const {
    const char* at = from.at + unit * 32 * sizeof(T);
#pragma unroll
    for (int k = 0; k < 8; ++k, at += p.source_channel) {
      v[k] = ptx::LoadIf(reinterpret_cast<const Raw*>(at), from.cells & 1u << unit);
    }
  }
  __device__ __forceinline__ void GatherTail(Raw (&v)[8], const Item& item) const {
    const char* at = item.at + (int64_t{Ring::TailRow(warp, lane)} * p.source_w +
                                Ring::TailColumn(lane) - lane) *
                                   int{sizeof(T)};
#pragma unroll
    for (int k = 0; k < 8; ++k, at += p.source_channel) {
      v[k] = ptx::LoadIf(reinterpret_cast<const Raw*>(at), item.cells & kTail);
    }
  }

  __device__ __forceinline__ RollingTilePitch PitchOf() const {
    return RollingTilePitch::Of(p.columns, kCellChunks<HALVES, PRODUCTS>);
  }

  // Converts a unit and stores its cells; returns the largest scaled magnitudes, two halves.
  __device__ __forceinline__ uint32_t Put(const Raw (&v)[8], uint32_t to, float scale,
                                          uint32_t largest) const {
    uint32_t packed[4], low[4];
    largest = ConvertCell<T, PRODUCTS, kLowScale>(v, scale, packed, low, largest);
    ptx::StoreShared128(to, make_uint4(packed[0], packed[1], packed[2], packed[3]));
    if constexpr (PRODUCTS == 3) {
      ptx::StoreShared128(to + Ring::kChunks * PitchOf().chunk,
                          make_uint4(low[0], low[1], low[2], low[3]));
    }
    return largest;
  }
  __device__ __forceinline__ uint32_t TargetOf(int slot, int row, int column) const {
    const RollingTilePitch pitch = PitchOf();
    return ring + slot * pitch.item + row * pitch.row + Ring::ChunkOf(warp) * pitch.chunk +
           column * 16;
  }
  __device__ __forceinline__ uint32_t PutTail(const Raw (&v)[8], int slot, float scale,
                                              uint32_t largest) const {
    const int column = Ring::TailColumn(lane);
    if (column >= p.columns) return largest;
    return Put(v, TargetOf(slot, Ring::TailRow(warp, lane), column), scale, largest);
  }

  // Largest value over all producer warps.
  __device__ __forceinline__ uint32_t MaxOfAll(uint32_t value, uint32_t* slots) const {
    value = __reduce_max_sync(0xffffffffu, value);
    if (lane == 0) slots[warp] = value;
    ptx::NamedBarrier<1, kProducers>();
    return __reduce_max_sync(0xffffffffu, slots[lane % kProducerWarps]);
  }

  // The scale that two items need together. Rare, so calls; by value, so that the caller's state
  // stays in registers.
  static __device__ __noinline__ float Needed(Producer self, Item a, Item b, float now) {
    uint32_t largest = 0;
    for (const Item& item : {a, b}) {
      Raw v[8];
      for (int r = 0; r < Ring::kRounds; ++r) {
        for (int i = 0; i < Ring::kUnits; ++i) {
          self.Gather(v, self.SourceOf(item, Ring::FirstRow(self.warp) + r), i);
          largest = LargestBits(v, largest);
        }
      }
      self.GatherTail(v, item);
      largest = LargestBits(v, largest);
    }
    largest = self.MaxOfAll(largest, self.control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    // Both items are zeros: whatever comes next is larger than what the finest scale holds, and is
    // looked at.
    if (largest == 0) return ScaleOf(kMinExponent);
    return ScaleOf(NeededExponent(largest, ExponentOf(now), true));
  }
  static __device__ __noinline__ void Fill(Producer self, Item item, int slot, float scale) {
    Raw v[8];
    for (int r = 0; r < Ring::kRounds; ++r) {
      const int row = Ring::FirstRow(self.warp) + r;
      for (int i = 0; i < Ring::kUnits; ++i) {
        self.Gather(v, self.SourceOf(item, row), i);
        self.Put(v, self.TargetOf(slot, row, 32 * i + self.lane), scale, 0);
      }
    }
    self.GatherTail(v, item);
    self.PutTail(v, slot, scale, 0);
  }

  __device__ __forceinline__ void Publish(int slot, float scale, bool first, bool last) const {
    if (threadIdx.x == 0) {
      control.item[slot] = RollingItem(ExponentOf(scale), first, last).word;
    }
    ptx::FenceAsync();
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[slot]));
  }

  // Where a producer stands.
  struct State {
    float scale = ScaleOf(kMinExponent);
    int zeros = 0;  // items since the last that did not scale to zeros
    int slot = 0;
    uint32_t parity = 1;
    __device__ __forceinline__ void Advance() {
      if (++slot == kRollingSlots) {
        slot = 0;
        parity ^= 1;
      }
    }
  };

  // Publishes the walk's item, whose largest scaled magnitudes were these, in the scale it needs.
  __device__ __forceinline__ void Finish(const RollingWalk& walk, uint32_t largest,
                                         State* state) const {
    if constexpr (kScaled) {
      largest = MaxOfAll(max(largest & 0xffffu, largest >> 16), control.exchange[state->slot]);
      // Nothing is summed across items, so a scale may become finer at any; but items of real zeros
      // would be loaded again for nothing. The first two are: beside an item that needs the coarse
      // scale the first has to keep it.
      state->zeros = largest == 0 ? state->zeros + 1 : 0;
      const bool may_fall = state->zeros <= 2 || walk.first || walk.item % kZeroItems == 0;
      if (LeavesWindow(largest, may_fall)) {
        const Item now = ItemOf(walk);
        const Item before = walk.first ? now : ItemOf(walk.image, walk.item - 1, true);
        const float needed = Needed(*this, now, before, state->scale);
        if (needed != state->scale) {
          state->scale = needed;
          if (!walk.first) {
            // The step of the item before has to be done with its rows in the new scale.
            Fill(*this, before, state->slot, needed);
            Publish(state->slot, needed, true, false);
            state->Advance();
            ptx::BarrierWait(ptx::SharedAddress(&control.empty[state->slot]), state->parity);
          }
          Fill(*this, now, state->slot, needed);
        }
      }
    }
    Publish(state->slot, state->scale, walk.first, walk.last());
    state->Advance();
  }

  __device__ void Run() {
    RollingWalk walk(p.pairs, control.work.first_step, control.work.steps);
    const int first_row = Ring::FirstRow(warp);
    Item item = ItemOf(walk);
    Raw v[Ring::kUnits][8], tail[8];
#pragma unroll
    for (int i = 0; i < Ring::kUnits; ++i) Gather(v[i], SourceOf(item, first_row), i);
    State state;
    while (walk.more) {
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[state.slot]), state.parity);
      GatherTail(tail, item);
      uint32_t largest = 0;
#pragma unroll 1
      for (int r = 0; r < Ring::kRounds; ++r) {
        const bool last = r + 1 == Ring::kRounds;
        if (last) {  // what is loaded from here on belongs to the next item
          RollingWalk ahead = walk;
          ahead.Next(p.pairs);
          item = ItemOf(ahead);
        }
        const Source from = SourceOf(item, last ? first_row : first_row + r + 1);
        const uint32_t to = TargetOf(state.slot, first_row + r, lane);
#pragma unroll
        for (int i = 0; i < Ring::kUnits; ++i) {
          largest = Put(v[i], to + 512 * i, state.scale, largest);
          Gather(v[i], from, i);
        }
      }
      largest = PutTail(tail, state.slot, state.scale, largest);
      Finish(walk, largest, &state);
      walk.Next(p.pairs);
    }
  }
};

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_ROLLING_GATHER_CUH_
