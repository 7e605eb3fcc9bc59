// Hopper's dense kernel for the weight gradient: tiles of both images and wgmma over pixels.
//
// dw[c, o, tap] = sum over positions of x[c, position] * dy[o, position moved by the tap]. The rows
// of the matrix product are 64 channels of x, its columns 64 channels of dy for each tap, and the
// sum runs over pixels, so both operands are read MN-major from cells (core/wgrad_plan.h):
//
//     4 producer warps    gather a tile of x and its halo of dy in any layout, convert them to 16
//                         bits and store them as cells; each is converted once for all taps
//     12 consumer warps   three warpgroups with their own taps: up to three accumulators of
//                         64 x 64, in one instruction where the taps are vertical neighbours
//
// The tiles are split over blocks; every block adds its sums, in float32 and at a fixed interval
// (tensor-core accumulators truncate), to a private slot in the workspace. A second kernel adds the
// slots in their order: bit-reproducible, no atomics. float32 carries a block exponent for each
// image (primitives/operand.cuh); with PRODUCTS = 3 the low parts are multiplied too.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/wgrad_plan.h"
#include "cuda/kernels/cells_ahead.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_wgrad {

constexpr int kProducerWarps = 4;
constexpr int kConsumerWarps = 4 * kWgradGroups;
constexpr int kProducers = 32 * kProducerWarps;
constexpr int kThreads = 32 * (kProducerWarps + kConsumerWarps);
// Gathers in flight per producer, 8 channels of one cell each: in registers, and for float32 apart.
constexpr int kUnits = 5, kAhead = 8;
constexpr int kMaxStages = 4;
constexpr int kPromote = 4;           // steps of 16 pixels between promotions, with three products
constexpr int kSlotFloats = 64 * 64;  // of one tap

struct WgradParams {
  const void* x;
  const void* dy;
  float* slots;               // [split][unit][warpgroup][slot][64 x 64 in register order]
  int64_t x_batch, dy_batch;  // strides in bytes
  uint32_t x_channel, dy_channel, x_pixel, dy_pixel;
  int x_h, x_w, dy_h, dy_w;
  int step_h, step_w;  // from one cell to the next of a plane of dy
  int in_per_group, out_per_group, in_blocks, out_blocks, passes, units;
  int tiles, per_split, flush;
  Divider by_strip, by_row;  // a tile's index: strip, row, image
  int rows, columns, halo_rows, halo_columns, planes_w;
  int x_cells, dy_cells, x_groups, cell_groups, units_per_warp;  // groups of 32 cells, x first
  int stages, stage_bytes, part_bytes, dy_at;  // of a stage: high part, then low part; x, then dy
  int x_row_bytes, dy_row_bytes, dy_plane_bytes;
  int pixel_groups;  // distance between the two halves of 16 pixels: 128, or a row for 8 columns
  int table_at, raw_at;
  int ahead;  // units in flight
  int plane_h[kMaxPlanes], plane_w[kMaxPlanes];
  int first_row, first_column;
  int start[kWgradMaxLanes * kWgradMaxSlots];  // of each tap's dy, in cells of a stage
};

struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  int exponent[kMaxStages];  // of x and dy together
  uint32_t exchange[2][2][kProducerWarps];
  uint32_t redo[2][kProducerWarps];
};
constexpr int kControlBytes = 512;
static_assert(sizeof(Control) <= kControlBytes, "the stages start behind it");

// What one block works on: blockIdx.x = split * units + unit, so that neighbours share tiles.
struct Work {
  int group, in_block, out_block, pass;
  int first, last;  // tiles
  __device__ explicit Work(const WgradParams& p) {
    int unit = blockIdx.x % p.units;
    const int split = blockIdx.x / p.units;
    pass = unit % p.passes;
    unit /= p.passes;
    out_block = unit % p.out_blocks;
    unit /= p.out_blocks;
    in_block = unit % p.in_blocks;
    group = unit / p.in_blocks;
    first = split * p.per_split;
    last = min(first + p.per_split, p.tiles);
  }
};

template <typename T, int PRODUCTS>
struct Producer {
  using Raw = typename Element<T>::Raw;
  static constexpr bool kScaled = sizeof(T) == 4, kAsync = sizeof(T) == 4;

  const WgradParams& p;
  const Work work;
  Control& control;
  const uint32_t stages, raw;  // shared addresses, the second of this lane's cells in flight
  // By cell: the byte where its chunk 0 goes in a stage, its place relative to the tile, and two
  // tables of its offset in its image.
  const uint32_t* const table;
  const int warp, lane;
  const char* x;  // channel 0 of this block's
  const char* dy;
  int x_channels, dy_channels;

  // Every table ends with a group of cells that do not exist.
  __device__ const uint32_t* Part(int i) const { return table + i * (p.cell_groups + 1) * 32; }

