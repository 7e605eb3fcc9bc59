// How the portable tensor-core kernels bring a tile's cells into shared memory.
//
// All of a block's threads gather, convert and store; then all of them multiply. Blocks on one
// multiprocessor overlap each other. float32 is scaled by a power of two that follows the data
// (primitives/operand.cuh); a slab that leaves the scale's window is gathered again.
#ifndef TRANSCONV_CUDA_KERNELS_MMA_CELLS_CUH_
#define TRANSCONV_CUDA_KERNELS_MMA_CELLS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/tile_plan.h"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::mma_cells {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kInFlight = 2;  // cells of a thread
constexpr int kSlabChannels = 16;

// One image, and the cells of its tiles.
struct CellParams {
  const void* image;
  int64_t batch;            // bytes
  uint32_t channel, pixel;  // bytes
  int height, width;
  int step_h, step_w;  // from one cell of a plane to the next
  int halo_rows, halo_columns, planes_w, plane_pitch;
  int cells;                // that are loaded
  Divider by_cell;          // by `cells`
  int chunk_pitch, low_at;  // bytes: from a chunk to the next one, from high parts to low ones
  int plane_h[kMaxPlanes], plane_w[kMaxPlanes];
};

struct CellPlace {
  uint32_t offset, to;  // bytes in the image, or kNoCell; bytes in a chunk
};

// What the warps tell each other.
struct Exchange {
  uint32_t largest[2][kWarps];
};

template <typename T, int PRODUCTS, int LOW_SCALE>
struct Loader {
  using Raw = typename Element<T>::Raw;
  static constexpr bool kScaled = sizeof(T) == 4;

  const CellParams& p;
  CellPlace* const places;
  const uint32_t shared;  // address of the cells
  Exchange& exchange;
  int exponent = kMinExponent;

  // The table of a tile whose first cell is at (row, column) of the image. Between barriers.
  __device__ void Build(int row, int column) const {
    for (int n = threadIdx.x; n < p.cells; n += kThreads) {
      const LoadedCell cell(n, p.halo_rows, p.halo_columns, p.planes_w);
      const int y = row + p.step_h * cell.row + p.plane_h[cell.plane_h];
      const int x = column + p.step_w * cell.column + p.plane_w[cell.plane_w];
      const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(p.height) &&
                          static_cast<unsigned>(x) < static_cast<unsigned>(p.width);
      const int plane = cell.plane_h * p.planes_w + cell.plane_w;
      places[n] = {inside ? static_cast<uint32_t>(y * p.width + x) * p.pixel : kNoCell,
                   16u * (plane * p.plane_pitch + cell.row * p.halo_columns + cell.column)};
    }
  }

  // Gathers `chunks` chunks of eight channels from `base` on, of which `channels` exist, and gives
  // each cell and its place to `take`.
  template <typename Take>
  __device__ __forceinline__ void Gather(const char* base, int chunks, int channels,
                                         const Take& take) const {
    for (int first = threadIdx.x; first < chunks * p.cells; first += kInFlight * kThreads) {
      Raw v[kInFlight][8];
      uint32_t to[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        int chunk = first + i * kThreads;
        const bool exists = chunk < chunks * p.cells;
        const int cell = p.by_cell.Split(chunk);
        const CellPlace place = exists ? places[cell] : CellPlace{kNoCell, kNoCell};
        to[i] = exists ? place.to + chunk * p.chunk_pitch : kNoCell;
        GatherCell(v[i], base + chunk * (8 * int64_t{p.channel}), p.channel, place.offset,
                   exists ? channels - 8 * chunk : 0);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (to[i] != kNoCell) take(v[i], to[i]);
      }
    }
  }

  // Gathers, converts with the present scale and stores; the largest scaled magnitude, two halves.
  __device__ __forceinline__ uint32_t Put(const char* base, int chunks, int channels) const {
    uint32_t largest = 0;
    const float scale = ScaleOf(exponent);
    Gather(base, chunks, channels, [&](const Raw(&v)[8], uint32_t to) {
      uint32_t packed[4], low[4];
      largest = ConvertCell<T, PRODUCTS, LOW_SCALE>(v, scale, packed, low, largest);
      ptx::StoreShared128(shared + to, make_uint4(packed[0], packed[1], packed[2], packed[3]));
      if constexpr (PRODUCTS == 3) {
        ptx::StoreShared128(shared + to + p.low_at, make_uint4(low[0], low[1], low[2], low[3]));
      }
    });
    return largest;
  }

  // Largest of all threads' values; ends with a barrier.
  __device__ __forceinline__ uint32_t MaxOfAll(uint32_t value, uint32_t (&slots)[kWarps]) const {
    value = __reduce_max_sync(0xffffffffu, value);
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
    __syncthreads();
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) largest = max(largest, slots[i]);
    return largest;
  }

  // Brings cells in, and leaves the scale that they have in `exponent`. `may_fall`: nothing has
  // been summed with the present scale yet. Begins after a barrier and ends with one.
  __device__ __forceinline__ void Load(const char* base, int chunks, int channels, bool may_fall) {
    uint32_t largest = Put(base, chunks, channels);
    if constexpr (kScaled) {
      largest = max(largest & 0xffffu, largest >> 16);
      largest = MaxOfAll(largest, exchange.largest[0]);
      if (LeavesWindow(largest, may_fall)) {
        uint32_t bits = 0;
        Gather(base, chunks, channels,
               [&](const Raw(&v)[8], uint32_t) { bits = LargestBits(v, bits); });
        const int needed = NeededExponent(MaxOfAll(bits, exchange.largest[1]), exponent, may_fall);
        if (needed != exponent) {
          exponent = needed;
          Put(base, chunks, channels);
        }
        __syncthreads();
      }
    } else {
      __syncthreads();
    }
  }
};

}  // namespace transconv::cuda::mma_cells

#endif  // TRANSCONV_CUDA_KERNELS_MMA_CELLS_CUH_
