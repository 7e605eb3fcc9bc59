// Tensors whose boxes kernels copy, as the hardware has them: tensor maps.
#ifndef TRANSCONV_CUDA_LAUNCH_ENCODE_BOX_H_
#define TRANSCONV_CUDA_LAUNCH_ENCODE_BOX_H_

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "cuda/primitives/box.cuh"

namespace transconv::cuda {

// The driver's function, which is found when it is needed: no library of the driver is linked.
inline PFN_cuTensorMapEncodeTiled_v12000 FindEncodeTiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              12000, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

inline cudaError_t EncodeBox(const BoxTensor& tensor, BoxMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof(BoxMap) && alignof(CUtensorMap) <= alignof(BoxMap));
  static const PFN_cuTensorMapEncodeTiled_v12000 kEncode = FindEncodeTiled();
  if (kEncode == nullptr) return cudaErrorNotSupported;
  cuuint64_t size[5], stride[4];
  for (int i = 0; i < 5; ++i) size[i] = tensor.size[i];
  for (int i = 0; i < 4; ++i) stride[i] = tensor.stride[i];
  const CUtensorMapDataType type = tensor.element == 8   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT64
                                   : tensor.element == 4 ? CU_TENSOR_MAP_DATA_TYPE_UINT32
                                                         : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  const CUtensorMapSwizzle swizzle =
      tensor.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
  const CUresult result =
      kEncode(reinterpret_cast<CUtensorMap*>(map), type, 5, const_cast<void*>(tensor.base), size,
              stride, tensor.box, tensor.step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_ENCODE_BOX_H_
