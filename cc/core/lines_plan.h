// Matrix products whose rows are read from lines of the image: the plan and its index arithmetic.
//
// Forward, a target pixel (s v + m) is the sum over channels and the taps of residue m of source
// pixels v - tau; the input gradient at i sums dy at s i + d k - lo over channels and all taps.
// Both are products of a matrix of pixels, whose entries are source pixels at `step` times the
// row's place plus an offset, and one of weights:
//
//     rows      128 places of a grid (of v, or of i): some images, rows and columns
//     sum       channels in slabs, each with all taps, in fours ("quads") of neighbouring channels
//               of one tap or, where the kernel's width allows, of neighbouring taps of one channel
//     columns   forward (o, r): channels and up to a stride of neighbouring residues with the same
//               shifts; else channels of x
//
// A window of a slab's channels is copied once, and all taps read it at their offsets. Forward,
// each residue of rows and each run of columns' residues is a "phase" with columns and quads of its
// own. Where a stride's residues are two such runs, both share a phase: as two halves of a thread's
// sums, which are neighbours in the target.
#ifndef TRANSCONV_CORE_LINES_PLAN_H_
#define TRANSCONV_CORE_LINES_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/divider.h"
#include "core/dtypes.h"
#include "core/geometry.h"

namespace transconv {

constexpr int kLinesRows = 128;     // places of a tile
constexpr int kLinesQuads = 320;    // of all phases, those that fill up pieces included
constexpr int kLinesPhases = 16;    // at most
constexpr int kLinesPlaces = 2048;  // copies of a channel's window
constexpr int kLinesCell = 16;      // bytes of a quad of one column
constexpr int kLinesControlBytes = 12288;
// Of sixteen columns' results, which a warp orders by their places in the target: sixteen rows with
// gaps, so that neighbouring lanes meet in different banks. Eight warps.
constexpr int kLinesOrderPitch = 20;
constexpr int kLinesOrderBytes = 16 * kLinesOrderPitch * 4;
constexpr int kLinesMostOrdered = 5;  // columns of a place
constexpr int kLinesWarps = kLinesRows / 16;
constexpr int kLinesNothing = -1;  // the offset of a quad that fills up a piece

// Four neighbouring elements of a slab's sum.
struct LinesQuad {
  int32_t offset;   // in the window, from a place's own pixel; elements
  int16_t channel;  // of the slab
  int16_t tap;      // ky * kw + kx, of the first residue
};

struct LinesPhase {
  int row = 0, column = 0;  // the first residue; forward alone, as the next two
  int residues = 1;         // neighbouring columns
  int halves = 1;           // 2: of a piece, some steps are of one residue, the others of the other
  int first_half = 0;       // which residues the former are: the lower ones, or the upper (1)
  int top = 0, left = 0;    // of the window, from `step` times the tile's first place
  int pieces = 0;           // of a slab
  int first_quad = 0;
  int columns = 0, column_tiles = 0;
  int64_t weights = 0;  // their first byte
};

// Threads that copy windows: more where sums leave them registers.
TRANSCONV_HOST_DEVICE constexpr int LinesCopiers(int instruction, int halves) {
  return instruction * halves <= 64 ? 224 : 96;
}
// Of a piece with two halves, the steps of the first one.
TRANSCONV_HOST_DEVICE constexpr int LinesFirstHalf(int steps) { return steps / 2; }

struct LinesPlan {
  int step_h = 1, step_w = 1;  // source pixels from one place to the next
  int grid_h = 0, grid_w = 0;
  int vector = 0;  // elements of one copy
  // A tile: images, rows and columns of the grid.
  int tile_n = 1, tile_h = 1, tile_w = 1;
  int row_tiles = 0;
  // A window: rows, source rows from one to the next, copies to a row, and elements from one
  // channel to the next.
  int rows = 0, row_step = 1, copies = 0, channel_pitch = 0;
  int slab_channels = 0, slabs = 0;
  int steps = 0;            // of a piece: instructions of eight products
  bool along_taps = false;  // quads are neighbouring taps
  int instruction = 0;      // columns of an instruction
  int splits = 1;           // blocks that share a tile's slabs
  int products = 1;         // 3: of values in two parts, as accurate as float32
  bool ordered = false;  // results pass through shared memory, to leave as they lie in the target
  int line_stages = 0, weight_stages = 0;
  int phases = 0;
  int quads = 0;
  LinesPhase phase[kLinesPhases];
  LinesQuad quad[kLinesQuads];
  int64_t workspace_bytes = 0;

