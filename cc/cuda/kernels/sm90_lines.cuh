// Hopper's matrix product of lines (core/lines_plan.h).
//
//     lines        three warps copy windows of the image as they are, asynchronously
//     weights      a warp has packed weights (pack_lines.cuh) copied in bulk
//     consumers    two warpgroups with 64 places each read what a tap needs of the window into
//                  registers, round it to TF32, and multiply it by all columns of an instruction
//
// So every pixel is stored to shared memory once, whatever taps read it. Results leave straight
// from the registers, but for strides of three and five, whose results of a place are one run of
// the target: there a warp orders them first. Where tiles are few, a tile's sum is cut between the
// blocks of a cluster; then each of them adds all parts of its own columns in their order, which
// makes results the same in every run whose tensors start alike.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_LINES_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_LINES_CUH_

#include <cstdint>

#include "cuda/kernels/cluster_parts.cuh"
#include "cuda/kernels/sm90_lines_params.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/primitives/wgmma_registers.cuh"

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

// N columns to an instruction, HALVES sums of them, STEPS instructions to a piece.
template <int N, int HALVES, int STEPS>
struct Kernel {
  static constexpr int kSixteens = N / 16;  // columns, of which a thread has eight sums
  static constexpr int kQuads = 2 * STEPS;
  static constexpr int kPieceBytes = kQuads * N * kLinesCell;

  const LinesParams& p;
  Control& control;
  const ClusterWork work;
  float* const order;             // of the warps' results
  const uint32_t lines, weights;  // shared addresses of their stages

  __device__ static uint32_t At(const uint64_t& barrier) { return ptx::SharedAddress(&barrier); }

  // -- producers --

  // Where a tile's copies come from: the same in every channel.
  __device__ __forceinline__ void Place(const Tile& tile, int thread) const {
    const Phase& phase = p.phase[tile.phase];
    ptx::NamedBarrier<2, kLinesCopiers>();  // those of the last tile are not needed any more
    const int top = tile.y * p.step_h + phase.top, left = tile.x * p.step_w + phase.left;
    for (int at = thread; at < p.places; at += kLinesCopiers) {
      int row = at;
      const int x = left + p.by_copy.Split(row) * p.vector;
      int image = row;
      const int y = top + p.by_row.Split(image);
      const bool inside =
          tile.n + image < p.batch && y >= 0 && y < p.source_h && x >= 0 && x < p.source_w;
      control.place[at] =
          inside ? image * static_cast<int>(p.source_image) + y * p.source_w + x : kLinesNothing;
    }
    ptx::NamedBarrier<2, kLinesCopiers>();
  }

