// Hopper's forward pass and gradient of x at stride 1: whole rows roll through shared memory
// (core/rolling_plan.h), while all weights of a block of 64 target channels stay there.
//
//     8 producer warps   load an item, two source rows of all channels, convert it to 16 bits and
//                        store it as cells; every row is read and converted once
//     8 consumer warps   two warpgroups, a target row each: for every tap and 16 channels one
//                        matrix instruction, whose pixel operand starts at the tap's cell; then
//                        the rows leave as in kernels/store_rows.cuh
//
// float32 is multiplied in float16 with a block exponent (primitives/operand.cuh). Data that leaves
// its window starts a new segment with another exponent, from the item before on.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_

#include <cstdint>

#include "core/rolling_plan.h"
#include "cuda/kernels/rolling_item.cuh"
#include "cuda/kernels/store_rows.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_rolling {

constexpr int kProducerWarps = 8, kConsumerWarps = 8;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = kProducers + 32 * kConsumerWarps;
constexpr int kTapBytes = 64 * 16 * 2;  // packed weights of one tap and 16 channels
constexpr int kZeroItems = 8;           // how often an item that scaled to zeros is looked at again
constexpr int kControlBytes = 512;

struct RollingParams {
  const void* source;
  void* target;
  const void* bias;        // null if there is none
  const uint8_t* weights;  // packed: [group][m block][slab][tap][64 x 16]
  const float* scales;     // float32: what a packed weight unit of each target channel is worth
  int64_t source_batch;    // strides in bytes
  uint32_t source_channel;
  int64_t target_batch, target_channel;  // strides in elements
  int source_h, source_w, target_h, target_w;
  int first_row, first_column;  // of the source, for target (0, 0)
  int batch, pairs;             // pairs of target rows
  int groups, k_per_group, m_per_group, m_blocks, taps_h, taps_w;
  int strips, shares, strip, lead;
  int columns;  // cells of a source row
  int weight_bytes, ring_at, staging_at, staging_pitch;
};

// What a block works on: blockIdx.x = (share * strips + strip) * units + unit.
struct Work {
  int group, m_block;
  int strip, column;  // first target column; negative where strips are cut
  int first_step, steps;
};

struct Control {
  uint64_t full[kRollingSlots], empty[kRollingSlots], weights;
  uint64_t turn[2];         // of a warpgroup, to multiply
  int item[kRollingSlots];  // RollingItem::word
  uint32_t exchange[kRollingSlots][kProducerWarps];
  uint32_t redo[kProducerWarps];
  alignas(16) Work work;  // apart from what is written later
};
static_assert(sizeof(Control) <= kControlBytes, "weights start behind it");

__device__ inline Work WorkOf(const RollingParams& p) {
  Work work;
  const int units = p.groups * p.m_blocks;
  const int unit = static_cast<int>(blockIdx.x) % units;
  const int split = static_cast<int>(blockIdx.x) / units;
  work.group = unit / p.m_blocks;
  work.m_block = unit % p.m_blocks;
  work.strip = split % p.strips;
  work.column = work.strip * p.strip - p.lead;
  const int share = split / p.strips;
  const int64_t all = int64_t{p.batch} * p.pairs;
  work.first_step = RollingShare(all, p.shares, share);
  work.steps = RollingShare(all, p.shares, share + 1) - work.first_step;
  return work;
}

template <typename T, int N, int HALVES>
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

  // Converts a unit and stores its cells; returns the largest scaled magnitudes, two halves.
  __device__ __forceinline__ uint32_t Put(const Raw (&v)[8], uint32_t to, float scale,
                                          uint32_t largest) const {
    uint32_t packed[4], low[4];
    largest = ConvertCell<T, 1, 1>(v, scale, packed, low, largest);
    ptx::StoreShared128(to, make_uint4(packed[0], packed[1], packed[2], packed[3]));
    return largest;
  }
  __device__ __forceinline__ uint32_t TargetOf(int slot, int row, int column) const {
    const RollingTilePitch pitch = RollingTilePitch::Of(p.columns, Ring::kChunks);
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

  __device__ void Run() {
    RollingWalk walk(p.pairs, control.work.first_step, control.work.steps);
    const int first_row = Ring::FirstRow(warp);
    Item item = ItemOf(walk);
    Raw v[Ring::kUnits][8], tail[8];
#pragma unroll
    for (int i = 0; i < Ring::kUnits; ++i) Gather(v[i], SourceOf(item, first_row), i);
    float scale = ScaleOf(kMinExponent);
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
        const uint32_t to = TargetOf(slot, first_row + r, lane);
#pragma unroll
        for (int i = 0; i < Ring::kUnits; ++i) {
          largest = Put(v[i], to + 512 * i, scale, largest);
          Gather(v[i], from, i);
        }
      }
      largest = PutTail(tail, slot, scale, largest);
      if constexpr (kScaled) {
        largest = MaxOfAll(max(largest & 0xffffu, largest >> 16), control.exchange[slot]);
        // Nothing is summed across items, so a scale may become finer at any; but an item of real
        // zeros would be loaded again for nothing.
        const bool may_fall = largest != 0 || walk.first || walk.item % kZeroItems == 0;
        if (LeavesWindow(largest, may_fall)) {
          const Item now = ItemOf(walk);
          const Item before = walk.first ? now : ItemOf(walk.image, walk.item - 1, true);
          const float needed = Needed(*this, now, before, scale);
          if (needed != scale) {
            scale = needed;
            if (!walk.first) {
              // The step of the item before has to be done with its rows in the new scale.
              Fill(*this, before, slot, scale);
              Publish(slot, scale, true, false);
              advance();
              ptx::BarrierWait(ptx::SharedAddress(&control.empty[slot]), parity);
            }
            Fill(*this, now, slot, scale);
          }
        }
      }
      Publish(slot, scale, walk.first, walk.last());
      advance();
      walk.Next(p.pairs);
    }
  }
};

