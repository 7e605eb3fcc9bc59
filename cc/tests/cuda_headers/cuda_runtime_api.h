// In place of CUDA's header: what cuda/call.h names.
#ifndef TRANSCONV_TESTS_CUDA_HEADERS_CUDA_RUNTIME_API_H_
#define TRANSCONV_TESTS_CUDA_HEADERS_CUDA_RUNTIME_API_H_

using cudaStream_t = void*;
enum cudaError_t : int;

#endif  // TRANSCONV_TESTS_CUDA_HEADERS_CUDA_RUNTIME_API_H_