  // Fills a table for a tile and returns the tile's image.
  __device__ int BuildOffsets(int tile, int which) const {
    const int x_at = p.by_strip.Split(tile) * p.columns, y = p.by_row.Split(tile) * p.rows;
    const uint32_t* const places = Part(1);
    uint32_t* const out = const_cast<uint32_t*>(Part(2 + which));
    for (int cell = threadIdx.x; cell < (p.cell_groups + 1) * 32; cell += kProducers) {
      const uint32_t place = places[cell];
      uint32_t offset = kNoCell;
      if (Part(0)[cell] != kNoCell) {
        offset = cell < p.x_groups * 32
                     ? OffsetOf(place, y, x_at, p.x_h, p.x_w, p.x_pixel)
                     : OffsetOf(place, p.step_h * (y + p.first_row),
                                p.step_w * (x_at + p.first_column), p.dy_h, p.dy_w, p.dy_pixel);
      }
      out[cell] = offset;
    }
    return tile;
  }

  // Unit u of a tile is chunk u % 8 of the 32 cells of group u / 8.
  __device__ __forceinline__ int UnitOf(int i) const { return warp + kProducerWarps * i; }
  __device__ __forceinline__ int GroupOf(int unit) const { return min(unit / 8, p.cell_groups); }

  // A unit's loads: where they start, and how many channels exist from there on.
  struct Place {
    const char* base;
    uint32_t channel_bytes, offset;
    int channels;
  };
  __device__ __forceinline__ Place PlaceOf(int image, int which, int unit) const {
    const int group = GroupOf(unit), chunk = unit % 8;
    const bool is_x = group < p.x_groups;
    const uint32_t channel = is_x ? p.x_channel : p.dy_channel;
    const char* const base = (is_x ? x : dy) + image * (is_x ? p.x_batch : p.dy_batch);
    return {base + chunk * (8 * int64_t{channel}), channel, Part(2 + which)[group * 32 + lane],
            image >= 0 ? (is_x ? x_channels : dy_channels) - chunk * 8 : 0};
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
    const int group = GroupOf(unit), chunk = unit % 8;
    const bool is_x = group < p.x_groups;
    uint32_t packed[4], low[4];
    const uint32_t largest = ConvertCell<T, PRODUCTS, 1>(v, is_x ? x_scale : dy_scale, packed, low,
                                                         is_x ? x_largest : dy_largest);
    x_largest = is_x ? largest : x_largest;
    dy_largest = is_x ? dy_largest : largest;
    const uint32_t place = Part(0)[group * 32 + lane];
    const uint32_t at = stage + place + chunk * ((is_x ? p.x_row_bytes : p.dy_row_bytes) / 8);
    const bool exists = place != kNoCell;
    ptx::StoreShared128If(at, make_uint4(packed[0], packed[1], packed[2], packed[3]), exists);
    if constexpr (PRODUCTS == 3) {
      ptx::StoreShared128If(at + p.part_bytes, make_uint4(low[0], low[1], low[2], low[3]), exists);
    }
  }

