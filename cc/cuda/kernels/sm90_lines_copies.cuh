// How the matrix product of lines brings windows of the image to shared memory.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_LINES_COPIES_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_LINES_COPIES_CUH_

#include <cstdint>

#include "cuda/kernels/cluster_parts.cuh"
#include "cuda/kernels/sm90_lines_params.cuh"
#include "cuda/primitives/ptx.cuh"

namespace transconv::cuda::sm90_lines {

struct Tile {
  int phase, column_tile;
  int n, y, x;  // its first place

  __device__ __forceinline__ Tile(const LinesParams& p, int tile) {
    phase = 0;
    while (tile >= p.phase[phase].tiles) ++phase;
    int row = phase == 0 ? tile : tile - p.phase[phase - 1].tiles;
    column_tile = p.phase[phase].by_column_tile.Split(row);
    x = p.by_tile_w.Split(row) * p.tile_w;
    y = p.by_tile_h.Split(row) * p.tile_h;
    n = row * p.tile_n;
  }
};

// A place in a ring of stages.
struct Turn {
  int stage = 0;
  uint32_t parity;

  __device__ explicit Turn(uint32_t first) : parity(first) {}
  __device__ __forceinline__ void Next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

__device__ __forceinline__ uint32_t At(const uint64_t& barrier) {
  return ptx::SharedAddress(&barrier);
}

// What the threads that copy windows do.
template <int COPIERS>
struct Copier {
  const LinesParams& p;
  Control& control;
  const ClusterWork work;
  const uint32_t lines;  // shared address of the stages

  __device__ void Copy(int thread) const {
    if (p.vector == 4) {
      CopyLines<4>(thread);
    } else if (p.vector == 2) {
      CopyLines<2>(thread);
    } else {
      CopyLines<1>(thread);
    }
  }

  // Where a tile's copies come from: the same in every channel.
  __device__ __forceinline__ void Place(const Tile& tile, int thread) const {
    const Phase& phase = p.phase[tile.phase];
    ptx::NamedBarrier<2, COPIERS>();  // those of the last tile are not needed any more
    const int top = tile.y * p.step_h + phase.top, left = tile.x * p.step_w + phase.left;
    for (int at = thread; at < p.places; at += COPIERS) {
      int row = at;
      const int x = left + p.by_copy.Split(row) * p.vector;
      int image = row;
      const int y = top + p.by_row.Split(image) * p.row_step;
      const bool inside =
          tile.n + image < p.batch && y >= 0 && y < p.source_h && x >= 0 && x < p.source_w;
      control.place[at] =
          inside ? image * static_cast<int>(p.source_image) + y * p.source_w + x : kLinesNothing;
    }
    ptx::NamedBarrier<2, COPIERS>();
  }

  // Copies of kVector elements. A thread has the same places in all channels of a slab; where there
  // are few places, threads share the channels.
  template <int kVector>
  __device__ void CopyLines(int thread) const {
    Turn turn(1);
    const int together = max(1, COPIERS / p.places);  // channels
    int own = thread;
    const int first_place = p.by_place.Split(own);
    const bool idle = own >= together;
    // Where so many channels exist, it does not overflow.
    const uint32_t channels_on = static_cast<uint32_t>(together) * p.source_channel;
    for (int t = work.first; t < p.tiles; t += work.step) {
      const Tile tile(p, t);
      Place(tile, thread);
      const float* const image = p.source + tile.n * p.source_image;
      for (int slab = 0; slab < work.slabs; ++slab) {
        ptx::BarrierWait(At(control.lines_empty[turn.stage]), turn.parity);
        const uint32_t stage = lines + turn.stage * p.line_bytes;
        const int first = (work.first_slab + slab) * p.slab_channels;
        const int exist = min(p.slab_channels, p.channels - first);
        for (int at = idle ? p.places : first_place; at < p.places; at += COPIERS) {
          const int place = control.place[at];
          const int limit = place >= 0 ? exist : 0;
          const float* from =
              image + (static_cast<int64_t>(first + own) * p.source_channel + place);
          uint32_t to = stage + static_cast<uint32_t>(own * p.channel_pitch + at * kVector) * 4;
#pragma unroll 4
          for (int channel = own; channel < p.slab_channels; channel += together) {
            const bool wanted = channel < limit;
            ptx::CopyAsync<4 * kVector>(to, wanted ? from : p.source, wanted);
            from += channels_on;
            to += static_cast<uint32_t>(together * p.channel_pitch) * 4;
          }
        }
        ptx::CopyAsyncArrive(At(control.lines_full[turn.stage]));
        turn.Next(p.line_stages);
      }
    }
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<0>();
  }
};

}  // namespace transconv::cuda::sm90_lines

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_COPIES_CUH_
