// Hopper's dense kernel for the forward pass and the gradient of x: halo tiles and wgmma.
//
// A block walks over tiles (core/tile_plan.h). For each, two warpgroups compute 64 target channels
// x ROWS rows x N columns x RES column residues, the weights being the M operand and the pixels the
// N operand, so that targets are contiguous along a row. They share the channels and split the
// rows, or share the rows and take 64 channels each, and then a source cell is converted half as
// often. The sum runs over slabs of 16 source channels, and within a slab over the kernel's taps.
//
// Where rows are short, the N operand is folded: N / 8 rows of 8 columns, which lie a halo row
// apart, and the ROWS instructions are neighbours along the row.
//
//     7 producer warps   gather a stage, the halo of a few slabs, from the source in any layout,
//                        convert it to 16 bits and store it as blocked-8 cells [chunk of 8
//                        channels][cell][8]; a cell is loaded and converted once for every tap
//     1 weight warp      brings the packed weights of a few taps at a time by bulk copies
//     8 consumer warps   two warpgroups: for every tap, one wgmma per row, whose pixel operand
//                        starts at the tap's cell; then the epilogue
//
// float32 is multiplied in float16 with a power-of-two scale that follows the data ("block
// exponent"), which keeps TF32's 11-bit significands at twice its rate. The scale is kept while the
// largest magnitude of every slab stays inside a window of 19 binades; else the slab is gathered
// again with the right one. With PRODUCTS = 3 the low parts of both operands are multiplied too
// (Ootomo and Yokota, arXiv:2203.03341), and partial sums leave the truncating tensor-core
// accumulators after every chunk of taps: as accurate as float32 multiply-adds.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <utility>

#include "cuda/kernels/sm90_tile_gather.cuh"
#include "cuda/kernels/sm90_tile_params.cuh"
#include "cuda/kernels/store_rows.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_tile {

// ---- Weights ----

// One thread; the order is that of the consumers: tile, slab, chunk of taps.
template <int PRODUCTS>
__device__ void FeedWeights(const TileParams& p, Control& control, uint32_t ring) {
  constexpr int kTap = PRODUCTS * kTapBytes;
  ptx::WaitForKernelsBefore();
  int slot = 0;
  uint32_t parity = 1;
  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const Tile tile(p, index);
    const int64_t block = (static_cast<int64_t>(tile.group) * p.m_blocks + tile.m_block) * p.slabs;
    const uint8_t* from = p.weights + (block * p.first_tap[p.residues_h] +
                                       static_cast<int64_t>(p.slabs) * p.first_tap[tile.residue]) *
                                          kTap;
    const int64_t to_second = int64_t{p.slabs} * p.first_tap[p.residues_h] * kTap;
    const bool second = p.blocks == 2 && tile.m_block + 1 < p.m_blocks;
    for (int slab = 0; slab < p.slabs; ++slab) {
      for (int tap = 0; tap < tile.taps; tap += p.chunk_taps) {
        const uint32_t bytes = min(p.chunk_taps, tile.taps - tap) * kTap;
        const uint32_t full = ptx::SharedAddress(&control.weight_full[slot]);
        ptx::BarrierWait(ptx::SharedAddress(&control.weight_empty[slot]), parity);
        ptx::BarrierArriveExpect(full, second ? 2 * bytes : bytes);
        ptx::BulkLoad(ring + slot * p.weight_bytes, from, bytes, full);
        if (second) {
          ptx::BulkLoad(ring + slot * p.weight_bytes + p.block_bytes, from + to_second, bytes,
                        full);
        }
        from += bytes;
        if (++slot == p.weight_stages) {
          slot = 0;
          parity ^= 1;
        }
      }
    }
  }
}

// ---- Consumers ----

template <typename T, int N, int RES, int ROWS, int PRODUCTS>
struct Consumer {
  using Operand = typename Element<T>::Operand;
  static constexpr bool kScaled = sizeof(T) == 4;
  static constexpr int kRegisters = N / 2;

  const TileParams& p;
  Control& control;
  const uint32_t stages, ring;
  T* const staging;            // this warp's: 8 channels
  const int block, first_row;  // this warpgroup's, of the tile
  const int group, warp, lane;
  uint32_t turn;  // parity of this warpgroup's next one

