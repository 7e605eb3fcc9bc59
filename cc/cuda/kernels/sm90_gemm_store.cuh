// How results of Hopper's matrix product for kernels as large as their stride leave.
//
// A thread has two pixels and pairs of columns. In float32 it stores what it has: neighbouring
// lanes have neighbouring pixels, whose columns of a row of taps fill sectors. In 16 bits a
// warpgroup stages its 64 pixels in shared memory, line by line as they lie in the target, and
// stores whole lines.
//
// Code for results in registers is as long as they are many, and runs once for a tile: there is as
// little of it as can be, and what cases have in common is decided outside of it.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_GEMM_STORE_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_GEMM_STORE_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_gemm_params.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_gemm {

template <typename T, int N>
struct Results {
  static constexpr int kSixteens = N / 16;  // columns, of which a thread has eight sums

  const GemmParams& p;
  Control& control;
  const int thread;  // of the consumers

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int quad() const { return thread % 4; }

  // Of the tile that begins with this pixel. Blocks of a cluster have shares of every sixteen
  // columns.
  __device__ __forceinline__ void Store(const float (&sum)[N / 2], int first_pixel) const {
    const int rank = p.splits > 1 ? static_cast<int>(cluster::Rank()) : 0;
    const int begin = rank * kSixteens / p.splits, end = (rank + 1) * kSixteens / p.splits;
    if constexpr (sizeof(T) == 2) {
      if (p.staged.vector != 0) {
        if (p.staged.log_run > 0) {
          StageRuns(sum);
        } else {
          Stage(sum);
        }
        const int group = thread / 128;
        ptx::NamedBarrierOf<128>(2 + group);
        Send(first_pixel + group * kStagedPixels, 16 * begin, 16 * end);
        ptx::NamedBarrierOf<128>(2 + group);  // before the next tile takes the place
        return;
      }
    }
    const int q = first_pixel + thread / 32 * 16 + lane() / 4;
    if (sizeof(T) == 4 && p.store == 4) {
      StoreFours(sum, q, begin, end);
    } else if (p.store >= 2) {
      StoreOwn<true>(sum, q, begin, end);
    } else {
      StoreOwn<false>(sum, q, begin, end);
    }
  }

  // Results j, of two columns and a row, with their bias.
  __device__ __forceinline__ static Pair<T> RoundOf(const float (&sum)[N / 2], int j, float2 bias) {
    return RoundPair<T>(sum[2 * j] + bias.x, sum[2 * j + 1] + bias.y);
  }
  __device__ __forceinline__ float2 BiasOf(int column) const {
    return *reinterpret_cast<const float2*>(&control.bias[column]);
  }

  // -- whole lines --

  // The warpgroup's.
  __device__ __forceinline__ uint8_t* staged() const {
    return reinterpret_cast<uint8_t*>(&control) + kControlBytes +
           thread / 128 * (StagedBytes(N) / 2);
  }

