// Where the packed cells of an image lie, and what packing it takes.
#ifndef TRANSCONV_CUDA_LAUNCH_PACK_CELLS_CALL_CUH_
#define TRANSCONV_CUDA_LAUNCH_PACK_CELLS_CALL_CUH_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/geometry.h"
#include "cuda/kernels/pack_cells.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda {

constexpr int64_t kSampleVectors = 1 << 14;

// The cells of one image, packed in the workspace or, of 16-bit images whose channels lie together,
// the image itself, if it starts at one.
struct CellsOf {
  bool direct = false;
  int64_t rows = 0, columns = 0, step = 1;  // every step-th column is read together
  int64_t channels = 0, channels_per_group = 0, chunks = 0, groups = 0, batch = 0;
  int parts = 1;

  CellsOf() = default;
  CellsOf(const Problem& q, DType dtype, bool is_x, int64_t columns_step)
      : rows(is_x ? q.h.in : q.h.out),
        columns(is_x ? q.w.in : q.w.out),
        step(columns_step),
        channels(is_x ? q.in_channels : q.out_channels),
        channels_per_group(is_x ? q.in_per_group() : q.out_per_group()),
        chunks(CeilDiv(channels_per_group, 8)),
        groups(q.groups),
        batch(q.batch),
        parts(ProductsOf(q, dtype) == 3 ? 2 : 1) {
    direct = ByteWidth(dtype) == 2 && q.layout == Layout::kNHWC && channels_per_group % 8 == 0;
  }

  int64_t row_cells() const { return direct ? columns : step * CeilDiv(columns, step); }
  // Distances in bytes.
  int64_t pixel() const { return direct ? 2 * channels : 16; }
  int64_t chunk() const { return direct ? 16 : 16 * rows * row_cells(); }
  int64_t group() const { return chunk() * chunks; }
  int64_t image() const { return direct ? 2 * channels * rows * columns : groups * group(); }
  int64_t low() const { return image() * batch; }
  int64_t bytes() const { return direct ? 0 : parts * low(); }  // of the workspace
  int64_t cells() const { return direct ? 0 : bytes() / 16 / parts; }

  // Why there can be no such cells, or null.
  const char* TooLarge() const {
    constexpr int64_t kMaxBytes = int64_t{1} << 30;
    if (bytes() > kMaxBytes) return "a packed copy of its image would exceed a gibibyte";
    if (rows * row_cells() * pixel() > std::numeric_limits<uint32_t>::max()) {
      return "an image exceeds 32-bit offsets";
    }
    return nullptr;
  }
};

// What packing one image into `cells` takes.
inline PackCellsParams PackParamsOf(const CellsOf& of, Layout layout, const void* source,
                                    void* cells, Magnitudes* magnitudes) {
  PackCellsParams p{};
  p.source = source;
  p.cells = static_cast<uint4*>(cells);
  p.magnitudes = magnitudes;
  const bool first = layout == Layout::kNCHW;
  const int64_t pixels = of.rows * of.columns;
  p.size = of.batch * of.channels * pixels;
  p.pitch = of.parts == 2 ? 1 : std::max<int64_t>(p.size / 4 / kSampleVectors, 1);
  // A slice of a buffer may start between two vectors.
  const int64_t past = reinterpret_cast<uintptr_t>(source) % sizeof(float4) / sizeof(float);
  p.head = std::min(past == 0 ? 0 : 4 - past, p.size);
  p.vectors = (p.size - p.head) / 4 / p.pitch;
  p.image = of.channels * pixels;
  p.channel = first ? pixels : 1;
  p.pixel = first ? 1 : of.channels;
  p.low = of.low() / 16;
  p.channels_per_group = static_cast<int>(of.channels_per_group);
  p.by_chunk = Divider(of.chunks);
  p.by_group = Divider(of.groups);
  p.columns = static_cast<int>(of.columns);
  p.by_cell = Divider(of.rows * of.row_cells());
  p.by_column = Divider(of.row_cells());
  p.order = ColumnOrder(of.columns, of.step);
  p.count = static_cast<int>(of.cells());
  p.parts = static_cast<int>(CeilDiv(of.cells(), int64_t{kPackCellsThreads}));
  return p;
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_LAUNCH_PACK_CELLS_CALL_CUH_
