// How the forward pass runs as a matrix product and col2im, for few channels: pure C++, tested
// without a GPU.
//
//     columns[(co, kh, kw), pixel] = sum over ci of w[ci, co, kh, kw] x[pixel, ci]
//     y[o, co] = bias[co] + sum over taps that reach o of columns[(co, tap), their pixel]
//
// of one group. A block has a tile of y: all outputs s v + m of some v per axis. It computes the
// columns of the pixels of x that these outputs' taps can reach, so that pixels between two tiles
// are multiplied twice, and keeps them in shared memory for as many output channels at a time as
// fit. The window of pixels is moved into the image where it would hang over the rim: taps that
// reach beyond the image are left out of the sum, so that no zero is ever multiplied.
#ifndef TRANSCONV_CORE_IM2COL_FORWARD_PLAN_H_
#define TRANSCONV_CORE_IM2COL_FORWARD_PLAN_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/direct_plan.h"
#include "core/geometry.h"
#include "core/im2col_plan.h"

namespace transconv {

struct Im2colForwardPlan {
  const char* reason = nullptr;         // why there is none
  int m_frags = 2, k_steps = 1;         // of a warp: 16 pixels and 8 input channels each
  int k_chunks = 1;                     // of 8 k_steps input channels
  int rows = 1, columns = 1;            // of y, of a tile
  int v_rows = 1, v_columns = 1;        // the same in strides
  int x_rows = 1, x_columns = 1;        // of the window of x
  int first_row = 0, first_column = 0;  // of the window, relative to the tile's first v
  int tiles_h = 1, tiles_w = 1;
  int64_t tiles = 0;
  int pieces = 1, rounds = 1;  // of 16 m_frags pixels in a window, and of these for a warp
  int chunk = 1, parts = 1;    // output channels whose columns are there at a time
  int n_frags = 1;             // of a part: 8 columns each
  int pitch = 1;               // elements from one column to the next
  bool held = true;            // the weights of all parts are there all the time
  // Channels last: results are collected for whole runs of channels, of one part or of all.
  bool collected = false, collects_all = false;
  // Bytes of shared memory.
  int columns_at = 0, tables_at = 0, results_at = 0, shared_bytes = 0;
  int resident = 1;

