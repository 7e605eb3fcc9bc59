// The rolling weight gradient's producers: rows of x and dy, converted to 16 bits, as cells.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PRODUCER_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PRODUCER_CUH_

#include <cstdint>

#include "core/pack_order.h"
#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/sm90_wgrad_rolling_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS>
struct Producer {
  using Raw = typename Element<T>::Raw;
  using Ring = RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS == 3 ? 2 : 1>;
  using Round = typename Ring::Round;
  static constexpr bool kScaled = sizeof(T) == 4;

  const RollingParams& p;
  Control& control;
  const uint32_t ring;  // shared address
  const int warp, lane;
  int x_half, dy_half;  // channels from chunk `warp` to chunk `warp + 4`
  uint32_t inside = 0;  // which cells of a full item exist for this lane, as in Item

  // An item's rows, and which of this lane's cells exist: a bit for every row and group of x, then
  // of dy, then one for the tail. A dead item has none.
  struct Item {
    const char *x, *dy;
    uint32_t cells;
  };
  static constexpr uint32_t kXRow0 = (1u << Ring::kGroups) - 1, kXRow1 = kXRow0 << Ring::kGroups;
  static constexpr uint32_t kDyRow0 = kXRow1 << Ring::kGroups, kDyRow1 = kDyRow0 << Ring::kGroups;
  static constexpr uint32_t kTail = 1u << 4 * Ring::kGroups;

  __device__ Producer(const RollingParams& p, Control& control, uint32_t ring, int warp, int lane)
      : p(p), control(control), ring(ring), warp(warp), lane(lane) {
    const Work& work = control.work;
    x_half = RollingChannel(work.in_channels, warp + 4) - RollingChannel(work.in_channels, warp);
    dy_half = RollingChannel(work.out_channels, warp + 4) - RollingChannel(work.out_channels, warp);
    const int x_column = work.strip * COLUMNS + lane;
    const int dy_column = x_column + work.tap_column - p.crop_w;
    const auto in_dy = [&](int column) {
      return static_cast<unsigned>(column) < static_cast<unsigned>(p.dy_w);
    };
    constexpr uint32_t kBothRows = 1u + (1u << Ring::kGroups);
    for (int g = 0; g < Ring::kGroups; ++g) {
      if (x_column + 32 * g < p.x_w) inside |= kBothRows << g;
      if (in_dy(dy_column + 32 * g)) inside |= kBothRows << (2 * Ring::kGroups + g);
    }
    if (in_dy(dy_column - lane + Ring::TailColumn(lane))) inside |= kTail;
  }

  // Computed anew for every item: what it is computed from would need more registers than there
  // are.
  __device__ __forceinline__ Item ItemOf(int image, int item, bool steps, bool exists) const {
    const Work& work = control.work;
    const int x_row = 2 * item, dy_row = x_row + work.tap_row - p.crop_h;
    const auto in_dy = [&](int row) {
      return static_cast<unsigned>(row) < static_cast<unsigned>(p.dy_h);
    };
    uint32_t cells = 0;
    if (steps && x_row < p.x_h) cells |= kXRow0;
    if (steps && x_row + 1 < p.x_h) cells |= kXRow1;
    if (in_dy(dy_row)) cells |= kDyRow0;
    if (in_dy(dy_row + 1)) cells |= kDyRow1;
    if (in_dy(dy_row + Ring::TailRow(lane))) cells |= kTail;
    if (!exists) cells = 0;
    const auto at = [&](const void* base, int64_t batch, uint32_t channel_bytes, int channel,
                        int width, int row, int column) {
      return static_cast<const char*>(base) + image * batch +
             channel * static_cast<int64_t>(channel_bytes) +
             (static_cast<int64_t>(row) * width + column) * int{sizeof(T)};
    };
    const int column = work.strip * COLUMNS + lane;
    return {
        at(p.x, p.x_batch, p.x_channel, work.in_first + RollingChannel(work.in_channels, warp),
           p.x_w, x_row, column),
        at(p.dy, p.dy_batch, p.dy_channel, work.out_first + RollingChannel(work.out_channels, warp),
           p.dy_w, dy_row, column + work.tap_column - p.crop_w),
        cells & inside};
  }
  __device__ __forceinline__ Item ItemOf(const RollingWalk& walk) const {
    return ItemOf(walk.image, walk.item, walk.steps(), walk.more);
  }

