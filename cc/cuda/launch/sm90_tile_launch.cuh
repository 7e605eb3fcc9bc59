// Launches of the Hopper tile kernel.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_TILE_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_TILE_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>

#include "cuda/call.h"
#include "cuda/kernels/sm90_tile.cuh"
#include "cuda/launch/launch_behind.h"
#include "cuda/launch/pack_weights_launch.cuh"
#include "cuda/launch/sm90_tile_programme.cuh"

namespace transconv::cuda::sm90_tile {

template <typename T, int N, int RES, int ROWS, int PRODUCTS>
cudaError_t LaunchTile(const Call& call, const Programme& g) {
  cudaError_t status = LaunchPackWeights<T, PRODUCTS>(call, g.plan, g.packed);
  if (status != cudaSuccess) return status;
  int device = 0, multiprocessors = 0;
  if ((status = cudaGetDevice(&device)) != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  auto* kernel = TileKernel<T, N, RES, ROWS, PRODUCTS>;
  status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared_bytes);
  if (status != cudaSuccess) return status;
  TileParams p;
  FillParams(call, g, &p);
  const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(multiprocessors, g.tiles));
  return LaunchBehind(kernel, blocks, kThreads, g.shared_bytes, call.stream, p);
}

// All shapes of one element type and number of products; instantiated in files of their own.
template <typename T, int PRODUCTS>
cudaError_t LaunchShapes(const Call& call, const Programme& g) {
#define TRANSCONV_LAUNCH_IF(N, RES, ROWS, COUNT)                        \
  if constexpr (COUNT == PRODUCTS) {                                    \
    if (g.shape.n == N && g.shape.res == RES && g.shape.rows == ROWS) { \
      return LaunchTile<T, N, RES, ROWS, PRODUCTS>(call, g);            \
    }                                                                   \
  }
  TRANSCONV_SM90_TILE_SINGLE(TRANSCONV_LAUNCH_IF)
  TRANSCONV_SM90_TILE_TRIPLE(TRANSCONV_LAUNCH_IF)
#undef TRANSCONV_LAUNCH_IF
  return cudaErrorInvalidValue;
}
#define TRANSCONV_DECLARE(T, PRODUCTS) \
  extern template cudaError_t LaunchShapes<T, PRODUCTS>(const Call&, const Programme&);
TRANSCONV_DECLARE(float, 1)
TRANSCONV_DECLARE(float, 3)
TRANSCONV_DECLARE(__half, 1)
TRANSCONV_DECLARE(__nv_bfloat16, 1)
#undef TRANSCONV_DECLARE

}  // namespace transconv::cuda::sm90_tile

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_TILE_LAUNCH_CUH_
