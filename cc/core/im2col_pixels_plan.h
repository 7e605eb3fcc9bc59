// How the input gradient of pixels of 16 bits (cuda/kernels/im2col_grad_input_pixels.cuh) cuts a
// problem: pure C++.
//
// Of the product dx = dy * w, the rows are positions of x, the columns input channels, and what is
// summed are taps and output channels. In NHWC the taps of a row and all channels of each are one
// run of memory, so that an operand, two of them side by side, is one word of dy where the run
// starts at an even element. For the others a copy of dy lies beside it, one element further on.
//
// A block takes tiles, each some rows and columns of x of one image, in turns. Its warps share a
// tile's units of 16 or 32 columns of a row and 32 or 64 channels.
#ifndef TRANSCONV_CORE_IM2COL_PIXELS_PLAN_H_
#define TRANSCONV_CORE_IM2COL_PIXELS_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/geometry.h"
#include "core/im2col_box.h"
#include "core/im2col_pixels.h"
#include "core/im2col_wgrad_plan.h"

namespace transconv {

struct PixelsInputPlan {
  const char* reason = nullptr;
  int fragments_m = 1, fragments_n = 4;  // of a warp, 16 columns and 8 channels each
  int in = 32, in_blocks = 1;            // channels of a block, with those that fill fragments
  int groups = 1;                        // of a warp's channels
  int words = 1, steps = 1;              // of a row of taps; sixteen products each, of all rows
  pixels::TileAxis h, w;
  int blocks_w = 1, units = 1;
  int vector = 4, vectors = 1;  // bytes of dy that are copied at a time; of a row of dy
  int row = 16;                 // bytes of shared memory from a row of dy to the next
  // Bytes of shared memory: a table of operands' places, the weights, dy twice, the copy of dy that
  // is an element further on.
  int weights_at = 0, dy_at = 0, dy_bytes = 0, copy_at = 0, shared_bytes = 0;
  int64_t tiles = 1;
  double cycles = 0;  // predicted, of an H200
};

struct PixelsInputLimits {
  int shared_bytes = 96 << 10;   // two blocks fit where a multiprocessor has most, one everywhere
  int columns = 128, rows = 32;  // of a tile
};

// An entry of the table, for lane % 4 of a step: how far its words are from a position's first one,
// in bytes, and which of their elements are products.
struct alignas(16) PixelsOperand {
  uint32_t at[2], mask[2];
};

namespace pixels_input {

constexpr int kMostSteps = 64, kMostWeightBytes = 40 << 10;
constexpr int64_t kBlocks = 264;  // that run at the same time

inline int RoundUp(int64_t v, int64_t to) { return static_cast<int>(CeilDiv(v, to) * to); }

inline PixelsOperand OperandOf(const PixelsInputPlan& p, const Problem& q, int step, int lane) {
  PixelsOperand operand{};
  for (int half = 0; half < 2; ++half) {
    const int word = 8 * step + 4 * half + lane, tap_h = word / p.words, at = word % p.words;
    if (tap_h >= q.h.kernel) continue;
    operand.at[half] =
        static_cast<uint32_t>(tap_h * static_cast<int>(q.h.dilation) * p.row + 4 * at);
    const bool last = 2 * at + 1 == q.w.kernel * q.out_channels;
    operand.mask[half] = last ? 0xffffu : 0xffffffffu;
  }
  return operand;
}

// Wavefronts of a tile's first loads of dy, in all steps.
inline int Wavefronts(const PixelsInputPlan& p, const Problem& q) {
  const int position = static_cast<int>(q.w.stride * q.out_channels);
  int sum = 0;
  for (int step = 0; step < p.steps; ++step) {
    int words[32][32], in_bank[32] = {}, most = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int first = lane / 4 * position;
      const int at = first % 2 == 0 ? 2 * first : p.copy_at - p.dy_at + 2 * (first - 1);
      const int word = (at + static_cast<int>(OperandOf(p, q, step, lane % 4).at[0])) / 4;
      int *const bank = words[word % 32], &size = in_bank[word % 32];
      if (std::find(bank, bank + size, word) != bank + size) continue;  // one word for both
      bank[size++] = word;
      most = std::max(most, size);
    }
    sum += most;
  }
  return sum;
}

// Where everything lies; false if it does not fit.
inline bool Place(const PixelsInputLimits& limits, int row_pad, int copy_pad, PixelsInputPlan* p) {
  p->row = RoundUp(int64_t{p->vectors} * p->vector + 4, 16) + row_pad;
  p->weights_at = 16 * 4 * p->steps;
  p->dy_at = p->weights_at + p->in * p->steps * 32;
  p->dy_bytes = p->h.halo * p->row;
  p->copy_at = p->dy_at + 2 * p->dy_bytes + copy_pad;
  p->shared_bytes = p->copy_at + p->dy_bytes;
  return p->shared_bytes <= limits.shared_bytes;
}

inline void Predict(const Problem& q, PixelsInputPlan* p) {
  p->h.tiles = static_cast<int>(CeilDiv(q.h.in, p->h.size));
  p->w.tiles = static_cast<int>(CeilDiv(q.w.in, p->w.size));
  p->tiles = q.batch * p->h.tiles * p->w.tiles;
  p->blocks_w = p->w.size / (16 * p->fragments_m);
  p->units = p->h.size * p->blocks_w * p->groups;
  const int m = p->fragments_m, n = p->fragments_n;
  const double words = double{1} * p->h.halo * p->row / 4;
  const double memory = (4 * words + 2.0 * p->h.size * p->w.size * p->in) /
                        8.5;  // of 17 bytes a cycle, by two blocks
  const double turns = static_cast<double>(CeilDiv(p->units, 8)) * 8;
  const double issued =
      turns * (p->steps * (12 * m + n / 2 + m * n + 8) + m * (6 * n + 30) + 30) / 2 + words / 5;
  const double shared = 2 * (turns * p->steps * (2 * n + 4 * m + 1) + words / 10);
  const double tile = std::max({memory, issued, shared}) + 0.2 * (memory + issued + shared) + 900;
  const int64_t blocks = std::max<int64_t>(kBlocks / p->in_blocks, 1);
  p->cycles = static_cast<double>(CeilDiv(p->tiles, blocks)) * tile;
}

inline const char* Declines(const Problem& q) {
  if (const char* reason = pixels::Declines(q)) return reason;
  if (q.w.out * q.out_channels % 2 != 0) return "takes rows of dy of whole words alone";
  if (q.w.dilation != 1 && q.w.kernel > 1) return "takes taps side by side alone";
  if (q.w.stride > 16 || q.h.stride > 16 || q.h.dilation * q.h.kernel > 64)
    return "reaches too far";
  // Where pixels are long, the lanes of a load would meet one bank.
  if (q.out_channels > 8) return "takes up to eight output channels";
  if (q.w.kernel > 64) return "has too many products";
  return nullptr;
}

}  // namespace pixels_input

