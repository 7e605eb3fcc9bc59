// The direct kernel: the forward pass and the gradient of x of problems with few channels a group,
// or few on one side, on the ordinary float units, for every stride, dilation, crop and layout.
//
// Of a matrix product such problems leave nothing to share but the image's own overlap, and the
// general kernel (simt.cuh) spends its time on finding operands. Here a block loads a tile of the
// source with its halo and its weights once into shared memory (core/direct_plan.h has their
// order); what a target's taps read is then a constant distance from one to the next:
//
//  * Lanes are neighbouring target columns, so that stores are whole sectors whatever the stride.
//    Forward with stride s, neighbours read the same cells and other weights, which shared memory
//    broadcasts; grad_input reads neighbouring cells of a plane and one weight.
//  * A thread's item is RM channels at four positions of the same taps, so that four loads of a
//    cell and RM / 4 of weights feed 4 RM multiply-adds. One channel a group has one product a
//    load, but there memory is the limit.
//  * Columns and rows of items have a table of where their taps start: a division is done once a
//    block, not once a thread. A residue without taps has a count of zero and stores the bias.
//  * Where results are few, slices of the block's threads take different tap columns and channels
//    of the same items, so that a sum of thousands of products is not one thread's chain of loads.
//    Their sums meet in shared memory, where each slice adds up some of an item's results.
//    Neighbouring slices read neighbouring planes, whose cells lie side by side.
//
// Channels that are summed come in chunks where shared memory does not hold them all, and so do the
// tap rows of grad_input. Every sum has a fixed order. Offsets inside a tile are 32-bit, those of
// the tensors 64-bit. A block is of one image: of images of a few pixels it is too small a share.
#ifndef TRANSCONV_CUDA_KERNELS_DIRECT_CUH_
#define TRANSCONV_CUDA_KERNELS_DIRECT_CUH_

#include <cstdint>

#include "core/direct_plan.h"
#include "core/geometry.h"
#include "cuda/kernels/direct_sums.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::direct {

// Where an item's row or column starts: cell of the tile and place in the weights of its first tap,
// how many taps follow each other, and the target.
struct alignas(16) Start {
  int cell, weight, taps, target;
};

// Source row and column of the tile's first cell, and the first of the tap rows in shared memory.
struct Origin {
  int row, column, tap;
};

// Loads `channels` channels of the tile. `load_lanes` threads share a line: the cells of a row or,
// where channels are innermost, the channels of a cell.
template <typename E, bool kForward>
__device__ inline void LoadTile(typename E::Sum* tile, const typename E::Type* image,
                                const Origin& origin, int channels, const DirectPlan& p) {
  int first = static_cast<int>(threadIdx.x);
  const int lane = p.by_load_lanes.Split(first);
  const int step = p.load_lines;
  const int scale_h = kForward ? 1 : p.h.stride, scale_w = kForward ? 1 : p.w.stride;
  const int cells = p.planes_h * p.rows;
  if (p.channels_last) {
    for (int line = first; line < cells * p.row_pitch; line += step) {
      int rest = line;
      const int plane_w = p.by_planes_w.Split(rest), at_column = p.by_columns.Split(rest);
      const int at_row = p.by_rows.Split(rest), plane_h = rest;
      const int row = origin.row + at_row * scale_h + plane_h * p.h.dilation;
      const int column = origin.column + at_column * scale_w + plane_w * p.w.dilation;
      const bool inside = row >= 0 && row < p.h.source && column >= 0 && column < p.w.source;
      const typename E::Type* from = image + row * p.image.row + column * p.image.column;
      typename E::Sum* to =
          tile + (plane_h * p.rows + at_row) * p.row_pitch + plane_w * p.columns + at_column;
      for (int c = lane; c < channels; c += p.load_lanes) {
        to[c * p.channel_pitch] = inside ? E::Load(from + c) : typename E::Sum(0);
      }
    }
    return;
  }
  // A line goes through all its planes at once, in the order of memory. With a step of
  // `load_lanes` the plane goes on by `plane_step`, and by one column more where it wraps.
  int lane_column = lane, step_column = p.load_lanes;
  const int lane_plane = kForward ? 0 : p.by_planes_w.Split(lane_column);
  const int step_plane = kForward ? 0 : p.by_planes_w.Split(step_column);
  const int lane_source = origin.column + lane_column * scale_w + lane_plane * p.w.dilation;
  const int step_source = step_column * scale_w + step_plane * p.w.dilation;
  const int wrap_source = scale_w - p.planes_w * p.w.dilation;
  const int lane_cell = lane_plane * p.columns + lane_column;
  const int step_cell = step_plane * p.columns + step_column;
  const int wrap_cell = 1 - p.row_pitch;
  for (int line = first; line < cells * channels; line += step) {
    int rest = line;
    const int at_row = p.by_rows.Split(rest);
    const int plane_h = kForward ? 0 : p.by_planes_h.Split(rest);
    const int row = origin.row + at_row * scale_h + plane_h * p.h.dilation;
    const unsigned width = row >= 0 && row < p.h.source ? p.w.source : 0;  // none outside
    const typename E::Type* from = image + rest * p.image.channel + row * p.image.row;
    typename E::Sum* to = tile + rest * p.channel_pitch + (plane_h * p.rows + at_row) * p.row_pitch;
    int plane = lane_plane, column = lane_source, cell = lane_cell;
#pragma unroll 4
    for (int e = lane; e < p.row_pitch; e += p.load_lanes) {
      to[cell] =
          static_cast<unsigned>(column) < width ? E::Load(from + column) : typename E::Sum(0);
      plane += step_plane;
      column += step_source;
      cell += step_cell;
      if (!kForward && plane >= p.planes_w) {
        plane -= p.planes_w;
        column += wrap_source;
        cell += wrap_cell;
      }
    }
  }
}

