// What the matrix-product kernel is told, and its shared memory.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_GEMM_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_GEMM_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/gemm_plan.h"
#include "cuda/primitives/box.cuh"

namespace transconv::cuda::sm90_gemm {

constexpr int kProducers = 128, kConsumers = 256;
constexpr int kThreads = kProducers + kConsumers;
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // of 168 at the start
constexpr int kMaxStages = 8;

// Where a pixel is in an image that is read or written: q counts pixels of all images.
struct Pixels {
  Divider by_image, by_row;
  int64_t image;    // elements from one image to the next
  int row, column;  // elements from one pixel to the next below, and beside

  __device__ __forceinline__ int64_t OffsetOf(int q) const {
    int image_index = q;
    int y = by_image.Split(image_index);
    const int x = by_row.Split(y);
    return image_index * image + (static_cast<int64_t>(y) * row + x * column);
  }
};

// How results of 16 bits are staged: a line is kStagedPixels pixels of 1 << log_run columns, which
// follow one another in the target, and leaves as 1 << log_vectors vectors of so many bytes. Where
// `vector` is 0, threads store what they have.
struct Staging {
  int vector, log_vectors, log_run;
};
constexpr int kStagedPixels = 64, kMostLogRun = 3;  // of a warpgroup
// Of a column's share of a line: a warp stores its fragments to different banks, whatever the run.
constexpr int kStagedPitch = 2 * kStagedPixels + 16;
constexpr int StagedBytes(int columns) { return 2 * columns * kStagedPitch; }  // both warpgroups'

struct GemmParams {
  const void* source;
  void* target;
  const void* bias;        // by target channel, or null
  const uint8_t* weights;  // packed, or boxes of them as they are:
  BoxMap weight_boxes;     // of 64 columns and elements of the sum, or of a tile's columns
  int pixels;              // of all images
  Pixels from, to;
  Divider by_line;        // lines of a channel
  int64_t channel, line;  // elements of the source from one to the next
  int lines, vector;
  int columns;               // of the product that exist
  Divider by_row, by_value;  // a column is (channel, row of taps, value)
  int to_channel, to_row;    // elements of the target from one to the next
  int store;                 // neighbouring columns that are neighbours in the target: 1, 2 or 4
  Staging staged;
  int slabs, splits, stages;
  Divider by_column_tile;
  int tiles;
};

// At the start of shared memory; staged results follow, then the stages: lines, then weights.
struct Control {
  uint64_t full[kMaxStages], empty[kMaxStages];
  uint32_t offset[256];  // of a tile's columns in an image of the target
  float bias[256];
};
constexpr int kControlBytes = 3072;
static_assert(sizeof(Control) <= kControlBytes);
static_assert(kControlBytes % 1024 == 0 && StagedBytes(64) % 1024 == 0 &&
                  kGemmLineBytes % 1024 == 0,
              "as a swizzle needs");
constexpr uint32_t kNoColumn = 0xffffffffu;

}  // namespace transconv::cuda::sm90_gemm

#endif  // TRANSCONV_CUDA_KERNELS_SM90_GEMM_PARAMS_CUH_