  // Copies of kVector elements. A thread has the same places in all channels of a slab; where there
  // are few places, threads share the channels.
  template <int kVector>
  __device__ void CopyLines(int thread) const {
    Turn turn(1);
    const int together = max(1, kLinesCopiers / p.places);  // channels
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
        for (int at = idle ? p.places : first_place; at < p.places; at += kLinesCopiers) {
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

  // By one thread.
  __device__ void CopyWeights() const {
    ptx::WaitForKernelsBefore();  // which pack them
    Turn turn(1);
    for (int t = work.first; t < p.tiles; t += work.step) {
      const Tile tile(p, t);
      const Phase& phase = p.phase[tile.phase];
      const int pieces = phase.pieces;
      const uint8_t* from =
          phase.weights +
          static_cast<int64_t>(tile.column_tile * p.slabs + work.first_slab) * pieces * kPieceBytes;
      for (int i = 0; i < work.slabs * pieces; ++i, from += kPieceBytes) {
        ptx::BarrierWait(At(control.weights_empty[turn.stage]), turn.parity);
        const uint32_t full = At(control.weights_full[turn.stage]);
        ptx::BarrierArriveExpect(full, kPieceBytes);
        ptx::BulkLoad(weights + turn.stage * kPieceBytes, from, kPieceBytes, full);
        turn.Next(p.weight_stages);
      }
    }
  }

  // -- consumers --

  struct Rows {
    uint32_t a[STEPS][4];
  };

  // What a piece's instructions multiply. `above` and `below` are a thread's places in the window.
  __device__ __forceinline__ void LoadRows(Rows* rows, int quad, uint32_t above,
                                           uint32_t below) const {
    if (p.filled) {
      LoadQuads<true>(rows, p.quad + quad, above, below);
    } else {
      LoadQuads<false>(rows, p.quad + quad, above, below);
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows->a[s][i] = __float_as_uint(tf32::Element<float>::Load(__uint_as_float(rows->a[s][i])));
      }
    }
  }
  // Quads that fill up a piece are zeros, whatever pixels are.
  template <bool kFilled>
  __device__ __forceinline__ static void LoadQuads(Rows* rows, const int* quad, uint32_t above,
                                                   uint32_t below) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int offset = quad[i];
      uint32_t first = 0, second = 0;
      if (kFilled || offset != kLinesNothing) {
        first = ptx::LoadSharedWord(above + offset);
        second = ptx::LoadSharedWord(below + offset);
      }
      rows->a[i / 2][i % 2 * 2] = first;
      rows->a[i / 2][i % 2 * 2 + 1] = second;
    }
  }
  // Whatever defines them comes before.
  __device__ __forceinline__ static void PinRows(Rows* rows) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(rows->a[s][i])::"memory");
    }
  }

  // What a consumer goes through: pieces, one behind the other.
  struct Walk {
    Turn lines{0}, weights{0};
    int quad;  // of the piece that is loaded next
    int left;  // pieces of the tile to load
  };

  __device__ void Consume() const {
    const int thread = static_cast<int>(threadIdx.x) - kProducers;
    const int lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4;  // and that below, row + 8
    const uint32_t above = lines + 4 * (WindowAt(row) + lane % 4 * p.lane_pitch);
    const uint32_t below = lines + 4 * (WindowAt(row + 8) + lane % 4 * p.lane_pitch);
    // In a cluster, shared addresses have the block's rank above the 18 bits of a descriptor's.
    const uint64_t descriptor = wgmma::Descriptor(N * 16, 128) | ((weights & 0x3FFFF) >> 4);
    float sum[HALVES][N / 2];
    Walk walk;
    for (int t = work.first; t < p.tiles; t += work.step) {
      const Tile tile(p, t);
      const Phase& phase = p.phase[tile.phase];
      PrepareColumns(tile, thread);
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sum[h][i] = 0.f;
        wgmma::Pin(sum[h]);
      }
      const int pieces = phase.pieces;
      walk.left = work.slabs * pieces;
      walk.quad = phase.first_quad;
      const auto load = [&](Rows* to) {
        if (walk.quad == phase.first_quad) {
          ptx::BarrierWait(At(control.lines_full[walk.lines.stage]), walk.lines.parity);
        }
        const uint32_t stage = walk.lines.stage * p.line_bytes;
        LoadRows(to, walk.quad, above + stage, below + stage);
        PinRows(to);
        --walk.left;
        walk.quad += kQuads;
      };
      // Stages are given back when the products that read them have ended: those of the piece
      // before.
      int weights_before = kLinesNothing, lines_before = kLinesNothing;
      const auto give_back = [&] {
        if (weights_before >= 0) ptx::BarrierArrive(At(control.weights_empty[weights_before]));
        if (lines_before >= 0) ptx::BarrierArrive(At(control.lines_empty[lines_before]));
      };
      // Multiplies by a piece, while the rows of the next one are read.
      int piece = 0;  // of the slab
      const auto multiply = [&](Rows* now, Rows* next) {
        const int used = walk.weights.stage;
        ptx::BarrierWait(At(control.weights_full[used]), walk.weights.parity);
        const uint64_t b = descriptor + static_cast<uint32_t>(used * (kPieceBytes >> 4));
        PinRows(now);
        wgmma::Fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
          wgmma::MultiplyRegisters<float, N>::Run(sum[HALVES == 2 && s >= LinesFirstHalf(STEPS)],
                                                  now->a[s], b + s * (2 * N * 16 >> 4), 1);
        }
        wgmma::Commit();
        wgmma::Wait<1>();
        give_back();
        weights_before = used;
        lines_before = kLinesNothing;
        walk.weights.Next(p.weight_stages);
        // A slab's rows are all in registers when its last piece is multiplied.
        if (++piece == pieces) {
          piece = 0;
          walk.quad = phase.first_quad;
          lines_before = walk.lines.stage;
          walk.lines.Next(p.line_stages);
        }
        if (walk.left > 0) load(next);
      };
      Rows even, odd;
      load(&even);
      for (int i = 0; i < work.slabs * pieces; i += 2) {
        multiply(&even, &odd);
        if (i + 1 < work.slabs * pieces) multiply(&odd, &even);
      }
      wgmma::Wait<0>();