// Loads the weights of `channels` channels c and of the block's channels m, of which `m_left` are
// there, and of tap rows origin.tap, origin.tap + tap_step and so on.
template <typename E, int RM, bool kSliced>
__device__ inline void LoadWeights(typename E::Sum* weights, const typename E::Type* weight,
                                   const Origin& origin, int tap_step, int channels, int m_left,
                                   const DirectPlan& p) {
  constexpr int kPadded = DirectPadded(RM);
  const int width = p.m_groups * RM;
  const int size = p.tap_rows * p.w.kernel * width * channels;
  // Slices are for few blocks, which do not hide each other's loads: four are on their way.
#pragma unroll(kSliced ? 4 : 1)
  for (int e = threadIdx.x; e < size; e += p.threads) {
    int c = e;
    const int tap = p.by_load_taps.Split(c), m = p.by_load_m.Split(c);
    int row = tap;
    const int column = p.by_kernel_w.Split(row);
    row = origin.tap + tap_step * row;
    weights[tap * p.tap_pitch + (c * p.m_groups + m / RM) * kPadded + m % RM] =
        row < p.h.kernel && m < m_left
            ? E::Load(weight + m * p.weight_m + c * p.weight_c + row * p.w.kernel + column)
            : typename E::Sum(0);
  }
}

