// The rolling weight gradient's producers of 16-bit elements that lie in pairs: as
// sm90_wgrad_rolling_producer.cuh's, with half as many loads and without scales.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PAIRS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PAIRS_CUH_

#include <cstdint>

#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/sm90_wgrad_rolling_params.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_wgrad_rolling {

template <int COLUMNS, int IN_HALVES, int OUT_HALVES>
struct PairProducer {
  using Ring = RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES>;
  using Pairs = RollingWgradPairs<COLUMNS>;
  static constexpr int kUnits = Pairs::kUnits, kRounds = OUT_HALVES + IN_HALVES;  // dy comes first
  static constexpr int kBytes = 2;                                                // of an element

  const RollingParams& p;
  Control& control;
  const uint32_t ring;  // shared address
  const int warp, lane;
  int x_half, dy_half;  // channels from chunk `warp` to chunk `warp + 4`
  int odd;
  uint32_t inside = 0;  // which units of a full item exist for this lane, as in Item

  // An item's rows, and which of this lane's units exist: a bit for each of x, then of dy, then one
  // for the tail. A dead item has none.
  struct Item {
    const char *x, *dy;
    uint32_t units;
  };
  static constexpr uint32_t kRow = (1u << Pairs::kGroups) - 1;
  static constexpr uint32_t kTail = 1u << 2 * kUnits;

  __device__ PairProducer(const RollingParams& p, Control& control, uint32_t ring, int warp,
                          int lane)
      : p(p), control(control), ring(ring), warp(warp), lane(lane) {
    const Work& work = control.work;
    x_half = RollingChannel(work.in_channels, warp + 4) - RollingChannel(work.in_channels, warp);
    dy_half = RollingChannel(work.out_channels, warp + 4) - RollingChannel(work.out_channels, warp);
    odd = (work.tap_column - p.crop_w) & 1;
    const int x_column = work.strip * COLUMNS, dy_column = x_column + work.tap_column - p.crop_w;
    const auto in_dy = [&](int column) {
      return static_cast<unsigned>(column) < static_cast<unsigned>(p.dy_w);
    };
    for (int i = 0; i < kUnits; ++i) {
      const int column = Pairs::UnitColumn(i) + 2 * lane;
      if (x_column + column < p.x_w) inside |= 1u << i;
      if (in_dy(dy_column + column - odd)) inside |= 1u << (kUnits + i);
    }
    const int tail = Pairs::TailColumn(lane, odd);
    if (tail < Ring::kDyColumns && in_dy(dy_column + tail)) inside |= kTail;
  }

  __device__ __forceinline__ Item ItemOf(const RollingWalk& walk) const {
    const Work& work = control.work;
    const int x_row = 2 * walk.item, dy_row = x_row + work.tap_row - p.crop_h;
    const auto in_dy = [&](int row) {
      return static_cast<unsigned>(row) < static_cast<unsigned>(p.dy_h);
    };
    uint32_t units = 0;
    if (walk.steps() && x_row < p.x_h) units |= kRow;
    if (walk.steps() && x_row + 1 < p.x_h) units |= kRow << Pairs::kGroups;
    if (in_dy(dy_row)) units |= kRow << kUnits;
    if (in_dy(dy_row + 1)) units |= kRow << (kUnits + Pairs::kGroups);
    if (in_dy(dy_row + Pairs::TailRow(lane))) units |= kTail;
    if (!walk.more) units = 0;
    const auto at = [&](const void* base, int64_t batch, uint32_t channel_bytes, int channel,
                        int width, int row, int column) {
      return static_cast<const char*>(base) + walk.image * batch +
             channel * static_cast<int64_t>(channel_bytes) +
             (static_cast<int64_t>(row) * width + column) * kBytes;
    };
    const int column = work.strip * COLUMNS + 2 * lane;
    return {
        at(p.x, p.x_batch, p.x_channel, work.in_first + RollingChannel(work.in_channels, warp),
           p.x_w, x_row, column),
        at(p.dy, p.dy_batch, p.dy_channel, work.out_first + RollingChannel(work.out_channels, warp),
           p.dy_w, dy_row, column + work.tap_column - p.crop_w - odd),
        units & inside};
  }

  __device__ __forceinline__ static bool IsDy(int round) { return round < OUT_HALVES; }
  __device__ __forceinline__ static int HalfOf(int round) {
    return IsDy(round) ? round : round - OUT_HALVES;
  }

  // A round's loads: where unit 0 starts, and a bit for each unit that exists.
  struct Source {
    const char* at;
    uint32_t units, channel, row;  // from one channel to the next, from one row to the next
  };
  __device__ __forceinline__ Source SourceOf(const Item& item, int round) const {
    const bool is_dy = IsDy(round);
    const uint32_t channel = is_dy ? p.dy_channel : p.x_channel;
    const uint32_t row = static_cast<uint32_t>((is_dy ? p.dy_w : p.x_w) * kBytes);
    const int half = HalfOf(round) == 0 ? 0 : is_dy ? dy_half : x_half;
    const char* const at = (is_dy ? item.dy : item.x) + static_cast<int64_t>(half) * channel;
    return {at, item.units >> (is_dy ? kUnits : 0), channel, row};
  }
  __device__ __forceinline__ void Gather(uint32_t (&v)[8], const Source& from, int unit) const {
    const char* at = from.at + Pairs::UnitColumn(unit) * kBytes;
    if (Pairs::UnitRow(unit) == 1) at += from.row;
    const uint32_t wanted = from.units & 1u << unit;
#pragma unroll
    for (int k = 0; k < 8; ++k, at += from.channel) {
      v[k] = ptx::LoadIf(reinterpret_cast<const uint32_t*>(at), wanted);
    }
  }
  __device__ __forceinline__ void GatherTail(uint32_t (&v)[OUT_HALVES], const Item& item) const {
    // From this lane's own first column, one before the strip where the tail's is.
    const int columns = Pairs::TailColumn(lane, 0) - 2 * lane;
    const char* at = item.dy + Pairs::TailChannel(lane) * int64_t{p.dy_channel} +
                     (int64_t{Pairs::TailRow(lane)} * p.dy_w + columns) * kBytes;
#pragma unroll
    for (int half = 0; half < OUT_HALVES; ++half, at += int64_t{dy_half} * p.dy_channel) {
      v[half] = ptx::LoadIf(reinterpret_cast<const uint32_t*>(at), item.units & kTail);
    }
  }