  // A round's loads: where unit 0 starts, and a bit for each unit that exists.
  struct Source {
    const char* at;
    uint32_t cells, channel, row;  // from one channel to the next, from one row to the next
  };
  __device__ __forceinline__ Source SourceOf(const Item& item, Round round) const {
    const uint32_t channel = round.is_dy ? p.dy_channel : p.x_channel;
    const uint32_t row = (round.is_dy ? p.dy_w : p.x_w) * uint32_t{sizeof(T)};
    const int half = round.half == 0 ? 0 : round.is_dy ? dy_half : x_half;
    const char* at = round.is_dy ? item.dy : item.x;
    at += static_cast<int64_t>(half) * channel;
    at += round.group * 32 * sizeof(T);
    if (round.row == 1) at += row;
    const int shift = ((round.is_dy ? 2 : 0) + round.row) * Ring::kGroups + round.group;
    return {at, item.cells >> shift, channel, row};
  }
  __device__ __forceinline__ void Gather(Raw (&v)[8], const Source& from, int unit) const {
    const char* at = from.at + Ring::UnitGroup(unit) * 32 * sizeof(T);
    if (Ring::UnitRow(unit) == 1) at += from.row;
    const uint32_t wanted = from.cells & 1u << unit;
#pragma unroll
    for (int k = 0; k < 8; ++k, at += from.channel) {
      v[k] = ptx::LoadIf(reinterpret_cast<const Raw*>(at), wanted);
    }
  }
  // This lane's channel of a cell of the tail, in each half of the chunks.
  __device__ __forceinline__ void GatherTail(Raw (&v)[OUT_HALVES], const Item& item) const {
    const char* at =
        item.dy + Ring::TailChannel(lane) * int64_t{p.dy_channel} +
        (int64_t{Ring::TailRow(lane)} * p.dy_w + Ring::TailColumn(lane) - lane) * int{sizeof(T)};
#pragma unroll
    for (int half = 0; half < OUT_HALVES; ++half, at += int64_t{dy_half} * p.dy_channel) {
      v[half] = ptx::LoadIf(reinterpret_cast<const Raw*>(at), item.cells & kTail);
    }
  }

  // Converts a unit and stores its cells at an address, and twice where dy has its mirror; returns
  // the largest scaled magnitudes, two halves.
  __device__ __forceinline__ uint32_t Put(const Raw (&v)[8], uint32_t to, bool is_dy, bool twice,
                                          float scale, uint32_t largest) const {
    uint32_t packed[4], low[4];
    largest = ConvertCell<T, PRODUCTS, kLowScale>(v, scale, packed, low, largest);
    Store(packed, to, twice);
    if constexpr (PRODUCTS == 3) Store(low, to + (is_dy ? Ring::kDyLow : Ring::kXLow), twice);
    return largest;
  }
  __device__ __forceinline__ static void Store(const uint32_t (&packed)[4], uint32_t to,
                                               bool twice) {
    const uint4 cell = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    ptx::StoreShared128(to, cell);
    if (twice) ptx::StoreShared128(to + kRollingSlots * Ring::kDyItem, cell);
  }
  __device__ __forceinline__ uint32_t TargetOf(int slot, Round round) const {
    const int chunk = warp + 4 * round.half;
    const int column = round.group * 32 + lane;
    return ring + (round.is_dy ? Ring::DyCell(slot, round.row, chunk, column)
                               : Ring::XCell(slot, round.row, chunk, column));
  }
  __device__ __forceinline__ static uint32_t UnitOffset(Round round, int unit) {
    const int row = round.is_dy ? Ring::kDyRow : Ring::kXRow;
    return Ring::UnitRow(unit) * row + Ring::UnitGroup(unit) * 512;
  }
  __device__ __forceinline__ uint32_t PutTail(const Raw (&v)[OUT_HALVES], int slot, float scale,
                                              uint32_t largest) const {
    const auto store = [&](uint32_t to, uint32_t value) {
      ptx::StoreShared16(to, value);
      if (slot == 0) ptx::StoreShared16(to + kRollingSlots * Ring::kDyItem, value);
    };
#pragma unroll
    for (int half = 0; half < OUT_HALVES; ++half) {
      const uint32_t to =
          ring + 2 * Ring::TailChannel(lane) +
          Ring::DyCell(slot, Ring::TailRow(lane), warp + 4 * half, Ring::TailColumn(lane));
      uint32_t packed, low;
      largest = ConvertChannel<T, PRODUCTS, kLowScale>(v[half], scale, &packed, &low, largest);
      store(to, packed);
      if constexpr (PRODUCTS == 3) store(to + Ring::kDyLow, low);
    }
    return largest;
  }

  struct Scales {
    float x, dy;
  };

