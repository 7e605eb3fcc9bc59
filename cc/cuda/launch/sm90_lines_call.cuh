// What a call of the Hopper matrix product of lines passes to its two kernels.
#ifndef TRANSCONV_CUDA_LAUNCH_SM90_LINES_CALL_CUH_
#define TRANSCONV_CUDA_LAUNCH_SM90_LINES_CALL_CUH_

#include <algorithm>
#include <cstdint>

#include "core/geometry.h"
#include "core/lines_plan.h"
#include "cuda/call.h"
#include "cuda/kernels/pack_lines.cuh"
#include "cuda/kernels/sm90_lines_params.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv::cuda::sm90_lines {

static_assert(lines::kSharedBytes == kSm90SharedBytes);

// Whether vectors of so many columns begin at whole ones of the target.
inline bool StoresVectors(const Call& call, int columns) {
  const Axis& w = call.problem.w;
  return call.pass == Pass::kForward && w.stride % columns == 0 && w.out % columns == 0 &&
         Aligned(call.y, 4 * columns) == 4 * columns;
}
// How many neighbouring columns, of one half, a thread may store at once.
inline int StoreOf(const Call& call, const LinesPlan& g) {
  for (const int columns : {4, 2}) {
    const bool whole = std::all_of(g.phase, g.phase + g.phases, [&](const LinesPhase& phase) {
      return phase.column % columns == 0 && phase.residues % columns == 0;
    });
    if (whole && StoresVectors(call, columns)) return columns;
  }
  return 1;
}

inline PackLinesParams PackParamsOf(const Call& call, const LinesPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const int taps = static_cast<int>(q.taps()), row = static_cast<int>(q.out_channels) * taps;
  PackLinesParams p{};
  p.weight = static_cast<const float*>(call.w);
  p.channels = static_cast<int>(forward ? q.in_channels : q.out_channels);
  p.column_stride = forward ? taps : row;
  p.channel_stride = forward ? row : taps;
  p.slab_channels = g.slab_channels;
  p.slabs = g.slabs;
  p.instruction = g.instruction;
  p.blocks_a_piece = static_cast<int>(CeilDiv(g.instruction, kPackLinesThreads));
  p.along_taps = g.along_taps;
  // Taps of a row are a multiple of four, all its residues one phase.
  p.vectors = g.along_taps && Aligned(call.w, 16) == 16;
  p.fours = StoreOf(call, g) == 4;
  p.phases = g.phases;
  int blocks = 0;
  for (int i = 0; i < g.phases; ++i) {
    const LinesPhase& from = g.phase[i];
    PackLinesParams::Phase& phase = p.phase[i];
    const int pieces = from.pieces;
    blocks += from.column_tiles * g.slabs * pieces * p.blocks_a_piece;
    phase.packed = static_cast<uint8_t*>(call.workspace) + from.weights;
    phase.pieces = pieces;
    phase.first_quad = from.first_quad;
    phase.columns = from.columns;
    phase.blocks = blocks;
    phase.by_piece = Divider(pieces);
    phase.by_slab = Divider(g.slabs);
    phase.by_residue = Divider(from.residues);
  }
  std::copy(g.quad, g.quad + g.quads, p.quad);
  return p;
}
inline unsigned PackBlocks(const PackLinesParams& p) {
  return static_cast<unsigned>(p.phase[p.phases - 1].blocks);
}

inline LinesParams ParamsOf(const Call& call, const LinesPlan& g) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  const auto logarithm = [](int v) {
    int n = 0;
    while ((1 << n) < v) ++n;
    return n;
  };
  LinesParams p{};
  p.source = static_cast<const float*>(forward ? call.x : call.y);
  p.target = static_cast<float*>(forward ? call.y : call.x);
  p.bias = static_cast<const float*>(call.vector);
  p.batch = static_cast<int>(q.batch);
  p.channels = static_cast<int>(forward ? q.in_channels : q.out_channels);
  p.source_h = static_cast<int>(forward ? q.h.in : q.h.out);
  p.source_w = static_cast<int>(forward ? q.w.in : q.w.out);
  p.step_h = g.step_h;
  p.step_w = g.step_w;
  p.source_channel = p.source_h * p.source_w;
  p.source_image = int64_t{p.channels} * p.source_channel;
  p.tile_n = g.tile_n;
  p.tile_h = g.tile_h;
  p.tile_w = g.tile_w;
  p.log_tile_h = logarithm(g.tile_h);
  p.log_tile_w = logarithm(g.tile_w);
  p.by_tile_w = Divider(CeilDiv(g.grid_w, g.tile_w));
  p.by_tile_h = Divider(CeilDiv(g.grid_h, g.tile_h));
  p.places = g.places();
  p.vector = g.vector;
  p.row_pitch = g.row_pitch();
  p.image_pitch = g.image_pitch();
  p.channel_pitch = g.channel_pitch;
  p.row_step = g.row_step;
  p.place_step_h = g.tile_h == 1 ? 0 : g.step_h / g.row_step;
  p.lane_pitch = g.lane_pitch();
  p.by_place = Divider(g.places());
  p.by_copy = Divider(g.copies);
  p.by_row = Divider(g.rows);
  p.slab_channels = g.slab_channels;
  p.slabs = g.slabs;
  p.splits = g.splits;
  p.line_stages = g.line_stages;
  p.weight_stages = g.weight_stages;
  p.line_bytes = g.line_bytes();
  p.target_h = static_cast<int>(forward ? q.h.out : q.h.in);
  p.target_w = static_cast<int>(forward ? q.w.out : q.w.in);
  p.to_step_h = static_cast<int>(forward ? q.h.stride : 1);
  p.to_step_w = static_cast<int>(forward ? q.w.stride : 1);
  p.by_step = Divider(p.to_step_w);
  p.target_channel = p.target_h * p.target_w;
  p.target_image = (forward ? q.out_channels : q.in_channels) * p.target_channel;
  p.store = StoreOf(call, g);
  p.ordered = g.ordered;
  p.half = g.phase[0].residues;
  p.joined = g.phase[0].halves == 2 && p.half == p.store && p.store <= 2 &&
             StoresVectors(call, 2 * p.store);
  p.phases = g.phases;
  int tiles = 0;
  for (int i = 0; i < g.phases; ++i) {
    const LinesPhase& from = g.phase[i];
    Phase& phase = p.phase[i];
    tiles += g.row_tiles * from.column_tiles;
    phase.weights = static_cast<const uint8_t*>(call.workspace) + from.weights;
    phase.row = from.row;
    phase.column = from.column;
    phase.top = from.top;
    phase.left = from.left;
    phase.pieces = from.pieces;
    phase.first_quad = from.first_quad;
    phase.first_half = from.first_half;
    phase.columns = from.columns;
    phase.tiles = tiles;
    phase.by_column_tile = Divider(from.column_tiles);
    phase.by_residue = Divider(from.residues);
  }
  p.tiles = tiles;
  p.filled = true;
  for (int i = 0; i < g.quads; ++i) {
    const bool nothing = g.quad[i].offset == kLinesNothing;
    p.quad[i] = nothing ? kLinesNothing : 4 * g.quad[i].offset;
    p.filled = p.filled && !nothing;
  }
  return p;
}
inline unsigned Blocks(const LinesParams& p, int multiprocessors) {
  return static_cast<unsigned>(p.splits > 1 ? p.tiles * p.splits
                                            : std::min(multiprocessors, p.tiles));
}

}  // namespace transconv::cuda::sm90_lines

#endif  // TRANSCONV_CUDA_LAUNCH_SM90_LINES_CALL_CUH_