// E has the element's Type, its Sum, and Load and Store between them.
// Sliced kernels have one round of items: thread = slice * items + item.
template <typename E, int RM, Pass kPass, bool kSliced>
__global__ void __launch_bounds__(kDirectThreads, sizeof(typename E::Sum) == 4 ? 3 : 2)
    DirectKernel(const typename E::Type* __restrict__ image,
                 const typename E::Type* __restrict__ weight,
                 const typename E::Type* __restrict__ bias, typename E::Type* __restrict__ target,
                 const __grid_constant__ DirectPlan p) {
  using A = typename E::Sum;
  constexpr bool kForward = kPass == Pass::kForward;
  constexpr int kPadded = DirectPadded(RM);
  A* tile = reinterpret_cast<A*>(SharedMemory());
  A* weights = tile + p.tile_cells;
  Start* row_starts = reinterpret_cast<Start*>(weights + p.weight_cells);
  Start* column_starts = row_starts + p.row_entries;

  const DirectBlock block(p, static_cast<int>(blockIdx.x));
  image += block.image * p.image.batch + static_cast<int64_t>(block.group) * p.c * p.image.channel;
  weight += block.group * p.weight_group + block.m * p.weight_m;
  const int64_t first_m = static_cast<int64_t>(block.group) * p.m + block.m;
  target += block.image * p.target.batch + first_m * p.target.channel;
  const int m_left = p.m - block.m;

  // A block of one residue holds only that residue's tap rows.
  Origin origin{0, 0, 0};
  int tap_step = 1;
  bool has_taps = true;
  Hops hop;
  if (kForward) {
    origin.row = p.h.FirstSource(block.row);
    origin.column = p.w.FirstSource(block.column);
    if (!p.all_residues) {
      const DirectAxis::Taps taps = p.h.TapsOf(block.row);
      origin.tap = taps.first;
      tap_step = p.h.step;
      has_taps = taps.count > 0;
    }
    hop.cell_row = -p.h.hop * p.row_pitch;
    hop.cell_column = -p.w.hop;
    hop.weight_row = (p.all_residues ? p.h.step : 1) * p.w.kernel * p.tap_pitch;
  } else {
    origin.column = block.column * p.w.stride - p.w.crop;
    hop.cell_row = p.h.hop * p.row_pitch;
    hop.cell_column = p.w.hop;
    hop.weight_row = p.h.step * p.w.kernel * p.tap_pitch;
  }
  hop.weight_column = p.w.step * p.tap_pitch;
  hop.cell_channel = p.hop_channel_cell;
  hop.weight_channel = p.hop_channel_weight;

  // A slice starts at its own column and channel, and goes on past those of the others.
  int slice = 0, slice_w = 0, slice_c = 0, slice_cell = 0, slice_weight = 0;
  if constexpr (kSliced) {
    int item = static_cast<int>(threadIdx.x);
    p.by_items.Split(item);
    slice = slice_c = item;
    slice_w = p.by_slices_w.Split(slice_c);
    slice_cell = slice_c * p.channel_pitch;
    slice_weight = slice_c * p.m_groups * kPadded;
    if (kForward) {
      slice_cell += slice_w * hop.cell_column;
      slice_weight += slice_w * hop.weight_column;
      hop.cell_column *= p.slices_w;
      hop.weight_column *= p.slices_w;
    }
  }

  for (int i = threadIdx.x; i < p.row_entries; i += p.threads) {
    int residue = i;
    const int item = p.by_row_items.Split(residue);
    const int position = item * (p.hop_row == 0 ? 1 : kDirectPositions);
    Start start{position * p.row_pitch, 0, 0, block.row + position};
    if (kForward) {
      start.target = block.row + residue + position * p.h.stride;
      const DirectAxis::Taps taps = p.h.TapsOf(start.target);
      start.cell = (taps.source - origin.row) * p.row_pitch;
      start.weight = p.all_residues ? taps.first * p.w.kernel * p.tap_pitch : 0;
      start.taps = taps.count;
    }
    row_starts[i] = start;
  }
  for (int i = threadIdx.x; i < p.strip; i += p.threads) {
    Start start{i, 0, 0, block.column + i};
    if (kForward) {
      const DirectAxis::Taps taps = p.w.TapsOf(start.target);
      start.cell = taps.source - origin.column;
      start.weight = taps.first * p.tap_pitch;
      start.taps = start.target < p.w.target ? taps.count : 0;
    }
    column_starts[i] = start;
  }
  if (!has_taps) __syncthreads();  // otherwise the first chunk's

  // Items of a residue are neighbours: what it costs falls to all warps alike.
  for (int first = 0; first < p.items; first += p.threads) {
    const int index = first + static_cast<int>(threadIdx.x) - slice * p.items;
    const bool there = kSliced ? slice < p.slices() : index < p.items;
    int rest = there ? index : 0;
    const int at_column = p.by_strip.Split(rest), row_item = p.by_row_items.Split(rest);
    const int m_group = p.by_m_groups.Split(rest);
    const int at_row = rest * p.row_items + row_item;

    A sum[RM][kDirectPositions] = {};
    for (int k = 0; has_taps && k < p.h.kernel; k += p.chunk_k) {
      const int tap_rows = p.chunk_k < p.h.kernel - k ? p.chunk_k : p.h.kernel - k;
      for (int c = 0; c < p.c; c += p.chunk_c) {
        const int channels = p.chunk_c < p.c - c ? p.chunk_c : p.c - c;
        if (first == 0 || p.chunks > 1) {
          if (!kForward) {
            origin.tap = k;
            origin.row = block.row * p.h.stride + p.h.dilation * k - p.h.crop;
          }
          __syncthreads();
          LoadTile<E, kForward>(tile, image + c * p.image.channel, origin, channels, p);
          LoadWeights<E, RM, kSliced>(weights, weight + c * p.weight_c, origin, tap_step, channels,
                                      m_left, p);
          __syncthreads();
        }
        if (!there) continue;
        const Start row = row_starts[at_row], column = column_starts[at_column];
        const A* x = tile + (row.cell + column.cell + slice_cell);
        const A* w = weights + (row.weight + column.weight + m_group * kPadded + slice_weight);
        if constexpr (kSliced) {
          const int count = SliceOf(channels, slice_c, p.by_slices_c);
          if constexpr (kForward) {
            Accumulate<RM, RM == 1>(sum, x, w, row.taps,
                                    SliceOf(column.taps, slice_w, p.by_slices_w), hop, count,
                                    p.hop_cell);
          } else {
            AccumulateColumns(sum, x, w, slice_w, tap_rows, hop, count, p);
          }
        } else if constexpr (kForward) {
          if (RM == 8 && row.taps == 3 && p.hop_cell == -hop.cell_row) {
            AccumulateThreeRows(sum, x, w, column.taps, hop, channels);
          } else {
            Accumulate<RM, RM == 1>(sum, x, w, row.taps, column.taps, hop, channels, p.hop_cell);
          }
        } else {
          for (int plane_h = 0; plane_h < p.planes_h; ++plane_h) {
            for (int plane_w = 0; plane_w < p.planes_w; ++plane_w) {
              Accumulate<RM, RM == 1>(sum, x + plane_h * p.rows * p.row_pitch + plane_w * p.columns,
                                      w + (plane_h * p.w.kernel + plane_w) * p.tap_pitch,
                                      p.h.InPlane(tap_rows, plane_h),
                                      p.w.InPlane(p.w.kernel, plane_w), hop, channels, p.hop_cell);
            }
          }
        }
      }
    }

    constexpr int kValues = RM * kDirectPositions;
    if constexpr (kSliced) {  // the slices' sums take the tile's place: [slice][value][item]
      __syncthreads();
      if (there) {
#pragma unroll
        for (int v = 0; v < kValues; ++v) {
          tile[(slice * kValues + v) * p.items + index] =
              sum[v / kDirectPositions][v % kDirectPositions];
        }
      }
      __syncthreads();
    }

    if (!there) continue;
    const int row = row_starts[at_row].target, column = column_starts[at_column].target;
    typename E::Type* to =
        target + row * p.target.row + column * p.target.column + m_group * RM * p.target.channel;
    const int64_t hop_target = p.hop_row * p.target.row + p.hop_column * p.target.column;
    if constexpr (kSliced) {
      for (int v = slice; v < kValues; v += p.slices()) {
        const int i = v / kDirectPositions, j = v % kDirectPositions, m = m_group * RM + i;
        A value = A(0);
#pragma unroll 4
        for (int s = 0; s < p.slices(); ++s) value += tile[(s * kValues + v) * p.items + index];
        if (m < m_left && row + j * p.hop_row < p.h.target &&
            column + j * p.hop_column < p.w.target) {
          const A shift = kForward && bias != nullptr ? E::Load(bias + first_m + m) : A(0);
          E::Store(to + i * p.target.channel + j * hop_target, value + shift);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < RM; ++i) {
        const int m = m_group * RM + i;
        if (m >= m_left) break;
        const A shift = kForward && bias != nullptr ? E::Load(bias + first_m + m) : A(0);
#pragma unroll
        for (int j = 0; j < kDirectPositions; ++j) {
          if (row + j * p.hop_row < p.h.target && column + j * p.hop_column < p.w.target) {
            E::Store(to + j * hop_target, sum[i][j] + shift);
          }
        }
        to += p.target.channel;
      }
    }
  }
}

}  // namespace transconv::cuda::direct

#endif  // TRANSCONV_CUDA_KERNELS_DIRECT_CUH_