#pragma unroll
      for (int h = 0; h < HALVES; ++h) wgmma::Pin(sum[h]);
      give_back();
      if (p.splits > 1) {
        // The stages are free: such a block has one tile.
        ptx::NamedBarrier<1, kConsumers>();  // nobody reads them any more
        AddClusterParts<kConsumers>(sum, lines, thread, p.splits);
      }
      Store(sum, tile, row, lane);
    }
  }

  // The image, row and column of a tile's place.
  struct At3 {
    int n, y, x;
  };
  __device__ __forceinline__ At3 PlaceOf(int row) const {
    const int x = row & (p.tile_w - 1), y = row >> p.log_tile_w;
    return {y >> p.log_tile_h, y & (p.tile_h - 1), x};
  }
  // The element of the window that is a place's own.
  __device__ __forceinline__ int WindowAt(int row) const {
    const At3 at = PlaceOf(row);
    return at.n * p.image_pitch + at.y * p.step_h * p.row_pitch + at.x * p.step_w;
  }

  // Where the tile's columns are in the target, and their biases.
  __device__ __forceinline__ void PrepareColumns(const Tile& tile, int thread) const {
    const Phase& phase = p.phase[tile.phase];
    ptx::NamedBarrier<1, kConsumers>();  // those of the last tile are not needed any more
    if (thread < N) {
      const int column = tile.column_tile * N + thread;
      int channel = column;
      const int residue = phase.by_residue.Split(channel);
      const bool exists = column < phase.columns;
      control.offset[thread] =
          exists ? static_cast<uint32_t>(channel * p.target_channel + residue) : kNoColumn;
      control.bias[thread] = exists && p.bias != nullptr ? p.bias[channel] : 0.f;
      control.reach[thread] = static_cast<uint32_t>(residue);
    }
    ptx::NamedBarrier<1, kConsumers>();
  }

  // A thread has two places, and of each eight columns two; of sixteen four neighbours, where their
  // order is so (GemmColumn).
  __device__ __forceinline__ void Store(const float (&sum)[HALVES][N / 2], const Tile& tile,
                                        int row, int lane) const {
    const Phase& phase = p.phase[tile.phase];
    const int rank = p.splits > 1 ? static_cast<int>(cluster::Rank()) : 0;
    const int begin = rank * kSixteens / p.splits, end = (rank + 1) * kSixteens / p.splits;
    if (HALVES == 1 && p.ordered) {
      StoreOrdered(sum[0], tile, row - lane / 4, lane, begin, end);
      return;
    }
    const int quad = lane % 4;
    float* place[2];
    int room[2];  // columns of the target from the place's own on; none where it does not exist
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const At3 at = PlaceOf(row + 8 * r);
      const int n = tile.n + at.n, y = (tile.y + at.y) * p.to_step_h + phase.row;
      const int x = (tile.x + at.x) * p.to_step_w + phase.column;
      const bool exists = n < p.batch && y < p.target_h;
      room[r] = exists ? p.target_w - x : kNoRoom;
      place[r] = p.target + (exists ? n * p.target_image + (y * p.target_w + x) : 0);
    }
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
      if (j < begin || j >= end) continue;
      if (p.store == 4) {
        StoreFours(sum, j, place, room, lane, phase.first_half);
        continue;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 16 * j + 8 * e + 2 * quad;
        const uint2 offset = *reinterpret_cast<const uint2*>(&control.offset[column]);
        const float2 bias = *reinterpret_cast<const float2*>(&control.bias[column]);
        const uint2 reach = *reinterpret_cast<const uint2*>(&control.reach[column]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int i = 8 * j + 4 * e + 2 * r;
          const Halves a = HalvesOf(sum, i, bias.x, phase.first_half);
          const Halves b = HalvesOf(sum, i + 1, bias.y, phase.first_half);
          const int left = room[r] - static_cast<int>(reach.x);
          if (p.store == 2) {
            if (offset.x != kNoColumn) StorePairs(place[r] + offset.x, left, a, b);
          } else {
            if (offset.x != kNoColumn) StoreOne(place[r] + offset.x, left, a);
            if (offset.y != kNoColumn) {
              StoreOne(place[r] + offset.y, room[r] - static_cast<int>(reach.y), b);
            }
          }
        }
      }
    }
  }

  // All that sixteen places have of one channel lies side by side in the target. A warp, whose
  // first place is `first`, goes through sixteen columns at a time.
  __device__ __forceinline__ void StoreOrdered(const float (&sum)[N / 2], const Tile& tile,
                                               int first, int lane, int begin, int end) const {
    constexpr int kPlaces = 16, kColumns = 16;
    constexpr int kRuns =
        (kPlaces * kLinesMostOrdered + 31) / 32;  // of a lane's results of a channel
    float* const own = order + first / kPlaces * (kColumns * kLinesOrderPitch);
    const Phase& phase = p.phase[tile.phase];
    const At3 at = PlaceOf(first);
    const int n = tile.n + at.n, y = (tile.y + at.y) * p.to_step_h + phase.row;
    const int x = (tile.x + at.x) * p.to_step_w;
    const bool exists = n < p.batch && y < p.target_h;
    const int length = exists ? min(kPlaces * p.to_step_w, p.target_w - x) : 0;
    float* const to = p.target + (exists ? n * p.target_image + (y * p.target_w + x) : 0) + lane;
    int residue[kRuns];  // beyond all columns where the place does not exist
    const float* from[kRuns];
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      int place = lane + 32 * k;
      const bool inside = place < length;
      residue[k] = p.by_step.Split(place);
      from[k] = own + residue[k] * kLinesOrderPitch + place;
      if (!inside) residue[k] = 2 * kColumns;
    }