  TRANSCONV_HOST_DEVICE int pixels() const { return x_rows * x_columns; }
  TRANSCONV_HOST_DEVICE int part_weights() const { return k_chunks * k_steps * n_frags * 64; }
  // Whether a warp multiplies the same pixels for all parts.
  TRANSCONV_HOST_DEVICE bool keeps_pixels() const { return rounds == 1 && k_chunks == 1; }
  // Warps that take turns at the chunks of a piece's k, where there is one for each piece.
  TRANSCONV_HOST_DEVICE int turns() const {
    const int most = Im2colPlan::kWarps / pieces;
    return rounds > 1 ? 0 : most < k_chunks ? most : k_chunks;
  }
};

namespace im2col {

inline int ForwardResident(int m_frags, int k_steps) { return m_frags * k_steps <= 4 ? 3 : 2; }

// Everything that follows from the tile, the part and the fragments; false if shared memory does
// not hold it.
inline bool CompleteForward(Im2colForwardPlan* plan, const Problem& q, const Im2colLimits& limits,
                            int element) {
  Im2colForwardPlan& p = *plan;
  const int64_t taps = q.taps(), out = q.out_per_group();
  const auto window = [](const Axis& a, int v, int* first) {
    const int64_t low = a.TapOf(0).shift, high = a.TapOf(a.kernel - 1).shift;
    *first = static_cast<int>(-high);
    return static_cast<int>(std::min<int64_t>(v + high - low, a.in));
  };
  p.x_rows = window(q.h, p.v_rows, &p.first_row);
  p.x_columns = window(q.w, p.v_columns, &p.first_column);
  p.rows = static_cast<int>(p.v_rows * q.h.stride);
  p.columns = static_cast<int>(p.v_columns * q.w.stride);
  const int64_t pixels = int64_t{p.x_rows} * p.x_columns;
  if (pixels > limits.most_pixels) return false;
  p.pieces = static_cast<int>(CeilDiv(pixels, 16 * p.m_frags));
  p.rounds = static_cast<int>(CeilDiv(p.pieces, Im2colPlan::kWarps));
  // Lanes that store a fragment, 2 t columns and g pixels apart, meet different banks.
  p.pitch = p.pieces * 16 * p.m_frags + 4;
  p.parts = static_cast<int>(CeilDiv(out, p.chunk));
  p.n_frags = static_cast<int>(CeilDiv(p.chunk * taps, 8));
  const bool last = q.layout == Layout::kNHWC;
  p.collected = last && out > 1;
  p.collects_all = p.collected && p.parts > 1 && p.chunk * element % 32 != 0;
  const int64_t all = int64_t{4} * p.parts * p.part_weights();
  p.held = p.parts == 1 || all <= limits.shared_bytes / 3;
  const int64_t columns = int64_t{32} * p.n_frags * p.pitch;
  const int64_t tables = (int64_t{8} * (p.rows + p.columns) + 15) / 16 * 16;
  const int64_t results =
      p.collected ? int64_t{4} * p.rows * p.columns * (p.collects_all ? out : p.chunk) : 0;
  const int64_t weights = p.held ? all : int64_t{4} * p.part_weights();
  const int64_t bytes = weights + columns + tables + results;
  if (bytes > limits.shared_bytes) return false;
  p.columns_at = static_cast<int>(weights);
  p.tables_at = static_cast<int>(weights + columns);
  p.results_at = static_cast<int>(weights + columns + tables);
  p.shared_bytes = static_cast<int>(bytes);
  p.resident = std::min(kSharedOfMultiprocessor / (p.shared_bytes + 1024),
                        ForwardResident(p.m_frags, p.k_steps));
  return true;
}

// Cycles of a card.
inline double ForwardCost(const Im2colForwardPlan& p, const Problem& q, const Im2colLimits& limits,
                          int element) {
  const double taps = static_cast<double>(q.taps()), out = static_cast<double>(q.out_per_group());
  const double in = static_cast<double>(q.in_per_group());
  const double outputs = 1.0 * p.rows * p.columns * out, pixels = p.pixels();
  const double steps = 1.0 * p.k_chunks * p.k_steps, fragments = 1.0 * p.parts * p.n_frags;
  const double loaded = p.keeps_pixels() ? 1 : p.parts;
  // Products: shared memory, instructions, tensor cores. Then sums.
  const double stored = 4 * p.m_frags * (2.0 * p.k_chunks - 1);
  double multiply = p.pieces * fragments *
                    std::max({2 * steps + stored, (steps * (1 + p.m_frags) + 2 * stored + 4) / 4,
                              2 * steps * p.m_frags});
  // Warps without a piece wait for the others, of which a multiprocessor has few.
  multiply *= 0.6 + 0.4 * p.rounds * Im2colPlan::kWarps / p.pieces;
  const double reached = taps / static_cast<double>(q.h.stride * q.w.stride);
  const double conflicts = q.w.stride <= 2 ? 1.1 : 2;
  const double together = q.w.stride == 2 ? 2 : 1;  // outputs of a lane
  const double issued = 45.0 / (together * p.chunk) + 24 / together + 3.5 * reached;
  double add = outputs / 32 * std::max(reached * conflicts, issued / 4);
  if (p.collected) add += outputs / 32 * (q.groups == 1 ? 3 : 6);
  const double load =
      p.pieces * p.m_frags * steps * 4 * loaded * (q.layout == Layout::kNCHW ? 4 : 2);
  const double weights = p.part_weights() * p.parts * 24.0 / 128;
  const double busy = multiply + add + load + (p.held ? 0 : weights) + 100.0 * p.parts;
  // Runs of NCHW are rows of one channel.
  const bool planes = q.layout == Layout::kNCHW;
  const double read =
      planes ? p.x_rows * in * Sectors(p.x_columns, element) * 32 : pixels * in * element;
  const double written =
      planes ? p.rows * out * Sectors(p.columns, element) * 32 : outputs * element;
  const double moved = (read * loaded + written) / 20;
  const double total = std::max(busy, moved) + 0.3 * std::min(busy, moved);
  const double blocks = static_cast<double>(p.tiles) * static_cast<double>(q.groups);
  const double each = std::ceil(blocks / limits.multiprocessors);
  const double wait = 2000 + 1000.0 * p.parts;
  return each * total / Reached(std::min<double>(each, p.resident)) +
         std::ceil(each / p.resident) * wait +
         (p.held ? std::min<double>(each, p.resident) * weights : 0);
}

}  // namespace im2col

// `element` is an element's size in bytes.
inline Im2colForwardPlan PlanIm2colForward(const Problem& q, int element,
                                           const Im2colLimits& limits = {}) {
  Im2colForwardPlan best;
  if ((best.reason = im2col::Refuses(q)) != nullptr) return best;
  best.reason = "a stride is above 1024";
  if (std::max(q.h.stride, q.w.stride) > kDirectMostStride) return best;
  best.reason = "the columns of one channel's taps exceed shared memory";
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const int64_t in = q.in_per_group(), out = q.out_per_group();
  if (in > kMax / 64 / q.taps() / out || in > 1 << 20) return best;
  Im2colForwardPlan base = best;
  while (base.k_steps < 8 && base.k_steps * 8 < in) base.k_steps *= 2;
  base.k_chunks = static_cast<int>(CeilDiv(in, 8 * base.k_steps));
  const int64_t high = CeilDiv(q.h.out, q.h.stride), wide = CeilDiv(q.w.out, q.w.stride);
  double least = std::numeric_limits<double>::infinity();
  int64_t last_columns = 0;
  for (int64_t columns : {256, 128, 64, 32, 16, 8, 4, 1}) {
    columns = CeilDiv(wide, CeilDiv(wide, std::min(columns, wide)));
    if (columns == last_columns) continue;
    last_columns = columns;
    int64_t last_rows = 0;
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32}) {
      rows = CeilDiv(high, CeilDiv(high, std::min(rows, high)));
      if (rows == last_rows) continue;
      last_rows = rows;
      if (rows * columns < std::min<int64_t>(limits.least_pixels, high * wide)) continue;
      int fits = 0;  // more parts than twice those that fit only cost more
      int64_t last_chunk = 0;
      for (int64_t parts : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{8}, out}) {
        const int64_t chunk = CeilDiv(out, std::min(parts, out));
        if (chunk == last_chunk || chunk * q.taps() > limits.shared_bytes) continue;
        last_chunk = chunk;
        for (int m_frags = 2; m_frags <= (base.k_steps > 4 ? 2 : 4); m_frags *= 2) {
          Im2colForwardPlan p = base;
          p.reason = nullptr;
          p.m_frags = m_frags;
          p.v_rows = static_cast<int>(rows);
          p.v_columns = static_cast<int>(columns);
          p.chunk = static_cast<int>(chunk);
          if (!im2col::CompleteForward(&p, q, limits, element)) continue;
          p.tiles_h = static_cast<int>(CeilDiv(high, rows));
          p.tiles_w = static_cast<int>(CeilDiv(wide, columns));
          p.tiles = q.batch * p.tiles_h * p.tiles_w;
          if (p.tiles > kMax / 2 || p.tiles * q.groups > kMax) continue;
          ++fits;
          const double cost = im2col::ForwardCost(p, q, limits, element);
          if (cost >= least) continue;
          least = cost;
          best = p;
        }
        if (fits > 2) break;
      }
      if (fits == 0) break;
    }
  }
  return best;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_IM2COL_FORWARD_PLAN_H_
