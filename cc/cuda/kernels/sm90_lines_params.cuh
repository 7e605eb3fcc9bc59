// What the matrix product of lines is told, and its shared memory.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_LINES_PARAMS_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_LINES_PARAMS_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/lines_plan.h"

namespace transconv::cuda::sm90_lines {

constexpr int kConsumers = 256;
// The threads of a block and their registers. What producers give back is all that consumers can
// take: they would wait for more for ever.
template <int COPIERS>
struct Threads {
  static constexpr int kProducers = COPIERS + 32;  // a warp brings weights
  static constexpr int kAll = kProducers + kConsumers;
  static constexpr int kRegisters = 65536 / kAll / 8 * 8;  // to start with
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = COPIERS > 96 ? 200 : 224;
  static_assert(kProducers % 128 == 0, "registers change hands by warpgroups");
  static_assert(kProducers * (kRegisters - kProducerRegisters) >=
                kConsumers * (kConsumerRegisters - kRegisters));
};

struct Phase {
  const uint8_t* weights;
  int row, column;
  int top, left;
  int pieces, first_quad, first_half;
  int columns;
  int tiles;  // up to its own
  Divider by_column_tile, by_residue;
};

struct LinesParams {
  const float* source;
  float* target;
  const float* bias;    // by target channel, or null
  int batch, channels;  // of the source
  int source_h, source_w;
  int step_h, step_w;
  int64_t source_image;  // elements
  int source_channel;
  // A tile is `tile_n` images, `tile_h` rows and `tile_w` columns of places, the last two powers of
  // two; so many of them make up the grid.
  int tile_n, tile_h, tile_w, log_tile_w, log_tile_h;
  Divider by_tile_w, by_tile_h;
  // The window.
  int places, vector, row_pitch, image_pitch, channel_pitch, lane_pitch;
  int row_step;      // source rows from one of its rows to the next
  int place_step_h;  // rows of it from one place to the next
  Divider by_place, by_copy, by_row;
  int slab_channels, slabs, splits;
  int line_stages, weight_stages, line_bytes;
  int target_h, target_w, to_step_h, to_step_w;
  Divider by_step;  // to_step_w
  int64_t target_image;
  int target_channel;
  int store;     // neighbouring columns that are neighbours in the target: 1, 2 or 4
  int half;      // with two halves: from a residue of the first to that of the second
  bool ordered;  // by way of shared memory, as they lie in the target
  bool joined;   // and behind those that are stored at once come those of the second
  bool filled;   // no quad is nothing
  int phases, tiles;
  Phase phase[kLinesPhases];
  int quad[kLinesQuads];  // offsets in bytes, or kLinesNothing
};

// At the start of shared memory; where results are ordered their place follows, then the stages:
// lines, weights.
struct Control {
  uint64_t lines_full[lines::kMostStages], lines_empty[lines::kMostStages];
  uint64_t weights_full[lines::kMostStages], weights_empty[lines::kMostStages];
  uint32_t offset[256];  // of a tile's columns in an image of the target
  float bias[256];
  uint32_t reach[256];      // columns of the target from a place's own
  int place[kLinesPlaces];  // where a copy is in its channel's plane, or kLinesNothing
};
static_assert(sizeof(Control) <= kLinesControlBytes);
constexpr uint32_t kNoColumn = 0xffffffffu;
constexpr int kNoRoom = -(1 << 30);

}  // namespace transconv::cuda::sm90_lines

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_PARAMS_CUH_