  // Largest x and dy values over all producer warps.
  __device__ void MaxOfAll(uint32_t (&value)[2], uint32_t (*slots)[kProducerWarps]) const {
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
  static __device__ __noinline__ Exponents Redo(Producer self, int image, int which, uint32_t stage,
                                                Exponents now, bool may_fall) {
    const WgradParams& p = self.p;
    uint32_t largest[2] = {0, 0};
    for (int u = self.warp; u < 8 * p.cell_groups; u += kProducerWarps) {
      Raw v[8];
      self.Gather(v, image, which, u);
      const int i = u / 8 < p.x_groups ? 0 : 1;
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
    int image = BuildOffsets(work.first, 0);
    ptx::NamedBarrier<1, kProducers>();
    CellsAhead<kAhead> cells{raw, p.ahead};
    Raw v[kAsync ? 1 : kUnits][8];
    if constexpr (kAsync) {
      for (int i = 0; i < p.ahead; ++i) Start(cells, image, 0, UnitOf(i));
    } else {
#pragma unroll
      for (int i = 0; i < kUnits; ++i) Gather(v[i], image, 0, UnitOf(i));
    }
    Exponents exponents{kMinExponent, kMinExponent};
    float x_scale = ScaleOf(kMinExponent), dy_scale = ScaleOf(kMinExponent);
    int stage = 0, which = 0;
    uint32_t parity = 1;
    for (int tile = work.first; tile < work.last; ++tile) {
      const bool more = tile + 1 < work.last;
      ptx::NamedBarrier<1, kProducers>();  // nobody gathers by the table that is overwritten now
      const int next_image = more ? BuildOffsets(tile + 1, which ^ 1) : -1;
      ptx::NamedBarrier<1, kProducers>();
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[stage]), parity);
      const uint32_t at = stages + stage * p.stage_bytes;
      uint32_t largest[2] = {0, 0};
      if constexpr (kAsync) {
        int i = 0;
        for (; i < p.units_per_warp - p.ahead; ++i) {
          cells.Take(v[0]);
          Put(v[0], at, UnitOf(i), x_scale, dy_scale, largest[0], largest[1]);
          Start(cells, image, which, UnitOf(i + p.ahead));
        }
        for (; i < p.units_per_warp; ++i) {
          cells.Take(v[0]);
          Put(v[0], at, UnitOf(i), x_scale, dy_scale, largest[0], largest[1]);
          Start(cells, next_image, which ^ 1, UnitOf(i + p.ahead - p.units_per_warp));
        }
      } else {
        for (int j = 0; j < p.units_per_warp; j += kUnits) {
          const bool last = j + kUnits >= p.units_per_warp;
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
            Put(v[i], at, UnitOf(j + i), x_scale, dy_scale, largest[0], largest[1]);
            Gather(v[i], last ? next_image : image, last ? which ^ 1 : which,
                   UnitOf(last ? i : j + i + kUnits));
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

template <typename T, int SLOTS, bool RUN, int PRODUCTS>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  static constexpr bool kScaled = sizeof(T) == 4;

  const WgradParams& p;
  const Work work;
  Control& control;
  const uint32_t stages;
  const int group, thread;  // warpgroup 0 to 2, thread in it

  __device__ void Run() {
    float sum[SLOTS][32];
    const int lane_of_taps = (work.pass * kWgradGroups + group) * SLOTS;
    const uint64_t a_base =
        wgmma::Descriptor(p.pixel_groups == 0 ? 128 : p.x_row_bytes, p.x_row_bytes / 8) |
        (stages >> 4);
    const uint64_t b_base =
        wgmma::Descriptor(p.pixel_groups == 0 ? 128 : p.dy_row_bytes, p.dy_row_bytes / 8) |
        (stages >> 4);
    uint32_t b_start[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; ++s) b_start[s] = p.start[lane_of_taps + s];
    int stage = 0;
    uint32_t parity = 0;
    bool first = true;
    int tile = work.first;
    do {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[s][i] = 0.f;
      }
      int exponent = 0;
      for (int n = 0; n < p.flush && tile < work.last; ++n, ++tile) {
        ptx::BarrierWait(ptx::SharedAddress(&control.full[stage]), parity);
        if constexpr (kScaled) {
          // Unconditional: a branch would make the compiler serialise the matrix instructions.
          const int now = control.exponent[stage];
          const float factor = n == 0 ? 1.f : PowerOfTwo(max(exponent - now, -126));
          exponent = now;
#pragma unroll
          for (int s = 0; s < SLOTS; ++s) {
#pragma unroll
            for (int i = 0; i < 32; ++i) sum[s][i] *= factor;
          }
        }
        Accumulate(sum, a_base + static_cast<uint32_t>(stage * (p.stage_bytes >> 4)),
                   b_base + static_cast<uint32_t>(stage * (p.stage_bytes >> 4)), b_start);
        if (thread % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float4* const slot =
          reinterpret_cast<float4*>(p.slots) +
          (static_cast<int64_t>(blockIdx.x) * kWgradGroups + group) * SLOTS * (kSlotFloats / 4) +
          thread;
      // Two steps: the product of both scales may leave float32's range.
      const float scale = kScaled ? PowerOfTwo(exponent / 2 - kTargetExponent) : 1.f;
      const float scale_too = kScaled ? PowerOfTwo(exponent - exponent / 2 - kTargetExponent) : 1.f;
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float4* const at = slot + (s * 8 + j) * 128;
          // Not all loads at once: they would need as many registers as the sums.
          asm volatile("" ::: "memory");
          const float4 old = first ? make_float4(0.f, 0.f, 0.f, 0.f) : *at;
          *at = make_float4(old.x + sum[s][4 * j] * scale * scale_too,
                            old.y + sum[s][4 * j + 1] * scale * scale_too,
                            old.z + sum[s][4 * j + 2] * scale * scale_too,
                            old.w + sum[s][4 * j + 3] * scale * scale_too);
        }
      }
      first = false;
    } while (tile < work.last);
  }

  // Adds one stage: all its rows, 16 pixels at a time.
  __device__ __forceinline__ void Accumulate(float (&sum)[SLOTS][32], uint64_t a, uint64_t b,
                                             const uint32_t (&b_start)[SLOTS]) {
    const int across = p.pixel_groups == 0 ? p.columns / 16 : 1;  // steps in a row
    const int down = p.pixel_groups == 0 ? p.rows : p.rows / 2;
    const uint32_t x_down = (p.x_row_bytes >> 4) * (p.pixel_groups == 0 ? 1 : 2);
    const uint32_t dy_down = (p.dy_row_bytes >> 4) * (p.pixel_groups == 0 ? 1 : 2);
    if constexpr (PRODUCTS == 1) {
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) wgmma::Pin(sum[s]);
      wgmma::Fence();
      for (int y = 0; y < down; ++y) {
        for (int k = 0; k < across; ++k) {
          const uint64_t a_at = a + y * x_down + 16u * k;
          const uint64_t b_at = b + y * dy_down + 16u * k;
          wgmma::Fence();
          if constexpr (RUN) {
            wgmma::MultiplyPixels<Operand, SLOTS>::Run(sum, a_at, b_at + b_start[0]);
          } else {
#pragma unroll
            for (int s = 0; s < SLOTS; ++s) {
              wgmma::MultiplyPixels<Operand, 1>::Run(reinterpret_cast<float (&)[1][32]>(sum[s]),
                                                     a_at, b_at + b_start[s]);
            }
          }
        }
      }
      wgmma::Commit();
      wgmma::Wait<0>();
#pragma unroll
      for (int s = 0; s < SLOTS; ++s) wgmma::Pin(sum[s]);
    } else {
      static_assert(PRODUCTS == 1 || SLOTS == 1, "partial sums take the other slots' registers");
      const uint32_t low = static_cast<uint32_t>(p.part_bytes >> 4);
      const int steps = down * across;
      for (int i = 0; i < steps; i += kPromote) {
        float part[1][32];
#pragma unroll
        for (int e = 0; e < 32; ++e) part[0][e] = 0.f;
        wgmma::Pin(part[0]);
        wgmma::Fence();
        for (int j = i; j < min(i + kPromote, steps); ++j) {
          const int y = j / across, k = j - y * across;
          const uint64_t a_at = a + y * x_down + 16u * k;
          const uint64_t b_at = b + b_start[0] + y * dy_down + 16u * k;
          wgmma::Fence();
          // The small products first: less is cut off when the large one joins.
          wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at + low, b_at);
          wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at, b_at + low);
          wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at, b_at);
        }
        wgmma::Commit();
        wgmma::Wait<0>();
        wgmma::Pin(part[0]);
#pragma unroll
        for (int e = 0; e < 32; ++e) sum[0][e] += part[0][e];
      }
    }
  }
};