template <typename T, int N, int HALVES>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  using Ring = RollingTileRing<N, HALVES>;
  static constexpr bool kScaled = sizeof(T) == 4;

  const RollingParams& p;
  Control& control;
  const uint32_t weights, ring;  // shared addresses
  T* const staging;              // this warp's: 8 channels
  const int group;               // warpgroup, which is the target row of a pair
  const int warp, lane;

  __device__ void Run() const {
    float sum[N / 2];
    const int first_step = control.work.first_step;
    int image = first_step / p.pairs, pair = first_step % p.pairs;
    int slot = 0;
    uint32_t parity = 0, turn = group == 0 ? 1 : 0;
    ptx::BarrierWait(ptx::SharedAddress(&control.weights), 0);
    ptx::BarrierWait(ptx::SharedAddress(&control.full[0]), 0);
    RollingItem item(&control.item[0], lane);
    while (!item.last()) {
      const int next = slot + 1 == kRollingSlots ? 0 : slot + 1;
      const uint32_t next_parity = next == 0 ? parity ^ 1 : parity;
      ptx::BarrierWait(ptx::SharedAddress(&control.full[next]), next_parity);
      item = RollingItem(&control.item[next], lane);
      const bool joins = !item.first();
      if (joins) {
        ptx::BarrierWait(ptx::SharedAddress(&control.turn[group]), turn);
        turn ^= 1;
        Multiply(sum, slot, next);
      }
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[slot]));
      slot = next;
      parity = next_parity;
      if (joins) {
        Store(sum, image, 2 * pair + group, item.exponent());
        if (++pair == p.pairs) {
          pair = 0;
          ++image;
        }
      }
    }
    if (lane < 8) ptx::BulkWait<0>();
  }

  // One target row: source rows `group` to `group + taps_h - 1` of two items.
  __device__ __forceinline__ void Multiply(float (&sum)[N / 2], int slot, int next) const {
    const RollingTilePitch pitch = RollingTilePitch::Of(p.columns, Ring::kChunks);
    const uint64_t a = wgmma::Descriptor(1024, 128) | (weights >> 4);
    const uint64_t b = wgmma::Descriptor(pitch.chunk, 128) | (ring >> 4);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0.f;
    wgmma::Pin(sum);
    wgmma::Fence();
    for (int y = 0; y < p.taps_h; ++y) {
      const int row = group + y;
      const uint32_t at = (row < 2 ? slot : next) * (pitch.item >> 4) + row % 2 * (pitch.row >> 4);
      for (int x = 0; x < p.taps_w; ++x) {
        const uint32_t tap = (y * p.taps_w + x) * (kTapBytes >> 4);
        const uint32_t slab = p.taps_h * p.taps_w * (kTapBytes >> 4);
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

  __device__ __forceinline__ void Store(float (&sum)[N / 2], int image, int row,
                                        int exponent) const {
    if (row >= p.target_h) return;
    const Work& work = control.work;
    const int m = work.m_block * 64 + warp * 16;
    const int64_t channel = static_cast<int64_t>(work.group) * p.m_per_group + m;
    float factor[2], bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = half * 8 + lane / 4;
      const bool exists = m + own < p.m_per_group;
      bias[half] = exists && p.bias != nullptr
                       ? static_cast<float>(static_cast<const T*>(p.bias)[channel + own])
                       : 0.f;
      factor[half] = kScaled && exists ? p.scales[channel + own] : 0.f;
    }
    // Two factors: their product may leave float32's range.
    const float power = kScaled ? PowerOfTwo(exponent - kTargetExponent) : 1.f;
    const auto value = [&](int, int half, int i) {
      return kScaled ? fmaf(sum[i] * factor[half], power, bias[half]) : sum[i] + bias[half];
    };
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
                         p.lead};
    StoreStripRow<T, N, 1>(value, strip, static_cast<T*>(p.target), staging, p.staging_pitch, lane);
  }
};

template <typename T, int N, int HALVES>
__global__ void __launch_bounds__(kThreads, 1)
    RollingTileKernel(const __grid_constant__ RollingParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
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
    const uint32_t bytes = static_cast<uint32_t>(p.weight_bytes);
    const int64_t block = int64_t{control.work.group} * p.m_blocks + control.work.m_block;
    ptx::BarrierArriveExpect(ptx::SharedAddress(&control.weights), bytes);
    ptx::BulkLoad(weights, p.weights + block * bytes, bytes, ptx::SharedAddress(&control.weights));
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    Producer<T, N, HALVES>(p, control, ring, warp, lane).Run();
  } else {
    const int consumer = warp - kProducerWarps;
    T* staging = reinterpret_cast<T*>(shared + p.staging_at) + consumer * 8 * p.staging_pitch;
    Consumer<T, N, HALVES>{p, control, weights, ring, staging, consumer / 4, consumer % 4, lane}
        .Run();
  }
}

}  // namespace transconv::cuda::sm90_rolling

#endif  // TRANSCONV_CUDA_KERNELS_SM90_ROLLING_CUH_