  // Columns of a line are neighbours, as a thread's are.
  __device__ __forceinline__ void StageRuns(const float (&sum)[N / 2]) const {
    const int log_run = p.staged.log_run;
    const int pixel = thread / 32 % 4 * 16 + lane() / 4, column = 2 * quad();
    const int within = column & ((1 << log_run) - 1);
    uint8_t* to = staged() + (column - within) * kStagedPitch +
                  ((pixel << log_run) + within) * static_cast<int>(sizeof(T));
    const int below = (8 << log_run) * static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < N / 8; ++j, to += 8 * kStagedPitch) {
      const float2 bias = BiasOf(8 * j + column);
      *reinterpret_cast<Pair<T>*>(to) = RoundOf(sum, 2 * j, bias);
      *reinterpret_cast<Pair<T>*>(to + below) = RoundOf(sum, 2 * j + 1, bias);
    }
  }

  // A line is a column.
  __device__ __forceinline__ void Stage(const float (&sum)[N / 2]) const {
    const int matrix = lane() / 8, pixel = thread / 32 % 4 * 16 + matrix % 2 * 8;
    const uint32_t to = ptx::SharedAddress(staged()) +
                        (matrix / 2 * 8 + lane() % 8) * kStagedPitch +
                        pixel * static_cast<int>(sizeof(T));
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Pair<T> pair = RoundOf(sum, 4 * j + i, BiasOf(16 * j + i / 2 * 8 + 2 * quad()));
        words[i] = reinterpret_cast<const uint32_t&>(pair);
      }
      mma::StoreMatricesTransposed(to + 16 * j * kStagedPitch, words);
    }
  }

  // Lines of columns [begin, end). A thread stores the same pixels of every line it has.
  __device__ __forceinline__ void Send(int first_pixel, int begin, int end) const {
    if (p.staged.vector == 16) {
      SendVectors<uint4>(first_pixel, begin, end);
    } else if (p.staged.vector == 8) {
      SendVectors<uint2>(first_pixel, begin, end);
    } else if (p.staged.vector == 4) {
      SendVectors<uint32_t>(first_pixel, begin, end);
    } else {
      SendVectors<uint16_t>(first_pixel, begin, end);
    }
  }
  template <typename Vector>
  __device__ __forceinline__ void SendVectors(int first_pixel, int begin, int end) const {
    const int log_run = p.staged.log_run, pixel_bytes = static_cast<int>(sizeof(T)) << log_run;
    const int within = thread % 128 & ((1 << p.staged.log_vectors) - 1);
    const int byte = within * static_cast<int>(sizeof(Vector));
    const int q = first_pixel + byte / pixel_bytes;
    if (q >= p.pixels) return;
    uint8_t* const to =
        static_cast<uint8_t*>(p.target) + p.to.OffsetOf(q) * sizeof(T) + byte % pixel_bytes;
    const uint8_t* const from = staged() + byte;
    const int together = 128 >> p.staged.log_vectors, last = end >> log_run;
    int line = (begin >> log_run) + (thread % 128 >> p.staged.log_vectors);
#pragma unroll 4
    for (; line < last; line += together) {
      const uint32_t offset = control.offset[line << log_run];
      if (offset == kNoColumn) continue;
      *reinterpret_cast<Vector*>(to + static_cast<int64_t>(offset) * sizeof(T)) =
          *reinterpret_cast<const Vector*>(from + (line << log_run) * kStagedPitch);
    }
  }

  // -- what a thread has: rows q and q + 8, of eight columns two or of sixteen four --

  struct Rows {
    T* at[2];
    bool exist[2];
  };
  __device__ __forceinline__ Rows RowsOf(int q) const {
    Rows rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.exist[r] = q + 8 * r < p.pixels;
      rows.at[r] = static_cast<T*>(p.target) + (rows.exist[r] ? p.to.OffsetOf(q + 8 * r) : 0);
    }
    return rows;
  }

  __device__ __forceinline__ void StoreFours(const float (&sum)[N / 2], int q, int begin,
                                             int end) const {
    struct alignas(4 * sizeof(T)) Four {
      Pair<T> first, second;
    };
    const Rows rows = RowsOf(q);
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
      if (j < begin || j >= end) continue;
      const int column = 16 * j + 4 * quad();
      const uint32_t offset = control.offset[column];
      const float bias = control.bias[column];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (!rows.exist[r] || offset == kNoColumn) continue;
        *reinterpret_cast<Four*>(rows.at[r] + offset) = {RoundOf(sum, 4 * j + r, {bias, bias}),
                                                         RoundOf(sum, 4 * j + 2 + r, {bias, bias})};
      }
    }
  }

  template <bool PAIRS>
  __device__ __forceinline__ void StoreOwn(const float (&sum)[N / 2], int q, int begin,
                                           int end) const {
    const Rows rows = RowsOf(q);
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      if (j / 2 < begin || j / 2 >= end) continue;
      const int column = 8 * j + 2 * quad();
      const uint2 offset = *reinterpret_cast<const uint2*>(&control.offset[column]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Pair<T> pair = RoundOf(sum, 2 * j + r, BiasOf(column));
        const bool first = rows.exist[r] && offset.x != kNoColumn;
        if constexpr (PAIRS) {
          if (first) *reinterpret_cast<Pair<T>*>(rows.at[r] + offset.x) = pair;
        } else {
          if (first) rows.at[r][offset.x] = pair.first;
          if (rows.exist[r] && offset.y != kNoColumn) rows.at[r][offset.y] = pair.second;
        }
      }
    }
  }
};

}  // namespace transconv::cuda::sm90_gemm

#endif  // TRANSCONV_CUDA_KERNELS_SM90_GEMM_STORE_CUH_
