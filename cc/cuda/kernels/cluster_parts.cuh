// What blocks of a cluster share: the sum of a tile, cut between them.
#ifndef TRANSCONV_CUDA_KERNELS_CLUSTER_PARTS_CUH_
#define TRANSCONV_CUDA_KERNELS_CLUSTER_PARTS_CUH_

#include <cstdint>

#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda {

// The tiles and slabs of a block; `splits` blocks have the same tiles.
struct ClusterWork {
  int first, step;        // tiles
  int first_slab, slabs;  // of each tile

  __device__ ClusterWork(int splits, int all_slabs) {
    const int part = static_cast<int>(blockIdx.x) % splits;
    first = static_cast<int>(blockIdx.x) / splits;
    step = static_cast<int>(gridDim.x) / splits;
    first_slab = part * all_slabs / splits;
    slabs = (part + 1) * all_slabs / splits - first_slab;
  }
};

__device__ __forceinline__ void StoreFour(uint32_t shared, float4 v) {
  ptx::StoreShared128(shared, make_uint4(__float_as_uint(v.x), __float_as_uint(v.y),
                                         __float_as_uint(v.z), __float_as_uint(v.w)));
}

// Adds what the blocks of the cluster have, in their order. Each block adds its own share of the
// columns, in sixteens, of which a thread has eight sums; elsewhere the registers stay parts.
// `shared` is free memory of the block, aligned to 16 bytes, a word for each sum of each of
// kThreads.
template <int kThreads, int HALVES, int SUMS>
__device__ __forceinline__ void AddClusterParts(float (&sum)[HALVES][SUMS], uint32_t shared,
                                                int thread, int splits) {
  // A thread's sums are stored in fours, next to those of its neighbours.
  constexpr int kSixteens = SUMS / 8, kFour = 16 * kThreads, kHalf = SUMS / 4 * kFour;
  const uint32_t own = shared + 16 * thread;
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int i = 0; i < SUMS; i += 4) {
      StoreFour(own + h * kHalf + i / 4 * kFour,
                make_float4(sum[h][i], sum[h][i + 1], sum[h][i + 2], sum[h][i + 3]));
    }
  }
  cluster::Sync();
  const int rank = static_cast<int>(cluster::Rank());
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
    // In shared memory, as no register can be chosen when the kernel runs: code for every one of
    // them would take longer to load than these few instructions take. What four blocks have of
    // thirty-two columns is asked for at once.
    const int end = (rank + 1) * kSixteens / splits;
#pragma unroll 1
    for (int j = rank * kSixteens / splits; j < end; j += 2) {
      const uint32_t at = own + h * kHalf + 2 * j * kFour;
      float4 all[4] = {};
      const int fours = j + 1 < end ? 4 : 2;
#pragma unroll 1
      for (int r = 0; r < splits; r += 4) {
        float4 part[4][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (r + i >= splits) continue;
          const uint32_t from = cluster::AddressIn(at, r + i);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (k < fours) part[i][k] = cluster::LoadShared128(from + k * kFour);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            all[k].x += part[i][k].x, all[k].y += part[i][k].y;
            all[k].z += part[i][k].z, all[k].w += part[i][k].w;
          }
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k < fours) StoreFour(at + k * kFour, all[k]);
      }
    }
#pragma unroll
    for (int i = 0; i < SUMS; i += 4) {
      const uint4 v = ptx::LoadShared128(own + h * kHalf + i / 4 * kFour);
      sum[h][i] = __uint_as_float(v.x), sum[h][i + 1] = __uint_as_float(v.y);
      sum[h][i + 2] = __uint_as_float(v.z), sum[h][i + 3] = __uint_as_float(v.w);
    }
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_CLUSTER_PARTS_CUH_
