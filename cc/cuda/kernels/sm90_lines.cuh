// Hopper's matrix product of lines (core/lines_plan.h).
//
//     lines        three or seven warps copy windows of the image as they are, asynchronously
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
#include "cuda/kernels/sm90_lines_copies.cuh"
#include "cuda/kernels/sm90_lines_params.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/tf32_parts.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/primitives/wgmma_registers.cuh"

namespace transconv::cuda::sm90_lines {

// N columns to an instruction, HALVES sums of them, STEPS instructions to a piece. Three PRODUCTS:
// pixels and weights in two parts, of which all but the product of both low ones are added; the sum
// of a piece goes to the others' in float32, lest the tensor cores cut off what it leaves.
template <int N, int HALVES, int STEPS, int PRODUCTS>
struct Kernel {
  static constexpr int kSixteens = N / 16;  // columns, of which a thread has eight sums
  static constexpr int kQuads = 2 * STEPS;
  static constexpr int kParts = PRODUCTS == 3 ? 2 : 1;
  static constexpr int kPartBytes = kQuads * N * kLinesCell, kPieceBytes = kParts * kPartBytes;
  static constexpr int kProducers = Threads<LinesCopiers(N, HALVES)>::kProducers;
  static_assert(PRODUCTS == 1 || HALVES == 1);

  const LinesParams& p;
  Control& control;
  const ClusterWork work;
  float* const order;             // of the warps' results
  const uint32_t lines, weights;  // shared addresses of their stages

