// Hopper's weight gradient from lines of both images as they are (core/lines_wgrad_plan.h).
//
//     4 producer warps   copy a stage's lines of x, which are the columns' operand, and its windows
//                        of dy
//     8 consumer warps   two warpgroups with every other 64 rows each: a stage ahead of the matrix
//                        instructions they round x to TF32 where it is, and gather their fragments
//                        of dy from the windows into registers, at the offsets of their rows' taps
//
// Positions that do not exist are zeros on both sides. Rows and columns that do not exist hold
// anything: no sum but their own meets them, and that is not stored.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_lines_wgrad_params.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/primitives/wgmma_registers.cuh"

namespace transconv::cuda::sm90_lines_wgrad {

__device__ __forceinline__ uint32_t RoundToTf32(uint32_t bits) {
  return __float_as_uint(tf32::Element<float>::Load(__uint_as_float(bits)));
}

template <int N>
struct Producer {
  const Params& p;
  Control& control;
  const Copy* const table;
  const Work& work;
  const uint32_t stages;  // shared address
  const int thread;       // of the producers

  __device__ void Run() const {
    Place place;
    const int channels = min(N, p.in_per_group - work.column);
    const float* const x = p.x + (work.group * int64_t{p.in_per_group} + work.column) * p.x_channel;
    const int by_tap = p.by_tap.Quotient(static_cast<uint32_t>(work.row));
    const float* const dy =
        p.dy + (work.group * int64_t{p.out_per_group} + by_tap) * int64_t{p.dy_channel};
    const int exist = p.out_per_group - by_tap;
    for (int s = 0; s < work.count; ++s) {
      const Origin from(p, work.first + s);
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[place.slot]), place.parity ^ 1);
      const uint32_t stage = stages + place.slot * p.stage_bytes;
      if (p.x_copy == 16) {
        CopyX<16>(stage, x, from, channels);
      } else if (p.x_copy == 8) {
        CopyX<8>(stage, x, from, channels);
      } else {
        CopyX<4>(stage, x, from, channels);
      }
      if (p.dy_copy == 16) {
        CopyDy<16>(stage + N * kLineBytes, dy, from, exist);
      } else if (p.dy_copy == 8) {
        CopyDy<8>(stage + N * kLineBytes, dy, from, exist);
      } else {
        CopyDy<4>(stage + N * kLineBytes, dy, from, exist);
      }
      ptx::CopyAsyncArrive(ptx::SharedAddress(&control.full[place.slot]));
      place.Next(p.ring);
    }
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<0>();
  }

  // Lanes side by side take the pieces of a channel's line, whose chunks change places for the
  // swizzle; a thread goes on by so many channels.
  template <int V>
  __device__ __forceinline__ void CopyX(uint32_t stage, const float* x, const Origin& from,
                                        int channels) const {
    constexpr int kPieces = kLineBytes / V, kStep = kProducers / kPieces;
    static_assert(kStep % 8 == 0 || kStep == 4);
    const int channel = thread / kPieces, byte = thread % kPieces * V;
    const Position own = control.position[byte / 4];
    const bool exists = own.Exists(p, from);
    const float* at = p.x;
    int64_t step = 0;
    if (exists) {
      at = x + (from.n + own.n) * p.x_image + channel * int64_t{p.x_channel} +
           ((from.y + own.y) * p.in_w + from.x + own.x);
      step = kStep * int64_t{p.x_channel};
    }
    uint32_t to = stage + channel * kLineBytes + (byte ^ (channel % 8 * 16));
#pragma unroll 8
    for (int c = channel; c < channels; c += kStep) {
      ptx::CopyAsync<V>(to, at, exists);
      to = (to + kStep * kLineBytes) ^ kStep % 8 * 16;
      at += step;
    }
  }

  template <int V>
  __device__ __forceinline__ void CopyDy(uint32_t windows, const float* dy, const Origin& from,
                                         int exist) const {
    const int y = from.y * p.stride_h + p.top, x = from.x * p.stride_w + p.left;
    const float* const first = dy + (from.n * p.dy_image + y * int64_t{p.out_w} + x);
    const bool whole = y >= 0 && y + p.window_h <= p.out_h && x >= 0 && x + p.window_w <= p.out_w &&
                       from.n + p.tile_n <= p.batch && exist >= p.channels;
    if (V != 4 * p.dy_vector) {
      CopyParts<V>(windows, first, y, x, from.n, exist);
    } else if (whole) {
      CopyWindow<V, true>(windows, first, y, x, from.n, exist);
    } else {
      CopyWindow<V, false>(windows, first, y, x, from.n, exist);
    }
  }
  // There are few warps to hide what the table's entries take: four are read at once.
  template <int V, bool kWhole>
  __device__ __forceinline__ void CopyWindow(uint32_t windows, const float* first, int y, int x,
                                             int n, int exist) const {
    constexpr int kTogether = 4;
    for (int i = thread; i < p.copies; i += kTogether * kProducers) {
      Copy copy[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) copy[k] = table[min(i + k * kProducers, p.copies - 1)];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (i + k * kProducers >= p.copies) break;
        const bool inside = kWhole || Inside(copy[k], y, x, n, exist);
        ptx::CopyAsync<V>(windows + copy[k].to, inside ? first + copy[k].from : p.dy, inside);
      }
    }
  }
  // Where a tensor starts so that only parts of the table's vectors can be copied at once.
  template <int V>
  __device__ __forceinline__ void CopyParts(uint32_t windows, const float* first, int y, int x,
                                            int n, int exist) const {
    for (int i = thread; i < p.copies; i += kProducers) {
      const Copy copy = table[i];
      const bool inside = Inside(copy, y, x, n, exist);
      for (int e = 0; e < p.dy_vector; e += V / 4) {
        ptx::CopyAsync<V>(windows + copy.to + 4 * e, inside ? first + copy.from + e : p.dy, inside);
      }
    }
  }
  __device__ __forceinline__ bool Inside(const Copy& copy, int y, int x, int n, int exist) const {
    return n + copy.n < p.batch && copy.channel < exist &&
           static_cast<unsigned>(y + copy.y) < static_cast<unsigned>(p.out_h) &&
           static_cast<unsigned>(x + copy.x) < static_cast<unsigned>(p.out_w);
  }
};