  int row_pitch() const { return copies * vector; }
  int image_pitch() const { return rows * row_pitch(); }
  int places() const { return tile_n * rows * copies; }
  int lane_pitch() const { return along_taps ? 1 : channel_pitch; }  // within a quad
  int line_bytes() const { return slab_channels * channel_pitch * 4; }
  int parts() const { return products == 3 ? 2 : 1; }  // of a weight
  int piece_bytes() const { return parts() * 2 * steps * instruction * kLinesCell; }
  int64_t tiles() const {
    int64_t n = 0;
    for (int i = 0; i < phases; ++i) n += int64_t{row_tiles} * phase[i].column_tiles;
    return n;
  }
  int order_bytes() const { return ordered ? kLinesWarps * kLinesOrderBytes : 0; }
  int stages_bytes() const { return line_stages * line_bytes() + weight_stages * piece_bytes(); }
  int shared_bytes() const { return kLinesControlBytes + order_bytes() + stages_bytes(); }
};

namespace lines {

constexpr int kSharedBytes = 227 * 1024;
constexpr int kMostStages = 8;

// One axis of one residue, or of the input gradient: taps and their offsets in the source.
struct Offsets {
  int lo = std::numeric_limits<int>::max(), hi = std::numeric_limits<int>::min();
  int count = 0;
  void Add(int offset) {
    lo = std::min(lo, offset);
    hi = std::max(hi, offset);
    ++count;
  }
};
inline int OffsetOf(const Axis& axis, bool forward, int64_t k) {
  return static_cast<int>(forward ? -axis.TapOf(k).shift : axis.dilation * k - axis.crop_lo);
}
// Whether a tap is one of a phase's residue; the input gradient has one phase.
inline bool Has(const Axis& axis, bool forward, int64_t k, int residue) {
  return !forward || axis.TapOf(k).residue == residue;
}
inline std::vector<Offsets> OffsetsOf(const Axis& axis, bool forward) {
  std::vector<Offsets> residues(forward ? static_cast<size_t>(axis.stride) : 1);
  for (int64_t k = 0; k < axis.kernel; ++k) {
    const int64_t residue = forward ? axis.TapOf(k).residue : 0;
    residues[static_cast<size_t>(residue)].Add(OffsetOf(axis, forward, k));
  }
  return residues;
}
// Of a pass, each residue's taps. Forward, `halves`: those of columns are two halves, each with the
// same shifts, as with kernels of twice the stride, cropped by half of it on either side. Of more
// residues one run alone fills sectors.
struct Residues {
  std::vector<Offsets> rows, columns;
  bool dense;  // neighbouring residues with the same shifts have neighbouring taps
  bool halves;