  template <typename Value>
  __device__ __forceinline__ void StoreRows(const Value& value, const Tile& tile, int tile_row) {
    const int row = (tile.row + tile_row) * p.target_step_h + tile.residue;
    if (row >= p.target_h) return;
    const int m = (tile.m_block + block) * 64 + warp * 16;
    const StripRow strip{
        tile.image * p.target_batch +
            (static_cast<int64_t>(tile.group) * p.m_per_group + m) * p.target_channel +
            row * p.target_row,
        p.target_channel,
        p.m_per_group - m,
        p.target_w,
        tile.column * p.target_step_w,
        p.target_step_w,
        p.residues_w,
        tile.strip,
        static_cast<int>(p.by_strip.divisor),
        p.strip,
        p.lead,
        p.granule,
        p.pairs};
    StoreStripRow<T, N, RES>(value, strip, static_cast<T*>(p.target), staging, p.staging_pitch,
                             lane);
  }

  static constexpr int kVectorBytes = 2 * RES * sizeof(T) < 16 ? 2 * RES * sizeof(T) : 16;

  // From registers: in NHWC the eight lanes of one pixel write eight consecutive channels, and in
  // folded tiles four lanes write what eight columns become, by VECTORS where they can. What is
  // decided here is decided once for each value, and code that is jumped over has to be loaded,
  // too.
  template <bool VECTORS, typename Value>
  __device__ __forceinline__ void StoreDirect(const Value& value, const Tile& tile, int y) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = (tile.m_block + block) * 64 + warp * 16 + half * 8 + lane / 4;
      if (m >= p.m_per_group) continue;
      T* const channel = static_cast<T*>(p.target) + tile.image * p.target_batch +
                         (static_cast<int64_t>(tile.group) * p.m_per_group + m) * p.target_channel;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const int row =
            (tile.row + first_row + (p.folded ? j : y)) * p.target_step_h + tile.residue;
        const int column = tile.column + 8 * (p.folded ? y : j) + 2 * (lane % 4);
        if (row >= p.target_h) continue;
        T* const to = channel + row * p.target_row;
        if constexpr (VECTORS) {
          struct alignas(kVectorBytes) Vector {
            T value[2 * RES];
          } vector;
#pragma unroll
          for (int i = 0; i < 2 * RES; ++i) {
            vector.value[i] = Round<T>(value(i % RES, half, 4 * j + 2 * half + i / RES));
          }
          if (column * RES < p.target_w) *reinterpret_cast<Vector*>(to + column * RES) = vector;
        } else {
#pragma unroll
          for (int r = 0; r < RES; ++r) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int x = (column + e) * p.target_step_w + r;
              if (r < p.residues_w && x >= 0 && x < p.target_w) {
                to[x * p.target_column] = Round<T>(value(r, half, 4 * j + 2 * half + e));
              }
            }
          }
        }
      }
    }
  }

  __device__ void Run() {
    ptx::WaitForKernelsBefore();  // scales are read without a barrier
    float sum[RES][ROWS][kRegisters];
    int stage = 0, slot = 0;
    uint32_t parity = 0, weight_parity = 0;
    const uint64_t weights = wgmma::Descriptor(1024, 128) | ((ring + block * p.block_bytes) >> 4);
    const uint64_t pixels = wgmma::Descriptor(p.chunk_pitch, p.group_pitch) | (stages >> 4);

    for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
      const Tile tile(p, index);
      const int first_tap = p.first_tap[tile.residue];
      int exponent = 0;
#pragma unroll
      for (int r = 0; r < RES; ++r) {
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
#pragma unroll
          for (int i = 0; i < kRegisters; ++i) sum[r][y][i] = 0.f;
        }
      }
      const int slabs = tile.taps > 0 ? p.slabs : 0;
      for (int slab = 0; slab < slabs; slab += p.depth) {
        ptx::BarrierWait(ptx::SharedAddress(&control.full[stage]), parity);
        if constexpr (kScaled) {
          // Sums so far carry the exponent of the stage before. Not conditional: a branch here
          // would make the compiler serialise the matrix instructions.
          const int now = control.exponent[stage];
          const float factor = slab == 0 ? 1.f : PowerOfTwo(max(exponent - now, -126));
          exponent = now;
#pragma unroll
          for (int r = 0; r < RES; ++r) {
#pragma unroll
            for (int y = 0; y < ROWS; ++y) {
#pragma unroll
              for (int i = 0; i < kRegisters; ++i) sum[r][y][i] *= factor;
            }
          }
        }
        const uint64_t row_cells = pixels + static_cast<uint32_t>(stage * (p.stage_bytes >> 4) +
                                                                  first_row * p.halo_columns);
        const int depth = min(p.depth, slabs - slab);
        for (int d = 0; d < depth; ++d) {
          const uint64_t cells = row_cells + static_cast<uint32_t>(d * (p.chunk_pitch >> 3));
          for (int tap = 0; tap < tile.taps; tap += p.chunk_taps) {
            ptx::BarrierWait(ptx::SharedAddress(&control.weight_full[slot]), weight_parity);
            Accumulate(sum, tile.residue, first_tap + tap,
                       first_tap + min(tap + p.chunk_taps, tile.taps),
                       weights + static_cast<uint32_t>(slot * (p.weight_bytes >> 4)), cells);
            if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.weight_empty[slot]));
            if (++slot == p.weight_stages) {
              slot = 0;
              weight_parity ^= 1;
            }
          }
        }
        if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      Store(sum, tile, exponent);
    }
    if (lane == 0) ptx::BulkWait<0>();
  }

  // Adds the products of taps [begin, end) of one slab.
  __device__ __forceinline__ void Accumulate(float (&sum)[RES][ROWS][kRegisters], int residue,
                                             int begin, int end, uint64_t weights,
                                             uint64_t row_cells) {
    if constexpr (PRODUCTS == 1) {
      Products<0>(sum, residue, begin, end, weights, row_cells);
    } else if constexpr (RES <= 4) {
      float part[RES][ROWS][kRegisters];
      AddPart<0>(part, sum, residue, begin, end, weights, row_cells);
    } else {
      AddEach(sum, residue, begin, end, weights, row_cells, std::make_integer_sequence<int, RES>());
    }
  }
  // One residue after the other where there are no registers for the partial sums of all.
  template <int... FIRST>
  __device__ __forceinline__ void AddEach(float (&sum)[RES][ROWS][kRegisters], int residue,
                                          int begin, int end, uint64_t weights, uint64_t row_cells,
                                          std::integer_sequence<int, FIRST...>) {
    float part[1][ROWS][kRegisters];
    (AddPart<FIRST>(part, sum, residue, begin, end, weights, row_cells), ...);
  }
  // By way of partial sums of residues from FIRST on, which are promoted to float32.
  template <int FIRST, int COUNT>
  __device__ __forceinline__ void AddPart(float (&part)[COUNT][ROWS][kRegisters],
                                          float (&sum)[RES][ROWS][kRegisters], int residue,
                                          int begin, int end, uint64_t weights,
                                          uint64_t row_cells) {
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) part[r][y][i] = 0.f;
      }
    }
    Products<FIRST>(part, residue, begin, end, weights, row_cells);
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum[FIRST + r][y][i] += part[r][y][i];
      }
    }
  }

  // Of residues from FIRST on.
  template <int FIRST, int COUNT>
  __device__ __forceinline__ void Products(float (&d)[COUNT][ROWS][kRegisters], int residue,
                                           int begin, int end, uint64_t weights,
                                           uint64_t row_cells) {
    constexpr uint32_t kTap = PRODUCTS * kTapBytes >> 4;
    if (p.turns) {
      ptx::BarrierWait(ptx::SharedAddress(&control.turn[group]), turn);
      turn ^= 1;
    }
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) wgmma::Pin(d[r][y]);
    }
    wgmma::Fence();
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
      const int from = max(begin, p.residue_begin[residue][FIRST + r]);
      const int to = RES == 1 ? end : min(end, p.residue_begin[residue][FIRST + r + 1]);
      for (int t = from; t < to; ++t) {
        const uint64_t a = weights + static_cast<uint32_t>(t - begin) * kTap;
        const uint64_t b = row_cells + static_cast<uint32_t>(p.tap_cell[t]);
        wgmma::Fence();
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
          const uint64_t c = b + static_cast<uint32_t>(y * p.row_cells);
          if constexpr (PRODUCTS == 3) {
            // The small products first: less is cut off when the large one joins.
            const uint64_t c_low = c + static_cast<uint32_t>(p.low_at >> 4);
            wgmma::Multiply<Operand, N>::Run(d[r][y], a + 2 * (kTapBytes >> 4), c_low, 1);
            wgmma::Multiply<Operand, N>::Run(d[r][y], a + (kTapBytes >> 4), c, 1);
          }
          wgmma::Multiply<Operand, N>::Run(d[r][y], a, c, 1);
        }
      }
    }
    wgmma::Commit();
    if (p.turns && lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.turn[1 - group]));
    wgmma::Wait<0>();
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
#pragma unroll
      for (int y = 0; y < ROWS; ++y) wgmma::Pin(d[r][y]);
    }
  }

  __device__ __forceinline__ void Store(float (&sum)[RES][ROWS][kRegisters], const Tile& tile,
                                        int exponent) {
    float factor[2], bias[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = (tile.m_block + block) * 64 + warp * 16 + half * 8 + lane / 4;
      const int64_t channel = static_cast<int64_t>(tile.group) * p.m_per_group + m;
      const bool exists = m < p.m_per_group;
      bias[half] = exists && p.bias != nullptr
                       ? static_cast<float>(static_cast<const T*>(p.bias)[channel])
                       : 0.f;
      factor[half] = 1.f;
      if constexpr (kScaled) {
        factor[half] = exists ? p.scales[channel] : 0.f;
      }
    }
    // Two factors: their product may leave float32's range.
    const float power = kScaled ? PowerOfTwo(exponent - kTargetExponent) : 1.f;
#pragma unroll
    for (int y = 0; y < ROWS; ++y) {
      const auto value = [&](int r, int half, int i) {
        return kScaled ? fmaf(sum[r][y][i] * factor[half], power, bias[half])
                       : sum[r][y][i] + bias[half];
      };
      if (p.channels_first && !p.folded) {
        StoreRows(value, tile, first_row + y);
      } else if (RES <= 4 && p.vectors) {
        StoreDirect<(RES <= 4)>(value, tile, y);
      } else {
        StoreDirect<false>(value, tile, y);
      }
    }
  }
};