// What a warpgroup does with TILES of 64 rows.
template <int N, int TILES>
struct Consumer {
  using Fragments = uint32_t[kSteps][4];

  const Params& p;
  Control& control;
  const Work& work;
  const uint32_t stages;             // shared address
  const int warp, lane;              // of the consumers
  uint32_t row_at[TILES][2];         // bytes in the windows
  uint32_t position_at[2 * kSteps];  // those of lane % 4, and every four from there

  __device__ __forceinline__ Consumer(const Params& params, Control& shared, const Work& own,
                                      uint32_t first, int thread)
      : p(params), control(shared), work(own), stages(first), warp(thread / 32), lane(thread % 32) {
    const int first_channel = p.by_tap.Quotient(static_cast<uint32_t>(work.row));
    const int last = min(p.rows, work.row + p.block_rows) - 1;  // whose window there is
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int channel = min(work.row + RowOf(tile, half), last);
        int ky = p.by_tap.Split(channel);
        const int kx = p.by_kx.Split(ky);
        row_at[tile][half] =
            4u * static_cast<uint32_t>((channel - first_channel) * p.channel_pitch +
                                       ky * p.dilation_h * p.row_pitch + kx * p.dilation_w +
                                       p.shift) +
            N * kLineBytes;
      }
    }
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      const Position at = control.position[lane % 4 + 4 * j];
      position_at[j] =
          at.n < p.tile_n
              ? 4u * static_cast<uint32_t>(at.n * p.image_pitch + at.y * p.stride_h * p.row_pitch +
                                           at.x * p.stride_w)
              : 0;
    }
  }
  // Of the block.
  __device__ __forceinline__ int RowOf(int tile, int half) const {
    return 64 * (2 * tile + warp / 4) + 16 * (warp % 4) + lane / 4 + 8 * half;
  }

  __device__ __forceinline__ void Run() const {
    float sum[TILES][N / 2];
    Fragments a, b;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[tile][i] = 0.f;
      wgmma::Pin(sum[tile]);
    }
    Place place;
    Take(place);
    Load<0>(a, 0, 0);
    if constexpr (TILES == 1) {
      for (int s = 0; s < work.count; s += 2) {
        Stage(sum[0], a, b, s, place);
        if (s + 1 < work.count) Stage(sum[0], b, a, s + 1, place);
      }
    } else {
      for (int s = 0; s < work.count; ++s) StageOfTwo(sum, a, b, s, place);
    }
    wgmma::Wait<0>();
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      wgmma::Pin(sum[tile]);
      Store(sum[tile], tile);
    }
  }

  // Starts the products of stage s, and while they run loads the fragments of the next one: into
  // the registers of the one before, which is waited for.
  __device__ __forceinline__ void Stage(float (&sum)[N / 2], const Fragments& own, Fragments& next,
                                        int s, Place& place) const {
    Multiply(sum, own, place);
    wgmma::Wait<1>();
    GiveBack(s, place);
    place.Next(p.ring);
    if (s + 1 < work.count) {
      Take(place);
      Load<0>(next, s + 1, place.slot);
    }
  }
  // Of two tiles, one's fragments are loaded while the other's products run.
  __device__ __forceinline__ void StageOfTwo(float (&sum)[TILES][N / 2], Fragments& a, Fragments& b,
                                             int s, Place& place) const {
    Multiply(sum[0], a, place);
    wgmma::Wait<1>();
    GiveBack(s, place);
    Load<TILES - 1>(b, s, place.slot);
    Multiply(sum[TILES - 1], b, place);
    place.Next(p.ring);
    if (s + 1 < work.count) Take(place);
    wgmma::Wait<1>();
    if (s + 1 < work.count) Load<0>(a, s + 1, place.slot);
  }
  __device__ __forceinline__ void Multiply(float (&sum)[N / 2], const Fragments& own,
                                           const Place& place) const {
    const uint32_t x = stages + place.slot * p.stage_bytes;
    const uint64_t descriptor = wgmma::SwizzledDescriptor() | (x >> 4);
    ptx::BarrierWait(ptx::SharedAddress(&control.rounded[place.slot]), place.parity);
    wgmma::Fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      wgmma::MultiplyRegisters<float, N>::Run(sum, own[k], descriptor + 2 * k, 1);
    }
    wgmma::Commit();
  }
  // The stage before s: its products have ended, and the lane has gathered its fragments.
  __device__ __forceinline__ void GiveBack(int s, const Place& place) const {
    const int before = place.slot == 0 ? p.ring - 1 : place.slot - 1;
    if (s > 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[before]));
  }

  // Waits for a stage's copies. Each consumer then rounds its part of x, which no product may read
  // before all have; tensor cores have to see what threads have stored.
  __device__ __forceinline__ void Take(const Place& place) const {
    ptx::BarrierWait(ptx::SharedAddress(&control.full[place.slot]), place.parity);
    const uint32_t own = stages + place.slot * p.stage_bytes + (32 * warp + lane) * 16;
#pragma unroll
    for (int i = 0; i < N * kLineBytes; i += kConsumers * 16) {
      const uint4 v = ptx::LoadShared128(own + i);
      ptx::StoreShared128(own + i, make_uint4(RoundToTf32(v.x), RoundToTf32(v.y), RoundToTf32(v.z),
                                              RoundToTf32(v.w)));
    }
    ptx::FenceAsync();
    __syncwarp();
    if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.rounded[place.slot]));
  }

  template <int kTile>
  __device__ __forceinline__ void Load(Fragments& a, int s, int slot) const {
    const uint32_t stage = stages + slot * p.stage_bytes;
    const uint32_t first = stage + row_at[kTile][0], second = stage + row_at[kTile][1];
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      a[j / 2][j % 2 * 2] = RoundToTf32(ptx::LoadSharedWord(first + position_at[j]));
      a[j / 2][j % 2 * 2 + 1] = RoundToTf32(ptx::LoadSharedWord(second + position_at[j]));
    }
    if (!p.ragged) return;
    const Origin from(p, work.first + s);
    if (from.IsWhole(p)) return;