  Residues(const Problem& q, bool forward)
      : rows(OffsetsOf(q.h, forward)),
        columns(OffsetsOf(q.w, forward)),
        dense(q.w.dilation == 1),
        halves(forward && columns.size() % 2 == 0 && columns.size() <= 16) {
    const size_t half = columns.size() / 2;
    for (size_t i = 1; halves && i < columns.size(); ++i) halves = i == half || Same(i);
  }
  // Whether a residue of columns has the same shifts as the one before.
  bool Same(size_t i) const {
    const Offsets &a = columns[i - 1], &b = columns[i];
    return dense && a.lo == b.lo && a.hi == b.hi && a.count == b.count;
  }
  // Whether all columns of a place are one run of the target, of three or five, which no vector of
  // two divides: stored from the registers, each result would be a write of its own.
  bool Ordered() const {
    for (size_t i = 1; i < columns.size(); ++i) {
      if (!Same(i)) return false;
    }
    return columns.size() > 1 && columns.size() <= kLinesMostOrdered && !halves;
  }
  bool Complete() const {
    const auto has = [](const Offsets& o) { return o.count > 0; };
    return std::all_of(rows.begin(), rows.end(), has) &&
           std::all_of(columns.begin(), columns.end(), has);
  }
};

inline int PowerOfTwoFrom(int64_t n, int most) {
  int p = 1;
  while (p < n && p < most) p *= 2;
  return p;
}

// The quads of one residue of a phase.
inline std::vector<LinesQuad> QuadsOf(const Problem& q, bool forward, const LinesPhase& phase,
                                      int residue, const LinesPlan& plan) {
  std::vector<LinesQuad> quads;
  const int channels = plan.along_taps ? 1 : 4, taps = plan.along_taps ? 4 : 1;
  for (int64_t c = 0; c < plan.slab_channels; c += channels) {
    for (int64_t ky = 0; ky < q.h.kernel; ++ky) {
      if (!Has(q.h, forward, ky, phase.row)) continue;
      const int y = OffsetOf(q.h, forward, ky) - phase.top;
      for (int64_t kx = 0; kx < q.w.kernel; kx += taps) {
        if (!Has(q.w, forward, kx, residue)) continue;
        const int x = OffsetOf(q.w, forward, kx) - phase.left;
        const int row = y / plan.row_step;
        quads.push_back({static_cast<int32_t>(c * plan.channel_pitch + row * plan.row_pitch() + x),
                         static_cast<int16_t>(c), static_cast<int16_t>(ky * q.w.kernel + kx)});
      }
    }
  }
  return quads;
}
// Those of a phase from `first` on, filled up to whole pieces. False where there are too many.
inline bool AddQuads(const Problem& q, bool forward, int first, LinesPhase* phase,
                     LinesPlan* plan) {
  std::vector<LinesQuad> halves[2];
  int steps[2] = {plan->steps, 0};  // of a piece
  for (int half = 0; half < phase->halves; ++half) {
    halves[half] = QuadsOf(q, forward, *phase, phase->column + half * phase->residues, *plan);
  }
  if (phase->halves == 2) {
    // The first half has no more steps than the second one.
    phase->first_half = halves[0].size() > halves[1].size();
    if (phase->first_half != 0) halves[0].swap(halves[1]);
    steps[0] = LinesFirstHalf(plan->steps);
    steps[1] = plan->steps - steps[0];
  }
  phase->first_quad = first;
  phase->pieces = 0;
  for (int half = 0; half < phase->halves; ++half) {
    const int64_t quads = static_cast<int64_t>(halves[half].size());
    phase->pieces = std::max(phase->pieces, static_cast<int>(CeilDiv(quads, 2 * steps[half])));
  }
  if (first + phase->pieces * 2 * plan->steps > kLinesQuads) return false;
  size_t at[2] = {0, 0};
  for (int piece = 0; piece < phase->pieces; ++piece) {
    for (int half = 0; half < phase->halves; ++half) {
      for (int i = 0; i < 2 * steps[half]; ++i, ++at[half]) {
        plan->quad[first++] = at[half] < halves[half].size() ? halves[half][at[half]]
                                                             : LinesQuad{kLinesNothing, 0, 0};
      }
    }
  }
  return true;
}

// The phases with their quads, windows and weights, where the plan has its tile, slab, steps and
// instruction. False where something does not fit.
inline bool SetPhases(const Problem& q, bool forward, const Residues& of, LinesPlan* plan) {
  const int columns = static_cast<int>(of.columns.size());
  // Windows of all phases have the same size.
  int high = 0, wide = 0;
  plan->phases = 0;
  for (size_t row = 0; row < of.rows.size(); ++row) {
    const Offsets& y = of.rows[row];
    for (int column = 0; column < columns;) {
      if (plan->phases == kLinesPhases) return false;
      LinesPhase& phase = plan->phase[plan->phases++];
      phase = LinesPhase{};
      phase.row = static_cast<int>(row);
      phase.column = column;
      Offsets x = of.columns[static_cast<size_t>(column)];
      if (of.halves) {
        const Offsets& other = of.columns[static_cast<size_t>(columns / 2)];
        x.lo = std::min(x.lo, other.lo);
        x.hi = std::max(x.hi, other.hi);
        phase.halves = 2;
        phase.residues = columns / 2;
        column = columns;
      } else {
        while (++column < columns && of.Same(static_cast<size_t>(column))) ++phase.residues;
      }
      if (int64_t{y.count} * x.count * plan->slab_channels / 4 > kLinesQuads) return false;
      phase.top = y.lo;
      phase.left = static_cast<int>(FloorDiv(x.lo, plan->vector)) * plan->vector;
      high = std::max(high, y.hi - y.lo);
      wide = std::max(wide, x.hi - phase.left);
      phase.columns = static_cast<int>(forward ? q.out_channels * phase.residues : q.in_channels);
    }
  }
  // Rows that no tap reads are not copied.
  plan->row_step = 1;
  if (!forward) {
    const int dilation = static_cast<int>(q.h.dilation);
    plan->row_step = plan->tile_h == 1 ? dilation : std::gcd(dilation, plan->step_h);
  }
  plan->rows = ((plan->tile_h - 1) * plan->step_h + high) / plan->row_step + 1;
  plan->copies =
      static_cast<int>(CeilDiv((plan->tile_w - 1) * plan->step_w + wide + 1, plan->vector));
  if (int64_t{plan->tile_n} * plan->rows * plan->copies > kLinesPlaces) return false;
  // Lanes of a quad and neighbouring places meet in different banks of shared memory, if they can.
  int pitch = plan->tile_n * plan->image_pitch();
  if (!plan->along_taps) {
    const int want = plan->step_w == 2 ? 16 : 8;
    while (pitch % 32 != want) ++pitch;
  } else {
    pitch = static_cast<int>(CeilDiv(pitch, 4)) * 4;
  }
  plan->channel_pitch = pitch;

  plan->quads = 0;
  int64_t bytes = 0;
  for (int i = 0; i < plan->phases; ++i) {
    LinesPhase& phase = plan->phase[i];
    if (!AddQuads(q, forward, plan->quads, &phase, plan)) return false;
    plan->quads += phase.pieces * 2 * plan->steps;
    phase.column_tiles = static_cast<int>(CeilDiv(phase.columns, plan->instruction));
    phase.weights = bytes;
    bytes += int64_t{phase.column_tiles} * plan->slabs * phase.pieces * plan->piece_bytes();
  }
  plan->workspace_bytes = bytes;
  // What takes longest comes first, so that blocks end together.
  std::stable_sort(plan->phase, plan->phase + plan->phases,
                   [](const LinesPhase& a, const LinesPhase& b) { return a.pieces > b.pieces; });
  return true;
}

// How many stages there is room for: of lines two to four, of weights the rest.
inline bool SetStages(LinesPlan* plan) {
  const int room = kSharedBytes - kLinesControlBytes - plan->order_bytes();
  int pieces = 0;
  for (int i = 0; i < plan->phases; ++i) pieces = std::max(pieces, plan->phase[i].pieces);
  for (int stages = pieces >= 4 ? 2 : 4; stages >= 2; --stages) {
    const int left = (room - stages * plan->line_bytes()) / plan->piece_bytes();
    if (room < stages * plan->line_bytes() || left < 3) continue;
    plan->line_stages = stages;
    plan->weight_stages = std::min(left, kMostStages);
    return true;
  }
  return false;
}

// Whether the sums of a tile have room where its stages were.
inline bool HasRoomForParts(const LinesPlan& g) {
  const int sums = kLinesRows * g.instruction * g.phase[0].halves * 4;
  return g.stages_bytes() >= sums;
}

// Cycles of the busiest multiprocessor, fitted to 2108 programmes of 57 passes with one product and
// 96 copiers (benchmarks/NOTES.md), and taken for the others, too: of a slab products, reads of the
// L2 cache or instructions of copies; then the stores.
inline double Cost(const LinesPlan& g, bool forward, int multiprocessors) {
  const int copiers = LinesCopiers(g.instruction, g.phase[0].halves);
  const int places = g.places(), together = std::max(1, copiers / places);
  const double copies =
      static_cast<double>(CeilDiv(places, copiers) * CeilDiv(g.slab_channels, together));
  // Memory is read in lines of 128 bytes, of which a row of the window begins and ends some.
  const double read = 128.0 * g.slab_channels * g.tile_n * g.rows * (g.row_pitch() / 32.0 + 1);
  const int64_t turns = g.splits > 1 ? g.tiles() : multiprocessors;
  double sum = 0;
  int64_t at = 0;  // tiles before
  // Block 0 has the first tile of every turn.
  for (int i = 0; i < g.phases; ++i) {
    const LinesPhase& phase = g.phase[i];
    const double products = g.products * g.steps * (0.633 * g.instruction + 81) + 143;
    const double slab =
        208 + std::max({phase.pieces * products,
                        (0.98 * read + phase.pieces * g.piece_bytes()) / 34, 46 * copies + 446});
    const double store = 2040 + (forward ? 22 : 30) * g.instruction * phase.halves;
    const int64_t tiles = int64_t{g.row_tiles} * phase.column_tiles;
    const int64_t first = CeilDiv(at, turns), end = CeilDiv(at + tiles, turns);
    sum += static_cast<double>(end - first) *
           (slab * static_cast<double>(CeilDiv(g.slabs, g.splits)) + store);
    at += tiles;
  }
  return sum + 5420 + 0.12 * g.line_bytes() + (g.splits > 1 ? 855 + 3430 * g.splits : 0);
}

}  // namespace lines

// Why no such product does a pass, or null.
inline const char* CannotLines(const Problem& q, Pass pass, DType dtype) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (dtype != DType::kF32) return "multiplies float32";
  if (q.precision != Precision::kDefault && pass == Pass::kForward) {
    return "has precision HIGH and HIGHEST for gradients of x alone";
  }
  if (q.layout != Layout::kNCHW) return "reads lines of one channel: NCHW alone";
  if (q.groups != 1) return "has no groups";
  constexpr int64_t kInt = std::numeric_limits<int32_t>::max();
  const int64_t x = q.h.in * q.w.in, y = q.h.out * q.w.out;
  if (q.batch > kInt / kLinesRows || std::max(x, y) > kInt / 8 ||
      std::max(q.in_channels * x, q.out_channels * y) > kInt ||
      q.in_channels * q.out_channels * q.taps() > kInt) {
    return "an image or its weights exceed 32-bit offsets";
  }
  // Taps are counted in 16 bits; of more residues the search for a plan takes long.
  constexpr int64_t kFar = 1 << 12, kMostTaps = 1 << 12, kMostResidues = 64;
  if (q.taps() > kMostTaps || std::max(q.in_channels, q.out_channels) > kInt / 64) {
    return "too many taps or channels";
  }
  for (const Axis* axis : {&q.h, &q.w}) {
    if (axis->kernel * axis->dilation > kFar || axis->stride > kMostResidues ||
        axis->in * axis->stride > kInt / 2 || axis->crop_lo > kFar || axis->crop_lo < -kFar) {
      return "a tap is too far";
    }
  }
  return nullptr;
}

