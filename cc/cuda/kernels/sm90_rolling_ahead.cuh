// The producers of the rolling forward pass and gradient of x for at most 32 source channels: as in
// sm90_rolling_gather.cuh, but what they load lies in shared memory until its turn.
//
// Loads into registers all share one scoreboard, and the tail of an item waits for its own: once an
// item everything in flight arrives before anything new is asked for. Copies into a ring of the
// lane's own are waited for one unit at a time, so that kUnits are in flight always.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_ROLLING_AHEAD_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_ROLLING_AHEAD_CUH_

#include <cstdint>

#include "core/rolling_plan.h"
#include "cuda/kernels/cells_ahead.cuh"
#include "cuda/kernels/sm90_rolling_gather.cuh"
#include "cuda/kernels/sm90_rolling_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_rolling {

template <typename T, int N, int PRODUCTS>
struct ProducerAhead : Producer<T, N, 1, PRODUCTS> {
  using Base = Producer<T, N, 1, PRODUCTS>;
  using typename Base::Ring;
  using Words = RollingWords<sizeof(T)>;
  using Base::control, Base::lane, Base::p, Base::warp;

  static constexpr int kUnits = kAhead<PRODUCTS>;

  const uint32_t raw;        // shared address of this lane's ring
  uint32_t inside_word = 0;  // which words of a row exist for this lane: a bit for each unit

  __device__ ProducerAhead(const RollingParams& p, Control& control, uint32_t ring, uint32_t raw,
                           int warp, int lane)
      : Base(p, control, ring, warp, lane),
        raw(raw + static_cast<uint32_t>(warp * kUnits * kCellBytes + 4 * lane)) {
    if (8 * Ring::ChunkOf(warp) >= p.k_per_group) return;
    const int column = control.work.column + p.first_column;
    for (int u = 0; u < Words::Units(p.columns); ++u) {
      const int x = column + Words::ColumnOf(u, lane);
      if (static_cast<unsigned>(x) < static_cast<unsigned>(p.source_w)) inside_word |= 1u << u;
    }
  }

  // This lane's words of the warp's row of an item.
  struct Row {
    const char* at;
    uint32_t inside;
  };
  __device__ __forceinline__ Row RowOf(const RollingWalk& walk) const {
    const Work& work = control.work;
    const int row = 2 * walk.item + p.first_row + Ring::FirstRow(warp);
    const bool exists = walk.more && static_cast<unsigned>(row) < static_cast<unsigned>(p.source_h);
    const int channel = work.group * p.k_per_group + 8 * Ring::ChunkOf(warp);
    const char* at = static_cast<const char*>(p.source) + walk.image * p.source_batch +
                     channel * static_cast<int64_t>(p.source_channel) +
                     (static_cast<int64_t>(row) * p.source_w + work.column + p.first_column +
                      Words::ColumnOf(0, lane)) *
                         int{sizeof(T)};
    return {at, exists ? inside_word : 0u};
  }

  // Converts a unit and stores its cells, `to` being the first of the lane's.
  __device__ __forceinline__ uint32_t PutUnit(const float (&v)[8], uint32_t to, int unit,
                                              float scale, uint32_t largest) const {
    const int column = Words::ColumnOf(unit, lane);
    to += 16 * Words::ColumnOf(unit, 0);
    if constexpr (sizeof(T) == 4) {
      if (column < p.columns) largest = this->Put(v, to, scale, largest);
    } else {
      uint32_t low[4], high[4];  // of two columns
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t a = __float_as_uint(v[2 * i]), b = __float_as_uint(v[2 * i + 1]);
        low[i] = __byte_perm(a, b, 0x5410);
        high[i] = __byte_perm(a, b, 0x7632);
      }
      ptx::StoreShared128If(to, make_uint4(low[0], low[1], low[2], low[3]), column < p.columns);
      ptx::StoreShared128If(to + 16, make_uint4(high[0], high[1], high[2], high[3]),
                            column + 1 < p.columns);
    }
    return largest;
  }

  __device__ void Run() {
    RollingWalk walk(p.pairs, control.work.first_step, control.work.steps), ahead = walk;
    const int units = Words::Units(p.columns);
    CellsAhead<kUnits> words{raw, kUnits};
    Row from = RowOf(ahead);
    int unit = 0;
    const auto start = [&] {
      words.Start(from.at + unit * 128, p.source_channel, from.inside & 1u << unit ? 0u : kNoCell,
                  8);
      if (++unit == units) {
        unit = 0;
        ahead.Next(p.pairs);
        from = RowOf(ahead);
      }
    };
    for (int i = 0; i < kUnits; ++i) start();
    typename Base::State state;
    while (walk.more) {
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[state.slot]), state.parity);
      const uint32_t to =
          this->TargetOf(state.slot, Ring::FirstRow(warp), Words::ColumnOf(0, lane));
      uint32_t largest = 0;
      for (int u = 0; u < units; ++u) {
        float v[8];
        words.Take(v);
        largest = PutUnit(v, to, u, state.scale, largest);
        start();
      }
      this->Finish(walk, largest, &state);
      walk.Next(p.pairs);
    }
    ptx::CopyAsyncWait<0>();
  }
};

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_ROLLING_AHEAD_CUH_