// For element types of two bytes.
inline PixelsInputPlan PlanPixelsInput(const Problem& problem,
                                       const PixelsInputLimits& limits = {}) {
  using namespace pixels_input;
  const Problem q = im2col_wgrad::ColumnAsRow(problem);
  PixelsInputPlan best;
  best.reason = Declines(q);
  if (best.reason != nullptr) return best;
  best.reason = "its tiles exceed shared memory";
  best.cycles = std::numeric_limits<double>::infinity();

  PixelsInputPlan base;
  base.words = static_cast<int>(CeilDiv(q.w.kernel * q.out_channels, 2));
  const int64_t steps = CeilDiv(q.h.kernel * base.words, 8);
  if (steps > kMostSteps) {
    best.reason = "has too many products";
    return best;
  }
  base.steps = static_cast<int>(steps);
  const int64_t channels = CeilDiv(q.in_channels, 32) * 32;
  const int64_t most = std::max<int64_t>(kMostWeightBytes / (32 * steps) / 32 * 32, 32);
  base.in_blocks = static_cast<int>(CeilDiv(channels, most));
  base.in = RoundUp(CeilDiv(channels, base.in_blocks), 32);
  base.in_blocks = static_cast<int>(CeilDiv(channels, base.in));
  base.fragments_n = base.in % 64 == 0 ? 8 : 4;
  base.groups = base.in / (8 * base.fragments_n);
  const int rest = static_cast<int>(q.w.in % 32);
  base.fragments_m = rest > 0 && rest <= 16 && q.w.in < 64 ? 1 : 2;
  const int64_t run = q.w.out * q.out_channels * 2;
  base.vector = run % 16 == 0 ? 16 : run % 8 == 0 ? 8 : 4;
  const int per_vector = base.vector / 2;

  int last = 0;
  for (int64_t columns = limits.columns; columns >= 16 * base.fragments_m; columns /= 2) {
    PixelsInputPlan p = base;
    p.w.size = RoundUp(im2col_wgrad::EvenPart(q.w.in, columns), 16 * p.fragments_m);
    if (p.w.size == last) continue;
    last = p.w.size;
    p.w.halo = static_cast<int>(q.w.stride * (p.w.size - 1) + q.w.kernel);
    p.vectors = static_cast<int>(CeilDiv(p.w.halo * q.out_channels + per_vector - 1, per_vector));
    for (int rows = 1; rows <= std::min<int64_t>(limits.rows, q.h.in); ++rows) {
      p.h.size = rows;
      p.h.halo = static_cast<int>(q.h.stride * (rows - 1) + q.h.dilation * (q.h.kernel - 1)) + 1;
      if (!Place(limits, 64, 128, &p)) break;
      Predict(q, &p);
      if (p.cycles < best.cycles) best = p;
    }
  }
  if (best.reason != nullptr) return best;
  if (best.tiles > std::numeric_limits<int32_t>::max() / 2) {
    best.reason = "more than 2^30 tiles";
    return best;
  }
  // Pads rows and the copy so that the lanes of a load meet different banks.
  int least = std::numeric_limits<int>::max(), row_pad = 0, copy_pad = 0;
  for (int pads = 0; pads < 40 && least > best.steps; ++pads) {
    Place(limits, pads / 8 * 16, pads % 8 * 16, &best);
    const int wavefronts = Wavefronts(best, q);
    if (wavefronts >= least) continue;
    least = wavefronts;
    row_pad = pads / 8 * 16;
    copy_pad = pads % 8 * 16;
  }
  Place(limits, row_pad, copy_pad, &best);
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_PIXELS_PLAN_H_