template <typename T, int SLOTS, bool RUN, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, 1) WgradKernel(const __grid_constant__ WgradParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t stages = ptx::SharedAddress(shared) + kControlBytes;
  uint32_t* const table = reinterpret_cast<uint32_t*>(shared + p.table_at);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumerWarps);
    }
    ptx::BarrierInitFence();
  }
  const int table_cells = (p.cell_groups + 1) * 32;
  for (int cell = threadIdx.x; cell < table_cells; cell += kThreads) {
    const int dy_cell = cell - p.x_groups * 32;
    uint32_t target = kNoCell, place = 0;
    if (dy_cell < 0) {
      const int row = cell / p.columns, column = cell - row * p.columns;
      if (cell < p.x_cells) target = row * p.x_row_bytes + column * 16;
      place = PackPlace(row, column);
    } else if (dy_cell < p.dy_cells) {
      const LoadedCell from(dy_cell, p.halo_rows, p.halo_columns, p.planes_w);
      const int plane = from.plane_h * p.planes_w + from.plane_w;
      target = p.dy_at + plane * p.dy_plane_bytes + from.row * p.dy_row_bytes + from.column * 16;
      place = PackPlace(p.step_h * from.row + p.plane_h[from.plane_h],
                        p.step_w * from.column + p.plane_w[from.plane_w]);
    }
    table[cell] = target;
    table[table_cells + cell] = place;
  }
  __syncthreads();
  const Work work(p);
  if (warp < kProducerWarps) {
    const int64_t in = static_cast<int64_t>(work.group) * p.in_per_group + work.in_block * 64;
    const int64_t out = static_cast<int64_t>(work.group) * p.out_per_group + work.out_block * 64;
    Producer<T, PRODUCTS>{
        p,
        work,
        control,
        stages,
        stages - kControlBytes +
            static_cast<uint32_t>(p.raw_at + warp * kAhead * kCellBytes + 4 * lane),
        table,
        warp,
        lane,
        static_cast<const char*>(p.x) + in * p.x_channel,
        static_cast<const char*>(p.dy) + out * p.dy_channel,
        p.in_per_group - work.in_block * 64,
        p.out_per_group - work.out_block * 64}
        .Run();
  } else {
    const int thread = static_cast<int>(threadIdx.x) - kProducers;
    Consumer<T, SLOTS, RUN, PRODUCTS>{p, work, control, stages, thread / 128, thread % 128}.Run();
  }
}

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_