namespace lines {

// Calls `visit` with every plan whose copies are of at most `vector` bytes.
template <typename Visit>
void ForEachPlan(const Problem& q, bool forward, int multiprocessors, int vector, Visit visit) {
  LinesPlan g;
  g.step_h = forward ? 1 : static_cast<int>(q.h.stride);
  g.step_w = forward ? 1 : static_cast<int>(q.w.stride);
  g.grid_h = static_cast<int>(forward ? CeilDiv(q.h.out, q.h.stride) : q.h.in);
  g.grid_w = static_cast<int>(forward ? CeilDiv(q.w.out, q.w.stride) : q.w.in);
  g.vector = vector / 4;
  while ((forward ? q.w.in : q.w.out) % g.vector != 0) g.vector /= 2;
  g.along_taps = !forward && q.w.kernel % 4 == 0 && q.w.dilation == 1;
  g.products = q.precision == Precision::kDefault ? 1 : 3;
  const int64_t channels = forward ? q.in_channels : q.out_channels;
  const int64_t image = channels * (forward ? q.h.in * q.w.in : q.h.out * q.w.out);
  const Residues of(q, forward);
  if (!of.Complete()) return;
  // Sums of three products take twice the registers, their weights twice the memory.
  const bool three = g.products == 3;
  const int narrowest = three ? 32 : 64, widest = three ? 64 : of.halves ? 128 : 256;
  for (g.tile_w = 8; g.tile_w <= kLinesRows; g.tile_w *= 2) {
    if (g.tile_w > 8 && g.tile_w >= 2 * g.grid_w) break;
    g.tile_h = PowerOfTwoFrom(g.grid_h, kLinesRows / g.tile_w);
    g.tile_n = kLinesRows / g.tile_w / g.tile_h;
    if (g.tile_n * image > std::numeric_limits<int32_t>::max()) continue;
    const int64_t row_tiles =
        CeilDiv(q.batch, g.tile_n) * CeilDiv(g.grid_h, g.tile_h) * CeilDiv(g.grid_w, g.tile_w);
    if (row_tiles > std::numeric_limits<int32_t>::max() / 2) continue;
    g.row_tiles = static_cast<int>(row_tiles);
    g.ordered = of.Ordered() && g.tile_w >= 16;  // a warp's places are one run
    for (g.slab_channels = g.along_taps ? 2 : 4; g.slab_channels <= 32; g.slab_channels *= 2) {
      g.slabs = static_cast<int>(CeilDiv(channels, g.slab_channels));
      for (g.steps = 3; g.steps <= 4; ++g.steps) {
        for (g.instruction = narrowest; g.instruction <= widest; g.instruction *= 2) {
          if (!SetPhases(q, forward, of, &g) || !SetStages(&g)) continue;
          if (g.tiles() > std::numeric_limits<int32_t>::max() / 2) continue;
          for (g.splits = 1; g.splits <= 8; g.splits *= 2) {
            // Clusters of four and more do not fill every part of the machine.
            const int64_t most = g.splits > 2 ? multiprocessors * 7 / 8 : multiprocessors;
            const bool cut = g.splits <= g.slabs && g.tiles() * g.splits <= most;
            if (g.splits == 1 || (cut && HasRoomForParts(g))) visit(g);
          }
        }
      }
    }
  }
}

}  // namespace lines

// The best plan whose copies are of at most `vector` bytes. Returns why there is none, or null.
inline const char* PlanLines(const Problem& q, Pass pass, DType dtype, int multiprocessors,
                             int vector, LinesPlan* plan) {
  if (const char* reason = CannotLines(q, pass, dtype)) return reason;
  const bool forward = pass == Pass::kForward;
  double least = std::numeric_limits<double>::infinity();
  lines::ForEachPlan(q, forward, multiprocessors, vector, [&](const LinesPlan& g) {
    const double cost = lines::Cost(g, forward, multiprocessors);
    if (cost < least) {
      least = cost;
      *plan = g;
    }
  });
  if (least == std::numeric_limits<double>::infinity()) {
    return "no window of its taps fits, or a residue has none";
  }
  return nullptr;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_LINES_PLAN_H_
