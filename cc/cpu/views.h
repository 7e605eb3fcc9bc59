// Plans as plain data: what the kernels see. They hold no container, so that nothing from the
// standard library is instantiated in a file compiled for a newer instruction set, where the linker
// might pick that copy for everyone.
#ifndef TRANSCONV_CPU_VIEWS_H_
#define TRANSCONV_CPU_VIEWS_H_

#include <cstdint>

namespace transconv::cpu {

// One axis of a gather (forward and grad_input are gathers, see plan.h).
//
// The tensor on the side of y is split in `split` planes: its position o is element q of plane a
// with o = split*q + a - lo, 0 <= lo < split. The other side is one plane, split = 1, lo = 0.
struct SideView {
  int64_t split;
  int64_t lo;
  int64_t len;  // positions of the tensor
};

// Destination planes of one axis whose taps sit at the same shifts.
struct AxisClassView {
  int64_t num_residues;
  const int64_t* residues;  // the planes
  int64_t num_taps;
  const int64_t* shifts;  // source element = destination element + shift
  const int64_t* planes;  // index into AxisView::src_planes
  const int64_t* kernel;  // [residue][tap]: index of the tap in the weight
};

struct AxisView {
  SideView src;
  SideView dst;
  int64_t count;  // elements of a destination plane
  int64_t shift_min;
  int64_t span;  // largest shift minus shift_min
  int64_t num_src_planes;
  const int64_t* src_planes;
  int64_t num_classes;
  const AxisClassView* classes;
  int64_t tile;  // destination elements in a tile
  int64_t num_tiles;
};

// Some channels of one tensor, on their way into a packed tile.
struct SourceView {
  const void* data;
  bool channels_last;
  int64_t all_channels;  // of the tensor
  int64_t first_channel;
  int64_t channels;
  const AxisView* h;  // their src sides are this tensor
  const AxisView* w;
  int64_t image_rows;      // rows of one image in the packed tile
  int64_t pitch;           // of a row in the packed tile
  int64_t plane_stride;    // of a channel in the packed tile
  int64_t overlap;         // zeros after the last row
  int64_t plane_elements;  // of a source plane in the packed tile
};

// A product of two axis classes.
struct ClassView {
  const AxisClassView* h;
  const AxisClassView* w;
  int64_t num_planes;  // destination planes
  int64_t num_taps;
  const int64_t* offsets;  // per tap: where its source starts in the packed tile, for element 0
  int64_t first_plane;     // in the accumulator tile
  int64_t first_weight;    // of a chunk, per channel of the chunk and per reduced channel
};

struct GatherView {
  int64_t batch;
  int64_t groups;
  int64_t reduced;   // channels per group that are summed over
  int64_t produced;  // channels per group of the destination
  bool channels_last;
  AxisView h;
  AxisView w;
  int64_t num_classes;
  const ClassView* classes;
  int64_t num_planes;  // destination planes with taps
  int64_t taps;        // all taps
  int64_t kernel_w;
  int64_t weight_group;  // strides of the weight tensor
  int64_t weight_reduced;
  int64_t weight_produced;

  int64_t depth;  // reduced channels in the packed tile at a time
  int64_t num_depths;
  int64_t tile_n;  // images in a tile
  int64_t num_tiles_n;
  int64_t pitch;         // of a row in the packed tile
  int64_t overlap_w;     // zeros that follow the last row, for vectors that run over its end
  int64_t image_rows;    // rows of one image in the packed tile
  int64_t plane_stride;  // of a channel in the packed tile
  int64_t acc_pitch;     // of a channel and plane in the accumulator tile
  bool by_rows;          // vectors of positions start anew with every row
  int64_t chunk;         // produced channels in the accumulator tile
  int64_t num_chunks;
  int64_t chunks_per_item;
  int64_t num_chunk_items;
  int64_t packed_elements;  // of the packed source tile
  int64_t acc_elements;     // of the accumulator tile

  const void* src;
  void* dst;
  const void* weight;
  const void* bias;  // or null
  void* packed_weight;
};

// grad_weight as sums over the elements of x, with dy split in planes.
struct WeightGradView {
  int64_t batch;
  int64_t groups;
  int64_t in;  // channels per group
  int64_t out;
  bool channels_last;
  AxisView h;  // source: dy, destination: x; one class
  AxisView w;
  AxisView x_h;  // source: x, as one plane
  AxisView x_w;
  int64_t taps;
  int64_t kernel_w;