  // Largest x and dy values over all producer warps.
  __device__ __forceinline__ void MaxOfAll(uint32_t (&value)[2],
                                           uint32_t (*slots)[kProducerWarps]) const {
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

  // The scales that two items need together, an image in its window keeping its own. Rare, so
  // calls; by value, so that the caller's state stays in registers.
  static __device__ __noinline__ Scales Needed(Producer self, Item a, Item b, Scales now,
                                               bool x_left, bool dy_left) {
    uint32_t largest[2] = {0, 0};
    for (const Item& item : {a, b}) {
      Raw v[8];
      for (int r = 0; r < Ring::kRounds; ++r) {
        const Round round = Ring::RoundOf(r);
        for (int i = 0; i < Ring::kUnits; ++i) {
          self.Gather(v, self.SourceOf(item, round), i);
          uint32_t& to = largest[round.is_dy ? 1 : 0];
          to = LargestBits(v, to);
        }
      }
      Raw tail[OUT_HALVES];
      self.GatherTail(tail, item);
      largest[1] = LargestBits(tail, largest[1]);
    }
    self.MaxOfAll(largest, self.control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    if (x_left) now.x = ScaleOf(NeededExponent(largest[0], ExponentOf(now.x), true));
    if (dy_left) now.dy = ScaleOf(NeededExponent(largest[1], ExponentOf(now.dy), true));
    return now;
  }
  static __device__ __noinline__ void Fill(Producer self, Item item, int slot, Scales scales) {
    Raw v[8];
    for (int r = 0; r < Ring::kRounds; ++r) {
      const Round round = Ring::RoundOf(r);
      for (int i = 0; i < Ring::kUnits; ++i) {
        self.Gather(v, self.SourceOf(item, round), i);
        self.Put(v, self.TargetOf(slot, round) + UnitOffset(round, i), round.is_dy,
                 round.is_dy && slot == 0, round.is_dy ? scales.dy : scales.x, 0);
      }
    }
    Raw tail[OUT_HALVES];
    self.GatherTail(tail, item);
    self.PutTail(tail, slot, scales.dy, 0);
  }

  __device__ __forceinline__ void Publish(int slot, Scales scales, bool first, bool last) const {
    if (threadIdx.x == 0) {
      const int exponent = ExponentOf(scales.x) + ExponentOf(scales.dy);
      control.item[slot] = RollingItem(exponent, first, last).word;
    }
    ptx::FenceAsync();
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[slot]));
  }

  __device__ void Run() {
    RollingWalk walk(p.pairs, control.work.first_step, control.work.steps);
    Item item = ItemOf(walk);
    Raw v[Ring::kUnits][8], tail[OUT_HALVES];
#pragma unroll
    for (int i = 0; i < Ring::kUnits; ++i) Gather(v[i], SourceOf(item, Ring::RoundOf(0)), i);
    float x_scale = ScaleOf(kMinExponent), dy_scale = ScaleOf(kMinExponent);
    int slot = 0;
    uint32_t parity = 1;
    const auto advance = [&] {
      if (++slot == kRollingSlots) {
        slot = 0;
        parity ^= 1;
      }
    };
    while (walk.more) {
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[slot]), parity);
      GatherTail(tail, item);
      uint32_t largest[2] = {0, 0};
#pragma unroll 1
      for (int r = 0; r < Ring::kRounds; ++r) {
        const Round round = Ring::RoundOf(r);
        const bool last = r + 1 == Ring::kRounds;
        if (last) {  // what is loaded from here on belongs to the next item
          RollingWalk ahead = walk;
          ahead.Next(p.pairs);
          item = ItemOf(ahead);
        }
        const Round next = Ring::RoundOf(last ? 0 : r + 1);
        const Source from = SourceOf(item, next);
        if constexpr (PRODUCTS == 1 && kScaled) {  // else there are no registers for it
          AskAhead<Ring, 32, sizeof(T)>(p, next.is_dy, from.at, from.channel, from.row, lane);
        }
        const uint32_t to = TargetOf(slot, round);
        const bool twice = round.is_dy && slot == 0;
        const float scale = round.is_dy ? dy_scale : x_scale;
        uint32_t now = 0;
#pragma unroll
        for (int i = 0; i < Ring::kUnits; ++i) {
          now = Put(v[i], to + UnitOffset(round, i), round.is_dy, twice, scale, now);
          Gather(v[i], from, i);
        }
        largest[0] = round.is_dy ? 0 : ptx::MaxAbsHalf2(largest[0], now);
        largest[1] = round.is_dy ? ptx::MaxAbsHalf2(largest[1], now) : largest[1];
      }
      largest[1] = PutTail(tail, slot, dy_scale, largest[1]);
      if constexpr (kScaled) {
        largest[0] = max(largest[0] & 0xffffu, largest[0] >> 16);
        largest[1] = max(largest[1] & 0xffffu, largest[1] >> 16);
        MaxOfAll(largest, control.exchange[slot]);
        const bool fresh = walk.first || walk.item % (kFlushPixels / (2 * COLUMNS)) == 0;
        const bool x_left = LeavesWindow(largest[0], fresh);
        const bool dy_left = LeavesWindow(largest[1], fresh);
        if (x_left || dy_left) {
          const Item now = ItemOf(walk);
          const Item before = walk.first ? now : ItemOf(walk.image, walk.item - 1, true, true);
          const Scales scales = Needed(*this, now, before, {x_scale, dy_scale}, x_left, dy_left);
          if (scales.x != x_scale || scales.dy != dy_scale) {
            x_scale = scales.x;
            dy_scale = scales.dy;
            if (!walk.first) {
              // This item's step upwards has to be done with the old rows in the new scale.
              Fill(*this, before, slot, scales);
              Publish(slot, scales, true, false);
              advance();
              ptx::BarrierWait(ptx::SharedAddress(&control.empty[slot]), parity);
            }
            Fill(*this, now, slot, scales);
          }
        }
      }
      Publish(slot, {x_scale, dy_scale}, walk.first, walk.last());
      advance();
      walk.Next(p.pairs);
    }
  }
};

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PRODUCER_CUH_
