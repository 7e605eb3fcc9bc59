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

// Adds what the blocks of the cluster have, in their order. Each block adds its own share of every
// sixteen columns, of which a thread has eight sums; elsewhere the registers stay parts. `shared`
// is free memory of the block, a word for each sum of each of kThreads.
template <int kThreads, int HALVES, int SUMS>
__device__ __forceinline__ void AddClusterParts(float (&sum)[HALVES][SUMS], uint32_t shared,
                                                int thread, int splits) {
  constexpr int kSixteens = SUMS / 8, kWord = 4 * kThreads, kHalf = SUMS * kWord;
  const uint32_t own = shared + 4 * thread;
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll
    for (int i = 0; i < SUMS; ++i) {
      ptx::StoreSharedWord(own + h * kHalf + i * kWord, __float_as_uint(sum[h][i]));
    }
  }
  cluster::Sync();
  const int rank = static_cast<int>(cluster::Rank());
#pragma unroll
  for (int h = 0; h < HALVES; ++h) {
#pragma unroll 1
    for (int j = rank * kSixteens / splits; j < (rank + 1) * kSixteens / splits; ++j) {
      const uint32_t at = h * kHalf + j * 8 * kWord;
      float all[8] = {};
#pragma unroll 2
      for (int r = 0; r < splits; ++r) {
        const uint32_t part = cluster::AddressIn(own, r) + at;
#pragma unroll
        for (int i = 0; i < 8; ++i) all[i] += cluster::LoadShared(part + i * kWord);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        ptx::StoreSharedWord(own + at + i * kWord, __float_as_uint(all[i]));
      }
    }
#pragma unroll
    for (int i = 0; i < SUMS; ++i) sum[h][i] = ptx::LoadShared(own + h * kHalf + i * kWord);
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_CLUSTER_PARTS_CUH_