  // One of a lane's two cells.
  __device__ __forceinline__ static uint4 Cell(const uint32_t (&v)[8], int second) {
    const uint32_t halves = second == 0 ? 0x5410 : 0x7632;
    return make_uint4(__byte_perm(v[0], v[1], halves), __byte_perm(v[2], v[3], halves),
                      __byte_perm(v[4], v[5], halves), __byte_perm(v[6], v[7], halves));
  }
  // Stores both cells of a unit, and twice where dy has its mirror. The first lane's pair may start
  // before the strip.
  __device__ __forceinline__ void Put(const uint32_t (&v)[8], uint32_t to, int unit, bool is_dy,
                                      bool twice) const {
    const int first = Pairs::FirstStored(lane);
    const bool exists = Pairs::UnitColumn(unit) != 0 || !is_dy || 2 * lane >= odd;
    const uint4 one = Cell(v, first), other = Cell(v, 1 - first);
    const uint32_t to_one = to + 16 * first, to_other = to + 16 * (1 - first);
    ptx::StoreShared128If(to_one, one, exists);
    ptx::StoreShared128(to_other, other);
    // Flat conditions: with a branch, loads in flight would wait for each other.
    const uint32_t mirror = kRollingSlots * Ring::kDyItem;
    ptx::StoreShared128If(to_one + mirror, one, exists && twice);
    ptx::StoreShared128If(to_other + mirror, other, twice);
  }
  // Of the first of the lane's cells of unit 0.
  __device__ __forceinline__ uint32_t TargetOf(int slot, int round) const {
    const int chunk = warp + 4 * HalfOf(round);
    return ring + (IsDy(round) ? Ring::DyCell(slot, 0, chunk, 2 * lane - odd)
                               : Ring::XCell(slot, 0, chunk, 2 * lane));
  }
  __device__ __forceinline__ static uint32_t UnitOffset(bool is_dy, int unit) {
    const int row = is_dy ? Ring::kDyRow : Ring::kXRow;
    return static_cast<uint32_t>(Pairs::UnitRow(unit) * row + Pairs::UnitColumn(unit) * 16);
  }
  __device__ __forceinline__ void PutTail(const uint32_t (&v)[OUT_HALVES], int slot) const {
    const int column = Pairs::TailColumn(lane, odd);
#pragma unroll
    for (int half = 0; half < OUT_HALVES; ++half) {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (column + second >= Ring::kDyColumns) continue;
        const uint32_t value = v[half] >> 16 * second;
        const uint32_t to =
            ring + 2 * Pairs::TailChannel(lane) +
            Ring::DyCell(slot, Pairs::TailRow(lane), warp + 4 * half, column + second);
        ptx::StoreShared16(to, value);
        if (slot == 0) ptx::StoreShared16(to + kRollingSlots * Ring::kDyItem, value);
      }
    }
  }

  __device__ void Run() const {
    RollingWalk walk(p.pairs, control.work.first_step, control.work.steps);
    Item item = ItemOf(walk);
    uint32_t v[kUnits][8], tail[OUT_HALVES];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) Gather(v[i], SourceOf(item, 0), i);
    int slot = 0;
    uint32_t parity = 1;
    while (walk.more) {
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[slot]), parity);
      GatherTail(tail, item);
      RollingWalk ahead = walk;
      ahead.Next(p.pairs);
#pragma unroll 1
      for (int r = 0; r < kRounds; ++r) {
        const bool last = r + 1 == kRounds;
        if (last) item = ItemOf(ahead);  // what is loaded from here on belongs to it
        const Source from = SourceOf(item, last ? 0 : r + 1);
        if constexpr (COLUMNS == 64 || IN_HALVES <= OUT_HALVES) {  // else registers are short
          AskAhead<Pairs, 64, kBytes>(p, IsDy(last ? 0 : r + 1), from.at, from.channel, from.row,
                                      lane);
        }
        const uint32_t to = TargetOf(slot, r);
        const bool is_dy = IsDy(r), twice = is_dy && slot == 0;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
          Put(v[i], to + UnitOffset(is_dy, i), i, is_dy, twice);
          Gather(v[i], from, i);
        }
      }
      PutTail(tail, slot);
      if (threadIdx.x == 0) control.item[slot] = RollingItem(0, walk.first, walk.last()).word;
      ptx::FenceAsync();
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.full[slot]));
      if (++slot == kRollingSlots) {
        slot = 0;
        parity ^= 1;
      }
      walk = ahead;
    }
  }
};

}  // namespace transconv::cuda::sm90_wgrad_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_ROLLING_PAIRS_CUH_
