// The portable dense kernel for the forward pass and the gradient of x: halo tiles and mma.sync.
//
// A block walks over tiles (core/tile_plan.h) of 64 target channels x 256 targets of one residue
// class. The sum runs over slabs of 16 source channels, whose cells lie in shared memory as
// [chunk of 8 channels][cell][8], and within a slab over the taps of the residue class. The packed
// weights are the A operand: their core matrices are what 32 lanes read from memory in one line, so
// they take no shared memory. Pixels are the B operand, eight cells to a matrix, wherever a tap
// puts them.
//
// Four of eight warps take 64 targets each, twice, for 32 channels each. With PRODUCTS = 3 the low
// parts of both operands are multiplied too (Ootomo and Yokota, arXiv:2203.03341), and partial sums
// leave the truncating accumulators after a few taps.
#ifndef TRANSCONV_CUDA_KERNELS_MMA_TILE_CUH_
#define TRANSCONV_CUDA_KERNELS_MMA_TILE_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/pack_order.h"
#include "core/tile_plan.h"
#include "cuda/kernels/mma_cells.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/operand.cuh"

namespace transconv::cuda::mma_tile {

using mma_cells::CellParams;
using mma_cells::CellPlace;
using mma_cells::Exchange;
using mma_cells::kSlabChannels;
using mma_cells::kThreads;
using mma_cells::Loader;

constexpr int kTargets = 256;  // of a tile
constexpr int kTapBytes = 64 * kSlabChannels * 2;
constexpr int kPromote = 4;  // taps between two additions in float32, with three products
constexpr int kExchangeBytes = 128;
static_assert(sizeof(Exchange) <= kExchangeBytes, "the table starts behind it");

struct TileParams {
  CellParams cells;
  void* target;
  const void* bias;        // null if there is none
  const uint8_t* weights;  // packed: [group][m block][row residue][slab][tap][operand][64 x 16]
  const float* scales;     // float32: what one packed weight unit of each target channel is worth
  int64_t target_batch, target_channel, target_row, target_column;  // elements
  int target_h, target_w, target_step_h, target_step_w;
  int k_per_group, m_per_group, slabs, m_blocks;
  int rows, columns, column_shift;  // of a tile; log2 of columns / 8
  int tiles;
  // A tile's index, from the fastest part on: channel blocks, column and row residue, strip, row,
  // group, image.
  Divider by_block, by_residue_w, by_residue_h, by_strip, by_row, by_group;
  int cells_at;  // in shared memory, behind the table
  int first_row[kMaxResidues];
  int first_column;
  int first_tap[kMaxResidues + 1];
  int residue_begin[kMaxResidues][kMaxResidues + 1];
  int tap_cell[kMaxTileTaps];
};

struct Tile {
  int m_block, residue_h, residue_w, row, column, group, image;
  __device__ Tile(const TileParams& p, int index) {
    m_block = p.by_block.Split(index);
    residue_w = p.by_residue_w.Split(index);
    residue_h = p.by_residue_h.Split(index);
    column = p.by_strip.Split(index) * p.columns;
    row = p.by_row.Split(index) * p.rows;
    group = p.by_group.Split(index);
    image = index;
  }
};

// A warp's share: 32 channels x 64 targets as 2 x 8 instructions of 16 x 8.
template <typename T, int PRODUCTS>
struct Warp {
  using Operand = typename Element<T>::Operand;
  using Sums = float[2][8][4];
  static constexpr bool kScaled = sizeof(T) == 4;

  const TileParams& p;
  const uint32_t cells;  // shared address
  const int lane, m, n;  // first channel of the block of 64, first group of eight targets

  __device__ __forceinline__ int Row(int group) const { return group >> p.column_shift; }
  __device__ __forceinline__ int Column(int group) const {
    return 8 * (group & ((1 << p.column_shift) - 1));
  }

  static __device__ __forceinline__ void Clear(Sums& sum) {
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i / 32][i / 4 % 8][i % 4] = 0.f;
  }

  // Where this lane's row of the matrices of groups 2 j and 2 j + 1 starts: chunk 0 and 1 of the
  // first, then of the second.
  __device__ __forceinline__ uint32_t CellAddress(int j) const {
    const int group = n + 2 * j + lane / 16;
    const int cell = Row(group) * p.cells.halo_columns + Column(group) + lane % 8;
    return cells + 16 * cell + (lane / 8 % 2) * p.cells.chunk_pitch;
  }

