// Host side of packed cells: where an image's cells lie, and the launches that make them.
#ifndef TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_
#define TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/geometry.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_cells.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda {

// The cells of one image, packed in the workspace or, of 16-bit images whose channels lie together,
// the image itself.
struct CellsOf {
  bool direct = false;
  int64_t pixels = 0, channels = 0, channels_per_group = 0, chunks = 0, groups = 0, batch = 0;
  int parts = 1;

  CellsOf() = default;
  CellsOf(const Problem& q, DType dtype, bool is_x)
      : pixels(is_x ? q.h.in * q.w.in : q.h.out * q.w.out),
        channels(is_x ? q.in_channels : q.out_channels),
        channels_per_group(is_x ? q.in_per_group() : q.out_per_group()),
        chunks(CeilDiv(channels_per_group, 8)),
        groups(q.groups),
        batch(q.batch),
        parts(ProductsOf(q, dtype) == 3 ? 2 : 1) {
    direct = ByteWidth(dtype) == 2 && q.layout == Layout::kNHWC && channels_per_group % 8 == 0;
  }

  // Distances in bytes.
  int64_t pixel() const { return direct ? 2 * channels : 16; }
  int64_t chunk() const { return direct ? 16 : 16 * pixels; }
  int64_t group() const { return chunk() * chunks; }
  int64_t image() const { return direct ? 2 * channels * pixels : groups * group(); }
  int64_t low() const { return image() * batch; }
  // Of the workspace; the largest magnitude comes first.
  int64_t bytes() const { return direct ? 0 : 256 + parts * low(); }
  int64_t blocks() const { return CeilDiv(pixels, int64_t{kPackCellsThreads}); }

  // Why there can be no such cells, or null.
  const char* TooLarge() const {
    constexpr int64_t kMaxBytes = int64_t{1} << 30;
    if (bytes() > kMaxBytes) return "a packed copy of its image would exceed a gibibyte";
    if (pixels * pixel() > std::numeric_limits<uint32_t>::max()) {
      return "an image exceeds 32-bit offsets";
    }
    if (batch * groups * chunks * blocks() > std::numeric_limits<int32_t>::max()) {
      return "more than 2^31 blocks";
    }
    return nullptr;
  }
};

// Packs an image into `to`, which has bytes() bytes; nothing to do for direct cells.
template <typename T, int PRODUCTS>
cudaError_t LaunchPackCells(const CellsOf& of, Layout layout, const void* source, void* to,
                            cudaStream_t stream) {
  if (of.direct) return cudaSuccess;
  uint32_t* const largest = static_cast<uint32_t*>(to);
  if constexpr (sizeof(T) == 4) {
    const cudaError_t status = cudaMemsetAsync(largest, 0, sizeof(uint32_t), stream);
    if (status != cudaSuccess) return status;
    const int64_t count = of.batch * of.channels * of.pixels;
    const int64_t blocks =
        std::clamp<int64_t>(CeilDiv(count, int64_t{16 * kPackCellsThreads}), 1, 8 * kSm90Blocks);
    LargestKernel<<<static_cast<unsigned>(blocks), kPackCellsThreads, 0, stream>>>(
        static_cast<const float*>(source), count, largest);
  }
  PackCellsParams p{};
  p.source = source;
  p.cells = reinterpret_cast<uint4*>(static_cast<uint8_t*>(to) + 256);
  p.largest = largest;
  const bool first = layout == Layout::kNCHW;
  p.image = of.channels * of.pixels;
  p.channel = first ? of.pixels : 1;
  p.pixel = first ? 1 : of.channels;
  p.low = of.low() / 16;
  p.pixels = static_cast<int>(of.pixels);
  p.channels_per_group = static_cast<int>(of.channels_per_group);
  p.chunks = static_cast<int>(of.chunks);
  p.groups = static_cast<int>(of.groups);
  p.by_chunk = Divider(of.chunks);
  p.by_group = Divider(of.groups);
  p.blocks = static_cast<int>(of.blocks());
  const int64_t blocks = of.batch * of.groups * of.chunks * of.blocks();
  PackCellsKernel<T, PRODUCTS><<<static_cast<unsigned>(blocks), kPackCellsThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_PACK_CELLS_LAUNCH_CUH_