#pragma unroll
    for (int j = 0; j < 2 * kSteps; ++j) {
      if (control.position[lane % 4 + 4 * j].Exists(p, from)) continue;
      a[j / 2][j % 2 * 2] = a[j / 2][j % 2 * 2 + 1] = 0;
    }
  }

  // To [channel of x][row].
  __device__ __forceinline__ void Store(const float (&sum)[N / 2], int tile) const {
    float* const to = p.slots != nullptr ? p.slots + work.split * p.weights : p.dw;
    const int row = work.row + RowOf(tile, 0);
    const int end = min(p.rows, work.row + p.block_rows);
    const int channels = p.in_per_group - work.column - lane % 4 * 2;
    float* const own =
        to + (work.group * int64_t{p.in_per_group} + work.column + lane % 4 * 2) * p.rows + row;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e >= channels) continue;
        float* const at = own + (8 * j + e) * int64_t{p.rows};
        if (row < end) at[0] = sum[4 * j + e];
        if (row + 8 < end) at[8] = sum[4 * j + 2 + e];
      }
    }
  }
};

// Registers of a thread: two warpgroups of consumers and one of producers have 64512.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
static_assert(kProducers * (168 - kProducerRegisters) >= kConsumers * (kConsumerRegisters - 168));

template <int N, int TILES>
__global__ void __launch_bounds__(kThreads, 1) LinesWgradKernel(const __grid_constant__ Params p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  Copy* const table = reinterpret_cast<Copy*>(shared + lines_wgrad::kControlBytes);
  const uint32_t stages = ptx::SharedAddress(shared) + lines_wgrad::kControlBytes +
                          static_cast<uint32_t>(p.table_bytes);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const Work work(p, N);
  if (thread == 0) {
    for (int i = 0; i < p.ring; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducers);
      ptx::BarrierInit(ptx::SharedAddress(&control.rounded[i]), kConsumerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumers);
    }
    ptx::BarrierInitFence();
  }
  if (thread < kPositions) control.position[thread] = Position::Of(p, thread);
  for (int i = thread; i < p.copies; i += kThreads) {
    int channel = i;
    const int x = p.by_copy.Split(channel) * p.dy_vector;
    const int y = p.by_row.Split(channel);
    const int n = p.by_tile.Split(channel);
    table[i] = Copy{static_cast<int>(channel * p.dy_channel + n * p.dy_image) + y * p.out_w + x,
                    4 * (channel * p.channel_pitch + n * p.image_pitch + y * p.row_pitch + x),
                    static_cast<int16_t>(n),
                    static_cast<int16_t>(y),
                    static_cast<int16_t>(x),
                    static_cast<int16_t>(channel)};
  }
  __syncthreads();
  if (warp < kProducers / 32) {
    ptx::RegistersDown<kProducerRegisters>();
    Producer<N>{p, control, table, work, stages, thread}.Run();
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    const int own = thread - kProducers;
    // The last tile of a block's rows may be one warpgroup's alone.
    if (TILES == 1 || p.block_rows > 64 * (TILES + (warp - kProducers / 32) / 4)) {
      Consumer<N, TILES>(p, control, work, stages, own).Run();
    } else {
      Consumer<N, 1>(p, control, work, stages, own).Run();
    }
  }
}

}  // namespace transconv::cuda::sm90_lines_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_LINES_WGRAD_CUH_