  __device__ __forceinline__ void LoadWeights(uint32_t (&a)[2][4], const uint8_t* operand) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = m + 16 * i + 8 * (e % 2) + lane / 4;
        a[i][e] = __ldg(reinterpret_cast<const uint32_t*>(operand + 1024 * (e / 2) + 16 * row +
                                                          4 * (lane % 4)));
      }
    }
  }

  // One operand of the weights with one part of the cells, for one tap.
  __device__ __forceinline__ void Tap(Sums& sum, const uint8_t* operand, const uint32_t (&from)[4],
                                      uint32_t offset) const {
    uint32_t a[2][4];
    LoadWeights(a, operand);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t b[4];
      mma::LoadMatrices(b, from[j] + offset);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mma::Multiply<Operand>(sum[i][2 * j], a[i], b[0], b[1]);
        mma::Multiply<Operand>(sum[i][2 * j + 1], a[i], b[2], b[3]);
      }
    }
  }

  // Adds one slab; `weights` are those of its first tap, number `begin`.
  __device__ __forceinline__ void Add(Sums& sum, const uint8_t* weights, int begin, int end) const {
    uint32_t from[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) from[j] = CellAddress(j);
    if constexpr (PRODUCTS == 1) {
      for (int tap = begin; tap < end; ++tap, weights += kTapBytes) {
        Tap(sum, weights, from, 16 * p.tap_cell[tap]);
      }
    } else {
      const uint32_t low = static_cast<uint32_t>(p.cells.low_at);
      for (int first = begin; first < end; first += kPromote) {
        Sums part;
        Clear(part);
        for (int tap = first; tap < min(first + kPromote, end); ++tap, weights += 3 * kTapBytes) {
          const uint32_t offset = 16 * p.tap_cell[tap];
          // The small products first: less is cut off when the large one joins.
          Tap(part, weights + 2 * kTapBytes, from, offset + low);
          Tap(part, weights + kTapBytes, from, offset);
          Tap(part, weights, from, offset);
        }
#pragma unroll
        for (int i = 0; i < 64; ++i)
          sum[i / 32][i / 4 % 8][i % 4] += part[i / 32][i / 4 % 8][i % 4];
      }
    }
  }

  __device__ __forceinline__ void Store(const Sums& sum, const Tile& tile, int exponent) const {
    // Two factors: their product may leave float32's range.
    const float power = kScaled ? PowerOfTwo(exponent - kTargetExponent) : 1.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = tile.m_block * 64 + m + 8 * i + lane / 4;
      if (channel >= p.m_per_group) continue;
      const int64_t of_all = static_cast<int64_t>(tile.group) * p.m_per_group + channel;
      const float bias =
          p.bias == nullptr ? 0.f : static_cast<float>(static_cast<const T*>(p.bias)[of_all]);
      const float factor = kScaled ? p.scales[of_all] : 1.f;
      T* const to =
          static_cast<T*>(p.target) + tile.image * p.target_batch + of_all * p.target_channel;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int y = (tile.row + Row(n + j)) * p.target_step_h + tile.residue_h;
        if (y >= p.target_h) continue;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = tile.column + Column(n + j) + 2 * (lane % 4) + e;
          const int x = column * p.target_step_w + tile.residue_w;
          if (x >= p.target_w) continue;
          const float v = sum[i / 2][j][2 * (i % 2) + e];
          to[y * p.target_row + x * p.target_column] =
              Round<T>(kScaled ? fmaf(v * factor, power, bias) : v + bias);
        }
      }
    }
  }
};

template <typename T, int PRODUCTS>
__global__ void __launch_bounds__(kThreads, PRODUCTS == 1 ? 2 : 1)
    TileKernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Exchange& exchange = *reinterpret_cast<Exchange*>(shared);
  CellPlace* const places = reinterpret_cast<CellPlace*>(shared + kExchangeBytes);
  const uint32_t cells = ptx::SharedAddress(shared + p.cells_at);
  const int warp_index = threadIdx.x / 32;
  const Warp<T, PRODUCTS> warp{p, cells, static_cast<int>(threadIdx.x) % 32, 32 * (warp_index % 2),
                               8 * (warp_index / 2)};
  Loader<T, PRODUCTS, kLowScale> loader{p.cells, places, cells, exchange};

  for (int index = blockIdx.x; index < p.tiles; index += gridDim.x) {
    const Tile tile(p, index);
    const int begin = p.residue_begin[tile.residue_h][tile.residue_w];
    const int end = p.residue_begin[tile.residue_h][tile.residue_w + 1];
    typename Warp<T, PRODUCTS>::Sums sum;
    warp.Clear(sum);
    if (begin < end) {
      // A residue's taps of all slabs lie together, a slab's taps of one row residue in order.
      const int first_tap = p.first_tap[tile.residue_h];
      const int taps = p.first_tap[tile.residue_h + 1] - first_tap;
      const int64_t block =
          (static_cast<int64_t>(tile.group) * p.m_blocks + tile.m_block) * p.slabs;
      const uint8_t* weights =
          p.weights + (block * p.first_tap[kMaxResidues] +
                       static_cast<int64_t>(p.slabs) * first_tap + begin - first_tap) *
                          (PRODUCTS * kTapBytes);
      const char* base = static_cast<const char*>(p.cells.image) + tile.image * p.cells.batch +
                         static_cast<int64_t>(tile.group) * p.k_per_group * p.cells.channel;
      loader.Build(p.cells.step_h * (tile.row + p.first_row[tile.residue_h]),
                   p.cells.step_w * (tile.column + p.first_column));
      __syncthreads();
      for (int slab = 0; slab < p.slabs; ++slab) {
        const int before = loader.exponent;
        loader.Load(base, 2, p.k_per_group - slab * kSlabChannels, slab == 0);
        if (Warp<T, PRODUCTS>::kScaled && slab > 0 && loader.exponent != before) {
          const float factor = PowerOfTwo(max(before - loader.exponent, -126));
#pragma unroll
          for (int i = 0; i < 64; ++i) sum[i / 32][i / 4 % 8][i % 4] *= factor;
        }
        warp.Add(sum, weights, begin, end);
        __syncthreads();
        base += kSlabChannels * int64_t{p.cells.channel};
        weights += static_cast<int64_t>(taps) * (PRODUCTS * kTapBytes);
      }
    }
    warp.Store(sum, tile, loader.exponent);
  }
}

}  // namespace transconv::cuda::mma_tile

#endif  // TRANSCONV_CUDA_KERNELS_MMA_TILE_CUH_
