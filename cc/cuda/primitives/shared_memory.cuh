// A block's dynamic shared memory, by a function that an emulation can replace.
#ifndef TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_
#define TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_

namespace transconv::cuda {

__device__ __forceinline__ unsigned char* SharedMemory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_PRIMITIVES_SHARED_MEMORY_CUH_