template <typename T, int N, int RES, int ROWS, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, 1) TileKernel(const __grid_constant__ TileParams p) {
  TRANSCONV_SHARED_MEMORY(shared);
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t base = ptx::SharedAddress(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.weight_full[i]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control.weight_empty[i]), kConsumerWarps);
    }
    for (uint64_t& turn : control.turn) {
      ptx::BarrierInit(ptx::SharedAddress(&turn), kConsumerWarps / 2);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    ptx::RegistersDown<kProducerRegisters>();
    const CellTables tables{p, reinterpret_cast<uint32_t*>(shared + p.table_at), warp, lane};
    Producer<T, PRODUCTS>{
        tables, control, base + kControlBytes,
        base + static_cast<uint32_t>(p.raw_at + warp * kAhead * kCellBytes + 4 * lane)}
        .Run();
  } else if (warp == kProducerWarps) {
    ptx::RegistersDown<kProducerRegisters>();
    if (lane == 0) {
      FeedWeights<PRODUCTS>(p, control, base + static_cast<uint32_t>(p.weights_at));
    }
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    const int consumer = warp - kProducerWarps - 1, group = consumer / 4;
    const int block = p.blocks == 2 ? group : 0;
    const int first_row = p.blocks == 2 ? 0 : group * (p.folded ? N / 8 : ROWS);
    T* staging = reinterpret_cast<T*>(shared + p.staging_at) + consumer * 8 * p.staging_pitch;
    Consumer<T, N, RES, ROWS, PRODUCTS>{p,
                                        control,
                                        base + kControlBytes,
                                        base + static_cast<uint32_t>(p.weights_at),
                                        staging,
                                        block,
                                        first_row,
                                        group,
                                        consumer % 4,
                                        lane,
                                        group == 0 ? 1u : 0u}
        .Run();
  }
}

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_KERNELS_SM90_TILE_CUH_