#pragma unroll
    for (int j = 0; j < kSixteens; ++j) {
      if (j < begin || j >= end) continue;
      __syncwarp();  // what was there has left
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * e + lane % 4 * 2;
        const float2 bias = *reinterpret_cast<const float2*>(&control.bias[16 * j + column]);
        float* const at_place = own + column * kLinesOrderPitch + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          at_place[8 * r] = sum[8 * j + 4 * e + 2 * r] + bias.x;
          at_place[8 * r + kLinesOrderPitch] = sum[8 * j + 4 * e + 2 * r + 1] + bias.y;
        }
      }
      __syncwarp();
      int channel = tile.column_tile * N + 16 * j;
      const int columns = min(phase.columns - channel, kColumns);
      // The first channel has some of its columns before these.
      int column = -phase.by_residue.Split(channel);
      float* run = to + static_cast<int64_t>(channel) * p.target_channel;
      for (; column < columns; column += p.to_step_w, run += p.target_channel) {
        float value[kRuns];
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          const bool there =
              static_cast<unsigned>(column + residue[k]) < static_cast<unsigned>(columns);
          value[k] = there ? from[k][column * kLinesOrderPitch] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < kRuns; ++k) {
          if (static_cast<unsigned>(column + residue[k]) < static_cast<unsigned>(columns)) {
            run[32 * k] = value[k];
          }
        }
      }
    }
  }

  // Of a column, the result of its residue in the first half of a stride, and in the second.
  struct Halves {
    float first, second;
  };
  __device__ __forceinline__ static Halves HalvesOf(const float (&sum)[HALVES][N / 2], int i,
                                                    float bias, int first_half) {
    const float a = sum[0][i] + bias, b = sum[HALVES - 1][i] + bias;
    return first_half != 0 ? Halves{b, a} : Halves{a, b};
  }
  __device__ __forceinline__ void StoreOne(float* at, int left, Halves v) const {
    if (HALVES == 2 && p.joined) {
      if (left > 0) *reinterpret_cast<float2*>(at) = {v.first, v.second};
      return;
    }
    if (left > 0) at[0] = v.first;
    if (HALVES == 2 && left > p.half) at[p.half] = v.second;
  }
  __device__ __forceinline__ void StorePairs(float* at, int left, Halves a, Halves b) const {
    if (HALVES == 2 && p.joined) {
      if (left > 0) *reinterpret_cast<float4*>(at) = {a.first, b.first, a.second, b.second};
      return;
    }
    if (left > 0) *reinterpret_cast<float2*>(at) = {a.first, b.first};
    if (HALVES == 2 && left > p.half) {
      *reinterpret_cast<float2*>(at + p.half) = {a.second, b.second};
    }
  }
  // With two halves, neighbouring places trade: of one instruction both halves of a place leave, so
  // that it writes whole sectors of memory.
  __device__ __forceinline__ void StoreFours(const float (&sum)[HALVES][N / 2], int j,
                                             float* const (&place)[2], const int (&room)[2],
                                             int lane, int first_half) const {
    const int column = 16 * j + lane % 4 * 4;
    const uint32_t offset = control.offset[column];
    const float bias = control.bias[column];
    const int reach = static_cast<int>(control.reach[column]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float first[4], second[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const Halves v = HalvesOf(sum, 8 * j + 2 * r + k % 2 + k / 2 * 4, bias, first_half);
        first[k] = v.first, second[k] = v.second;
      }
      float* const at = place[r] + offset;
      const int left = room[r] - reach;
      if (HALVES == 1) {
        if (left > 0 && offset != kNoColumn) {
          *reinterpret_cast<float4*>(at) = {first[0], first[1], first[2], first[3]};
        }
        continue;
      }
      const bool odd = lane / 4 % 2 != 0;
      float kept[4], got[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        kept[k] = odd ? second[k] : first[k];
        got[k] = __shfl_xor_sync(0xffffffffu, odd ? first[k] : second[k], 4);
      }
      if (offset == kNoColumn) continue;
      // An odd place has both second halves, an even one both first halves.
      const int on = odd ? -p.to_step_w : p.to_step_w, half = odd ? p.half : 0;
      const float4 own = {kept[0], kept[1], kept[2], kept[3]};
      const float4 other = {got[0], got[1], got[2], got[3]};
      float* const even_at = (odd ? at + on : at) + half;
      float* const odd_at = (odd ? at : at + on) + half;
      const int even_left = (odd ? left - on : left) - half,
                odd_left = (odd ? left : left - on) - half;
      // The rest of a line follows later: as what is to leave the cache first, it is a fifth
      // faster.
      if (even_left > 0) ptx::StoreFirstOut(even_at, odd ? other : own);
      if (odd_left > 0) ptx::StoreFirstOut(odd_at, odd ? own : other);
    }
  }
};

