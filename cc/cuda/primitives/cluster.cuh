// Blocks of a cluster: their barrier, and each other's shared memory.
#ifndef TRANSCONV_CUDA_PRIMITIVES_CLUSTER_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_CLUSTER_CUH_

#include <cstdint>

namespace transconv::cuda::cluster {

__device__ __forceinline__ uint32_t Rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks; what they have written before is seen after it.
__device__ __forceinline__ void Sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// The same, where nothing that was written is read behind it: before a block goes whose shared
// memory others have read.
__device__ __forceinline__ void SyncToLeave() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}
// The same place in the shared memory of another block.
__device__ __forceinline__ uint32_t AddressIn(uint32_t shared, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared), "r"(rank));
  return address;
}
__device__ __forceinline__ float4 LoadShared128(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

}  // namespace transconv::cuda::cluster

#endif  // TRANSCONV_CUDA_PRIMITIVES_CLUSTER_CUH_