  // By one thread of the producers.
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
    uint32_t a[kParts][STEPS][4];
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
        const float value = __uint_as_float(rows->a[0][s][i]);
        const float high = tf32::Element<float>::Load(value);
        rows->a[0][s][i] = __float_as_uint(high);
        if constexpr (PRODUCTS == 3) {
          rows->a[1][s][i] = __float_as_uint(tf32::LowPart(value, high));
        }
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
      rows->a[0][i / 2][i % 2 * 2] = first;
      rows->a[0][i / 2][i % 2 * 2 + 1] = second;
    }
  }
  // Whatever defines them comes before.
  __device__ __forceinline__ static void PinRows(Rows* rows) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(rows->a[part][s][i])::"memory");
      }
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
    float part[PRODUCTS == 3 ? N / 2 : 1];  // of three products: a piece's
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
        const int used = walk.lines.stage;
        if (walk.quad == phase.first_quad) {
          ptx::BarrierWait(At(control.lines_full[used]), walk.lines.parity);
        }
        const uint32_t stage = used * p.line_bytes;
        LoadRows(to, walk.quad, above + stage, below + stage);
        PinRows(to);
        --walk.left;
        walk.quad += kQuads;
        // Then a slab's rows are all in registers.
        if (walk.quad == phase.first_quad + pieces * kQuads) {
          walk.quad = phase.first_quad;
          ptx::BarrierArrive(At(control.lines_empty[used]));
          walk.lines.Next(p.line_stages);
        }
      };
      // Weights are given back when the products that read them have ended: those of the piece
      // before.
      int weights_before = kLinesNothing;
      const auto give_back = [&] {
        if (weights_before >= 0) ptx::BarrierArrive(At(control.weights_empty[weights_before]));
      };
      // Multiplies by a piece, while the rows of the next one are read.
      const auto multiply = [&](Rows* now, Rows* next) {
        const int used = walk.weights.stage;
        ptx::BarrierWait(At(control.weights_full[used]), walk.weights.parity);
        const uint64_t b = descriptor + static_cast<uint32_t>(used * (kPieceBytes >> 4));
        PinRows(now);
        wgmma::Fence();
        if constexpr (PRODUCTS == 1) {
#pragma unroll
          for (int s = 0; s < STEPS; ++s) {
            wgmma::MultiplyRegisters<float, N>::Run(sum[HALVES == 2 && s >= LinesFirstHalf(STEPS)],
                                                    now->a[0][s], b + s * (2 * N * 16 >> 4), 1);
          }
        } else {
          // The small products first: less is cut off when the large one joins.
          constexpr int kPairs[3][2] = {{1, 0}, {0, 1}, {0, 0}};  // parts of pixels, of weights
#pragma unroll
          for (int pair = 0; pair < 3; ++pair) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
              wgmma::MultiplyRegisters<float, N>::Run(
                  part, now->a[kPairs[pair][0]][s],
                  b + kPairs[pair][1] * (kPartBytes >> 4) + s * (2 * N * 16 >> 4),
                  pair + s == 0 ? 0 : 1);
            }
          }
        }
        wgmma::Commit();
        if constexpr (PRODUCTS == 1) wgmma::Wait<1>();
        give_back();
        weights_before = used;
        walk.weights.Next(p.weight_stages);
        if (walk.left > 0) load(next);
        if constexpr (PRODUCTS == 3) {
          wgmma::Wait<0>();
          wgmma::Pin(part);
#pragma unroll
          for (int i = 0; i < N / 2; ++i) sum[0][i] += part[i];
        }
      };
      Rows even, odd;
      load(&even);
      const int all = work.slabs * pieces;
      for (int i = 0; i < all; i += 2) {
        multiply(&even, &odd);
        if (i + 1 < all) multiply(&odd, &even);
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
    return at.n * p.image_pitch + at.y * p.place_step_h * p.row_pitch + at.x * p.step_w;
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
    const int rank = p.splits > 1 ? static_cast<int>(cluster::Rank()) : 0;
    const int begin = rank * kSixteens / p.splits, end = (rank + 1) * kSixteens / p.splits;
    if (HALVES == 1 && p.ordered) {
      StoreOrdered(sum[0], tile, row - lane / 4, lane, begin, end);
    } else if (p.store == 4) {
      StoreBy<4>(sum, tile, row, lane, begin, end);
    } else if (p.store == 2) {
      StoreBy<2>(sum, tile, row, lane, begin, end);
    } else {
      StoreBy<1>(sum, tile, row, lane, begin, end);
    }
  }

  // Each code of its own: what is jumped over has to be loaded, too, and most blocks come here
  // once.
  template <int STORE>
  __device__ __forceinline__ void StoreBy(const float (&sum)[HALVES][N / 2], const Tile& tile,
                                          int row, int lane, int begin, int end) const {
    const Phase& phase = p.phase[tile.phase];
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
      if constexpr (STORE == 4) {
        StoreFours(sum, j, place, room, lane, phase.first_half);
      } else {
        StoreTwice<STORE>(sum, j, place, room, quad, phase.first_half);
      }
    }
  }

  // Of sixteen columns, those of a thread.
  template <int STORE>
  __device__ __forceinline__ void StoreTwice(const float (&sum)[HALVES][N / 2], int j,
                                             float* const (&place)[2], const int (&room)[2],
                                             int quad, int first_half) const {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = 16 * j + 8 * e + 2 * quad;
      const uint2 offset = *reinterpret_cast<const uint2*>(&control.offset[column]);
      const float2 bias = *reinterpret_cast<const float2*>(&control.bias[column]);
      const uint2 reach = *reinterpret_cast<const uint2*>(&control.reach[column]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int i = 8 * j + 4 * e + 2 * r;
        const Halves a = HalvesOf(sum, i, bias.x, first_half);
        const Halves b = HalvesOf(sum, i + 1, bias.y, first_half);
        const int left = room[r] - static_cast<int>(reach.x);
        if constexpr (STORE == 2) {
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

template <int N, int HALVES, int STEPS, int PRODUCTS>
__global__ void __launch_bounds__(Threads<LinesCopiers(N, HALVES)>::kAll, 1)
    LinesKernel(const __grid_constant__ LinesParams p) {
  constexpr int kCopiers = LinesCopiers(N, HALVES);
  using Block = Threads<kCopiers>;
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < lines::kMostStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.lines_full[i]), kCopiers);
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
  const Kernel<N, HALVES, STEPS, PRODUCTS> kernel{p,
                                                  control,
                                                  ClusterWork(p.splits, p.slabs),
                                                  reinterpret_cast<float*>(order),
                                                  first,
                                                  first + p.line_stages * p.line_bytes};
  if (warp < Block::kProducers / 32) {
    ptx::RegistersDown<Block::kProducerRegisters>();
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kCopiers) {
      if (thread == kCopiers) kernel.CopyWeights();
    } else {
      Copier<kCopiers>{p, control, kernel.work, first}.Copy(thread);
    }
    __syncwarp();
    if (p.splits > 1) cluster::Sync();  // as the consumers, when they add
  } else {
    ptx::RegistersUp<Block::kConsumerRegisters>();
    kernel.Consume();
  }
  // No block may go while another reads its shared memory.
  __syncwarp();
  if (p.splits > 1) cluster::SyncToLeave();
}

}  // namespace transconv::cuda::sm90_lines

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_CUH_