template <int N, int HALVES, int STEPS>
__global__ void __launch_bounds__(kThreads, 1) LinesKernel(const __grid_constant__ LinesParams p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < lines::kMostStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.lines_full[i]), kLinesCopiers);
      ptx::BarrierInit(ptx::SharedAddress(&control.lines_empty[i]), kConsumers);
      ptx::BarrierInit(ptx::SharedAddress(&control.weights_full[i]), 1);
      ptx::BarrierInit(ptx::SharedAddress(&control.weights_empty[i]), kConsumers);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  uint8_t* const order = shared + kLinesControlBytes;
  const uint32_t first =
      ptx::SharedAddress(order) + (p.ordered ? kLinesWarps * kLinesOrderBytes : 0);
  const Kernel<N, HALVES, STEPS> kernel{p,
                                        control,
                                        ClusterWork(p.splits, p.slabs),
                                        reinterpret_cast<float*>(order),
                                        first,
                                        first + p.line_stages * p.line_bytes};
  if (warp < kProducers / 32) {
    ptx::RegistersDown<kProducerRegisters>();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kLinesCopiers) {
      if (thread == kLinesCopiers) kernel.CopyWeights();
    } else if (p.vector == 4) {
      kernel.template CopyLines<4>(thread);
    } else if (p.vector == 2) {
      kernel.template CopyLines<2>(thread);
    } else {
      kernel.template CopyLines<1>(thread);
    }
    __syncwarp();
    if (p.splits > 1) cluster::Sync();  // as the consumers, when they add
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    kernel.Consume();
  }
  // No block may go while another reads its shared memory.
  __syncwarp();
  if (p.splits > 1) cluster::Sync();
}

}  // namespace transconv::cuda::sm90_lines

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_CUH_
