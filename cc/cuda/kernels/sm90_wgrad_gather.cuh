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

  // What of an image a walk's part reads; nothing of image -1, which does not exist.
  __device__ __forceinline__ Source SourceOf(const Walk<Form>& at, int image) const {
    const bool is_x = at.IsX();
    const int chunk = at.chunk + (is_x ? 8 * at.part : 0);
    const char* const from = (is_x ? x : dy) + image * (is_x ? p.x_batch : p.dy_batch);
    const int channels = is_x ? p.in_per_group - work.in_block * 64 * Form::kHalves
                              : p.out_per_group - work.out_block * 64;
    return {from + chunk * (8 * int64_t{is_x ? p.x_channel : p.dy_channel}),
            image >= 0 ? channels - 8 * chunk : 0};
  }
  __device__ __forceinline__ uint32_t ChannelBytes(const Walk<Form>& at) const {
    return at.IsX() ? p.x_channel : p.dy_channel;
  }

  // Brings units into flight, one after the other.
  struct Starter {
    const GatherProducer& producer;
    Walk<Form> at;
    int which = 0, image = -1;
    Source from{};
    __device__ __forceinline__ explicit Starter(const GatherProducer& producer)
        : producer(producer), at{producer.p} {}
    __device__ __forceinline__ void Begin(int of_table, int of_image) {
      at.chunk = producer.warp;
      at.part = 0;
      which = of_table;
      image = of_image;
      Enter();
    }
    __device__ __forceinline__ void Enter() {
      at.Enter(producer.Entry(2 + which));
      from = producer.SourceOf(at, image);
    }
    __device__ __forceinline__ uint32_t Offset() const { return ptx::LoadSharedWord(at.entry); }
    __device__ __forceinline__ void Next() {
      if (at.Next()) Enter();
    }
    __device__ __forceinline__ void Gather(Raw (&v)[8], uint32_t offset) const {
      GatherCell(v, from.base, producer.ChannelBytes(at), offset, from.channels);
    }
    __device__ __forceinline__ void Start(CellsAhead<kAhead>& cells, uint32_t offset) const {
      cells.Start(from.base, producer.ChannelBytes(at), offset, from.channels);
    }
  };

  // Converts units and stores their cells in a stage, one after the other.
  struct Putter {
    const GatherProducer& producer;
    Walk<Form> at;
    const uint32_t stage;
    const float x_scale, dy_scale;
    uint32_t to = 0;
    float scale = 0.f;
    // Largest scaled magnitudes, per half of a register: of the present part, of x, and of dy.
    uint32_t largest = 0, x_largest = 0, dy_largest = 0;
    __device__ __forceinline__ Putter(const GatherProducer& producer, uint32_t stage, float x_scale,
                                      float dy_scale)
        : producer(producer), at{producer.p}, stage(stage), x_scale(x_scale), dy_scale(dy_scale) {
      at.chunk = producer.warp;
      Enter();
    }
    __device__ __forceinline__ void Enter() {
      const WgradParams& p = producer.p;
      at.Enter(producer.Entry(0));
      scale = at.IsX() ? x_scale : dy_scale;
      to = stage +
           (at.IsX() ? (at.chunk + 8 * at.part) * p.x_chunk_bytes : at.chunk * p.dy_chunk_bytes);
    }
    __device__ __forceinline__ uint32_t Target() const { return ptx::LoadSharedWord(at.entry); }
    __device__ __forceinline__ void Put(const Raw (&v)[8], uint32_t target) {
      uint32_t packed[4], low[4];
      largest = ConvertCell<T, PRODUCTS, 1>(v, scale, packed, low, largest);
      const bool exists = target != kNoCell;
      ptx::StoreShared128If(to + target, make_uint4(packed[0], packed[1], packed[2], packed[3]),
                            exists);
      if constexpr (PRODUCTS == 3) {
        ptx::StoreShared128If(to + target + producer.p.part_bytes,
                              make_uint4(low[0], low[1], low[2], low[3]), exists);
      }
      const bool was_x = at.IsX();
      if (at.Next()) {
        Keep(was_x);
        Enter();
      }
    }
    __device__ __forceinline__ void Keep(bool was_x) {
      const uint32_t kept = ptx::MaxAbsHalf2(was_x ? x_largest : dy_largest, largest);
      x_largest = was_x ? kept : x_largest;
      dy_largest = was_x ? dy_largest : kept;
      largest = 0;
    }
  };

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
    uint32_t largest[2] = {0, 0};
    Starter from(self);
    from.Begin(which, image);
    for (int i = 0; i < self.p.units_per_warp; ++i) {
      Raw v[8];
      from.Gather(v, from.Offset());
      if (from.at.IsX()) {
        largest[0] = LargestBits(v, largest[0]);
      } else {
        largest[1] = LargestBits(v, largest[1]);
      }
      from.Next();
    }
    self.MaxOfAll(largest, self.control.redo);
    ptx::NamedBarrier<1, kProducers>();  // `redo` may be written again
    const Exponents needed{NeededExponent(largest[0], now.x, may_fall),
                           NeededExponent(largest[1], now.dy, may_fall)};
    if (needed.x == now.x && needed.dy == now.dy) return now;
    from.Begin(which, image);
    Putter to(self, stage, ScaleOf(needed.x), ScaleOf(needed.dy));
    for (int i = 0; i < self.p.units_per_warp; ++i) {
      Raw v[8];
      from.Gather(v, from.Offset());
      to.Put(v, to.Target());
      from.Next();
    }
    return needed;
  }

  __device__ void Run() {
    if (work.first >= work.last) return;
    int image = this->BuildOffsets(work.first, 0);
    ptx::NamedBarrier<1, kProducers>();
    CellsAhead<kAhead> cells{raw, p.ahead};
    Raw v[kAsync ? 1 : kUnits][8];
    Starter from(*this);
    from.Begin(0, image);
    if constexpr (kAsync) {
      for (int i = 0; i < p.ahead; ++i) {
        from.Start(cells, from.Offset());
        from.Next();
      }
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        from.Gather(v[i], from.Offset());
        from.Next();
      }
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
      Putter to(*this, at, x_scale, dy_scale);
      if constexpr (kAsync) {
        const auto step = [&] {
          // What waits for shared memory comes first, where registers last.
          const uint32_t target = to.Target();
          const uint32_t offset = from.Offset();
          cells.Take(v[0]);
          to.Put(v[0], target);
          from.Start(cells, offset);
          from.Next();
        };
        for (int i = 0; i < p.units_per_warp - p.ahead; ++i) step();
        from.Begin(which ^ 1, next_image);
        for (int i = 0; i < p.ahead; ++i) step();
      } else {
        for (int j = 0; j < p.units_per_warp; j += kUnits) {
          if (j + kUnits >= p.units_per_warp) from.Begin(which ^ 1, next_image);
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
            to.Put(v[i], to.Target());
            from.Gather(v[i], from.Offset());
            from.Next();
          }
        }
      }
      to.Keep(false);  // what came last is dy's
      uint32_t largest[2] = {to.x_largest, to.dy_largest};
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
