// A block's dynamic shared memory, by what an emulation can replace.
#ifndef TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_

#include <cstdint>

// Declares a block's dynamic shared memory in a kernel for which a function will not do: of what
// one returns, the compiler makes other code.
#define TRANSCONV_SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]

namespace transconv::cuda {

__device__ __forceinline__ unsigned char* SharedMemory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

// An address in shared memory, in bytes: of 32 bits, and never taken apart by the compiler, so that
// a load from a sum of two is one addition.
using SharedPlace = uint32_t;
__device__ __forceinline__ SharedPlace PlaceOf(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ float LoadFloat(SharedPlace from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t LoadWord(SharedPlace from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
// Four words, aligned to 16 bytes.
__device__ __forceinline__ void LoadWords(uint32_t (&v)[4], SharedPlace from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(from)
               : "memory");
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_