  int64_t chunk_in;
  int64_t num_chunks_in;
  int64_t chunk_out;
  int64_t num_chunks_out;
  int64_t tile_n;  // images in a unit
  int64_t units;   // tiles of the whole batch: (images, rows, columns)
  int64_t slices;  // partial sums, added in order
  int64_t x_pitch;
  int64_t x_stride;  // of a channel in the packed x
  int64_t y_pitch;
  int64_t y_stride;  // of a channel in the packed dy
  int64_t x_elements;
  int64_t y_elements;
  int64_t bias_chunk;  // channels per item of the bias gradient
  // x is read where it lies, rather than packed: its rows are whole vectors, its pitches the
  // tensor's.
  bool x_in_place;
  // Sums stay vectors until the item's last unit, rather than be summed across lanes after each.
  bool keep_lanes;
  // Channels innermost (weight_grad_wide.h) rather than positions (weight_grad.h). Then the pitches
  // are those of one position, and the strides are not used.
  bool wide;
  int64_t panel_in;        // channels of a chunk that are packed at a time
  int64_t wide_positions;  // that share the L1 cache; without `wide`, too
  int64_t acc_elements;

  const void* x;
  const void* dy;
  void* dw;
  void* db;       // or null
  void* partial;  // [slice][dw]
};

// Forward and grad_input from their definition, by axis as in geometry.h.
struct DirectAxisView {
  int64_t x;  // length on the side of x
  int64_t y;
  int64_t kernel, stride, dilation, crop_lo;
};

struct DirectView {
  bool forward;
  bool channels_last;
  int64_t batch, groups;
  int64_t reduced, produced;  // channels per group
  DirectAxisView h, w;
  int64_t weight_reduced, weight_produced, weight_group;  // strides of the weight

  const void* src;
  void* dst;
  const void* weight;
  const void* bias;  // or null
};

// Destination positions first, first + step, ... of one axis, which meet the same taps: element v
// reads source position v * source_step + offsets[t] for tap kernel[t].
struct PhaseView {
  int64_t first, step, count;
  int64_t source_step;
  int64_t num_taps;
  const int64_t* kernel;
  const int64_t* offsets;
  int64_t safe_begin, safe_end;  // elements that have all their sources inside the tensor
};

struct PhasesView {
  int64_t source_len, destination_len;
  int64_t num_phases;
  const PhaseView* phases;
};

// Channels last, one channel in and out per group.
struct DepthwiseView {
  int64_t batch;
  int64_t channels;
  int64_t taps;
  int64_t kernel_w;
  PhasesView h;
  PhasesView w;
  int64_t rows_per_item;
  int64_t items_per_image;
  int64_t slices;  // of grad_weight: partial sums, added in order

  const void* src;  // grad_weight: dy
  void* dst;
  const void* weight;  // grad_weight: x
  const void* bias;    // or null
  void* packed;        // [tap][channel]; grad_weight: [slice][channel][tap]
};

// The taps of destination positions phase, phase + num_phases, ... of a row.
struct RowTapsView {
  int64_t first;  // its first tap, counting those of all phases before it
  int64_t num_taps;
  const int64_t* offsets;  // in a split source row, of the source of element 0
};

// Depthwise with rows of one channel: forward and grad_input. A source row is split in `split`
// planes, element q of plane a being its position split*q + a, with zeros on both sides.
struct DepthwiseRowsView {
  int64_t images;  // planes of the tensors: batch times channels
  int64_t channels;
  int64_t taps;
  int64_t kernel_w;
  PhasesView h;

  int64_t source_len;  // along w
  int64_t destination_len;
  int64_t split;
  int64_t zeros;     // before element 0 of a plane
  int64_t elements;  // of a plane, from 0 on, beyond which no tap reaches
  int64_t plane_stride;
  int64_t row_stride;  // of all planes of a row
  int64_t num_rows;    // that are kept, a power of two: row i at place i modulo num_rows
  int64_t num_phases;  // along w
  const RowTapsView* phases;
  int64_t num_taps;       // along w, that some phase has
  const int64_t* kernel;  // of each of them, phase by phase: its index along w in the weight

  int64_t images_per_item;
  int64_t elements_per_item;  // along h, of all its phases
  int64_t items_per_image;
  int64_t rows_at_once;  // of a phase, for which rows enough are kept

  const void* src;
  void* dst;
  const void* weight;
  const void* bias;   // or null
  DirectView direct;  // for channels whose weights are not finite
};

}  // namespace transconv::cpu

#endif  // TRANSCONV_CPU_VIEWS_H_
