// Hopper's weight gradient where the kernel is the stride: one matrix product over the pixels of
// all images (core/gemm_wgrad_plan.h).
//
//     4 producer warps   copy a stage of x (the columns' operand) and of dy, as they lie in memory;
//                        x as a box, where its stages are of one image
//     8 consumer warps   two warpgroups with 64 rows each: a stage ahead of the matrix
//                        instructions, they round x in float32 to TF32 where it is, and gather
//                        their fragments of dy from shared memory into registers
//
// Neighbours in dy's rows are the taps kx of one pixel, so a fragment's pixels are kw elements
// apart. The rows of a tile are dealt to lanes in pairs of neighbouring kx, which one load brings
// and one store takes.
//
// Blocks that share the pixels of the same weights may be a cluster, up to eight of them, and add
// their sums in shared memory; else each writes its own to a slot.
//
// Pixels behind the last one are zeros on both sides. Rows and columns that do not exist hold
// anything: no sum but their own meets them, and that is not stored.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_CUH_

#include <cstdint>

#include "core/gemm_wgrad_plan.h"
#include "cuda/kernels/cluster_parts.cuh"
#include "cuda/kernels/sm90_gemm_wgrad_params.cuh"
#include "cuda/primitives/box_load.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/primitives/wgmma_registers.cuh"

namespace transconv::cuda::sm90_gemm_wgrad {

__device__ __forceinline__ uint32_t RoundToTf32(uint32_t bits) {
  return __float_as_uint(tf32::Element<float>::Load(__uint_as_float(bits)));
}

template <typename T, int KW, int N>
struct Producer {
  static constexpr int kElement = sizeof(T);
  static constexpr int kStages = Tile::Stages(N);

  const Params& p;
  Control& control;
  const Work& work;
  const uint32_t stages;  // shared address
  const int thread;       // of the producers

  __device__ void Run() const {
    Place<kStages> place;
    const int channels = min(N, p.in_per_group - work.column);
    const char* const x = p.x + (work.group * int64_t{p.in_per_group} + work.column) * p.x_channel;
    for (int s = 0; s < work.count; ++s) {
      ptx::BarrierWait(ptx::SharedAddress(&control.empty[place.slot]), place.parity ^ 1);
      const uint32_t stage = stages + place.slot * Tile::Bytes(N);
      const int first = (work.first + s) * Tile::Pixels(kElement);
      if (p.boxed) {
        if (thread == 0) LoadBox(stage, first, ptx::SharedAddress(&control.full[place.slot]));
      } else if (p.x_vector == 16) {
        CopyX<16>(stage, x, first, channels);
      } else if (p.x_vector == 8) {
        CopyX<8>(stage, x, first, channels);
      } else {
        CopyX<4>(stage, x, first, channels);
      }
      if (p.dy_vector == 16) {
        CopyDy<16>(stage + Tile::XBytes(N), first);
      } else if (p.dy_vector == 8) {
        CopyDy<8>(stage + Tile::XBytes(N), first);
      } else {
        CopyDy<4>(stage + Tile::XBytes(N), first);
      }
      ptx::CopyAsyncArrive(ptx::SharedAddress(&control.full[place.slot]));
      place.Next();
    }
    ptx::CopyAsyncCommit();
    ptx::CopyAsyncWait<0>();
  }

  __device__ __forceinline__ void LoadBox(uint32_t stage, int first, uint32_t full) const {
    int image = first;
    const int pixel = p.by_image.Split(image);
    ptx::BarrierArriveExpect(full, Tile::XBytes(N));
    ptx::BoxLoad(stage, p.x_boxes, {pixel, work.group * p.in_per_group + work.column, image, 0, 0},
                 full);
  }

  // A thread's copies of x: lanes side by side take the pixels of a channel's stage, a whole line
  // of memory, whose chunks change places for the swizzle; a thread goes on by so many channels.
  template <int V>
  struct Lines {
    static constexpr int kPieces = Tile::kStageBytes / V, kStep = kProducers / kPieces;
    static_assert(kStep % 8 == 0 || kStep == 4);
    int channel, byte;
    __device__ __forceinline__ explicit Lines(int thread)
        : channel(thread / kPieces), byte(thread % kPieces * V) {}
    // Of the first channel, and from one to the next.
    __device__ __forceinline__ uint32_t First(uint32_t stage) const {
      return stage + channel * Tile::kStageBytes + (byte ^ (channel % 8 * 16));
    }
    static __device__ __forceinline__ uint32_t Next(uint32_t at) {
      return (at + kStep * Tile::kStageBytes) ^ kStep % 8 * 16;
    }
  };

  template <int V>
  __device__ __forceinline__ void CopyX(uint32_t stage, const char* x, int first,
                                        int channels) const {
    const Lines<V> own(thread);
    const int pixel = first + own.byte / kElement;
    const bool exists = pixel < p.pixels;
    int image = pixel;
    const int at = p.by_image.Split(image);
    const char* from = x + image * p.x_image + own.channel * p.x_channel + at * int64_t{kElement};
    const int64_t step = own.kStep * p.x_channel;
    uint32_t to = own.First(stage);
#pragma unroll 8
    for (int c = own.channel; c < channels; c += own.kStep) {
      ptx::CopyAsync<V>(to, from, exists);
      to = own.Next(to);
      from += step;
    }
  }

  // Neighbouring lanes copy neighbouring vectors of a line.
  template <int V>
  __device__ __forceinline__ void CopyDy(uint32_t stage, int first) const {
    constexpr int kVectors = Tile::kStageBytes * KW / V;  // of a line
    constexpr int kPixel = KW * kElement;
    constexpr int kLineStep = kVectors < kProducers ? kProducers / kVectors : 1;
    const int lines = min(Tile::Lines(KW), p.lines - work.row / KW);
#pragma unroll
    for (int begin = 0; begin < kVectors; begin += kProducers) {
      const int vector = thread % kVectors + begin;
      const int pixel = first + vector * V / kPixel;
      const bool exists = pixel < p.pixels;
      int image = pixel;
      int row = p.by_image.Split(image);
      const int column = p.by_row.Split(row);
      const char* const from = p.dy + image * p.dy_image + row * p.dy_row +
                               column * int64_t{kPixel} + vector * V % kPixel;
      int line = kVectors < kProducers ? thread / kVectors : 0;
      uint32_t to = stage + line * Tile::LinePitch(KW) + vector * V;
#pragma unroll 4
      for (; line < lines; line += kLineStep) {
        ptx::CopyAsync<V>(to, from + control.line[line], exists);
        to += kLineStep * Tile::LinePitch(KW);
      }
    }
  }
};

template <typename T, int KW, int N>
struct Consumer {
  static constexpr int kElement = sizeof(T);
  static constexpr int kStages = Tile::Stages(N);
  static constexpr int kPitch = Tile::LinePitch(KW);
  static constexpr int kPixel = KW * kElement;
  static constexpr int kStepPixels = Tile::Pixels(kElement) / Tile::kSteps;
  using Fragments = uint32_t[Tile::kSteps][4];

  const Params& p;
  Control& control;
  const Work& work;
  const uint32_t stages;  // shared address
  const int warp, lane;   // of the consumers

  // The row of the tile of this lane's first or second one: neighbours, if there are several kx.
  __device__ __forceinline__ int RowOf(int half) const {
    return KW == 1 ? 16 * warp + lane / 4 + 8 * half : 16 * warp + lane / 4 * 2 + half;
  }

  __device__ void Run() const {
    float sum[N / 2];
    Fragments even, odd;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum[i] = 0.f;
    wgmma::Pin(sum);
    Place<kStages> place;
    Take(place);
    Load(even, 0);
    for (int s = 0; s < work.count; s += 2) {
      Stage(sum, even, odd, s, place);
      if (s + 1 < work.count) Stage(sum, odd, even, s + 1, place);
    }
    wgmma::Wait<0>();
    wgmma::Pin(sum);
    if (p.cluster > 1) {
      ptx::NamedBarrier<1, kConsumers>();  // nobody reads a stage any more
      AddClusterParts<kConsumers>(reinterpret_cast<float (&)[1][N / 2]>(sum), stages,
                                  32 * warp + lane, p.cluster);
    }
    if (p.slots != nullptr) {
      Store<(KW > 1)>(sum, p.slots + work.split * p.weights);
    } else if (KW > 1 && p.pairs) {
      Store<(KW > 1)>(sum, static_cast<T*>(p.dw));
    } else {
      Store<false>(sum, static_cast<T*>(p.dw));
    }
  }

  // Starts the products of stage s, and while they run loads the fragments of the next one: into
  // the registers of the one before, which is waited for.
  __device__ __forceinline__ void Stage(float (&sum)[N / 2], const Fragments& own, Fragments& next,
                                        int s, Place<kStages>& place) const {
    const uint32_t x = stages + place.slot * Tile::Bytes(N);
    // In a cluster, shared addresses have the block's rank above the 18 bits of a descriptor's.
    const uint64_t b = wgmma::SwizzledDescriptor() | (x & 0x3ffff) >> 4;
    if constexpr (kElement == 4) {
      ptx::BarrierWait(ptx::SharedAddress(&control.rounded[place.slot]), place.parity);
    }
    wgmma::Fence();
#pragma unroll
    for (int k = 0; k < Tile::kSteps; ++k) {
      wgmma::MultiplyRegisters<T, N>::Run(sum, own[k], b + 2 * k, 1);
    }
    wgmma::Commit();
    wgmma::Wait<1>();
    const int before = place.slot == 0 ? kStages - 1 : place.slot - 1;
    if (s > 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[before]));
    place.Next();
    if (s + 1 < work.count) {
      Take(place);
      Load(next, place.slot);
    }
  }

  // Waits for a stage's copies. Each consumer then rounds its part of x in float32, which no
  // product may read before all have; in any case tensor cores have to see what threads have
  // stored.
  __device__ __forceinline__ void Take(const Place<kStages>& place) const {
    ptx::BarrierWait(ptx::SharedAddress(&control.full[place.slot]), place.parity);
    if constexpr (kElement == 4) {
      const uint32_t own = stages + place.slot * Tile::Bytes(N) + (32 * warp + lane) * 16;
#pragma unroll
      for (int i = 0; i < Tile::XBytes(N); i += kConsumers * 16) {
        const uint4 v = ptx::LoadShared128(own + i);
        ptx::StoreShared128(own + i, make_uint4(RoundToTf32(v.x), RoundToTf32(v.y),
                                                RoundToTf32(v.z), RoundToTf32(v.w)));
      }
    }
    ptx::FenceAsync();
    if constexpr (kElement == 4) {
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.rounded[place.slot]));
    }
  }

  __device__ __forceinline__ void Load(Fragments& a, int slot) const {
    const uint32_t dy = stages + slot * Tile::Bytes(N) + Tile::XBytes(N);
    constexpr int kPixelsOfWord = 4 / kElement;
    const int row = RowOf(0);
    const uint32_t at =
        dy + row / KW * kPitch + row % KW * kElement + lane % 4 * (kPixelsOfWord * kPixel);
#pragma unroll
    for (int k = 0; k < Tile::kSteps; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // of the step's pixels
        const uint32_t from = at + (2 * k + half) * (kStepPixels / 2 * kPixel);
        LoadPair(a[k][2 * half], a[k][2 * half + 1], from);
      }
    }
  }

  // The words of two rows.
  __device__ __forceinline__ void LoadPair(uint32_t& first, uint32_t& second, uint32_t from) const {
    if constexpr (KW == 1) {
      first = ptx::LoadSharedWord(from);
      second = ptx::LoadSharedWord(from + 8 * kPitch);
    } else if constexpr (kElement == 4) {
      const uint2 v = ptx::LoadShared64(from);
      first = v.x;
      second = v.y;
    } else {
      // Two pixels of two kx each.
      uint2 v;
      if constexpr (KW == 2) {
        v = ptx::LoadShared64(from);
      } else {
        v = make_uint2(ptx::LoadSharedWord(from), ptx::LoadSharedWord(from + kPixel));
      }
      first = __byte_perm(v.x, v.y, 0x5410);
      second = __byte_perm(v.x, v.y, 0x7632);
    }
    if constexpr (kElement == 4) {
      first = RoundToTf32(first);
      second = RoundToTf32(second);
    }
  }

  static constexpr int kSixteens = N / 16;  // of columns, in which blocks of a cluster share

  // To [channel of x][row]. Each call is code of its own, and as little of it as can be: what most
  // blocks wait for at their end is to load it.
  template <bool PAIRS, typename Out>
  __device__ __forceinline__ void Store(const float (&sum)[N / 2], Out* to) const {
    struct alignas(2 * sizeof(Out)) Pair {
      Out first, second;
    };
    constexpr int kSecond = KW == 1 ? 8 : 1;
    const int row = work.row + RowOf(0);
    const int channels = p.in_per_group - work.column - lane % 4 * 2;
    const bool exists[2] = {row < p.rows, row + kSecond < p.rows};
    const int64_t step = p.rows;
    Out* at = to + (work.group * int64_t{p.in_per_group} + work.column + lane % 4 * 2) * step + row;
    const int rank = p.cluster > 1 ? static_cast<int>(cluster::Rank()) : 0;
    const int begin = rank * kSixteens / p.cluster * 16,
              end = (rank + 1) * kSixteens / p.cluster * 16;
#pragma unroll
    for (int j = 0; j < N; j += 8) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool wanted = j >= begin && j < end && j + e < channels;
        const Out first = static_cast<Out>(sum[j / 2 + e]);
        const Out second = static_cast<Out>(sum[j / 2 + 2 + e]);
        if constexpr (PAIRS) {
          if (wanted && exists[0]) *reinterpret_cast<Pair*>(at) = Pair{first, second};
        } else {
          if (wanted && exists[0]) at[0] = first;
          if (wanted && exists[1]) at[kSecond] = second;
        }
        at += e == 0 ? step : 7 * step;
      }
    }
  }
};

// Registers of a thread: two warpgroups of consumers and one of producers have 65536.
constexpr int kConsumerRegisters = 200, kProducerRegisters = 104;

template <typename T, int KW, int N>
__global__ void __launch_bounds__(kThreads, 1) GemmWgradKernel(const __grid_constant__ Params p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t stages = ptx::SharedAddress(shared) + kControlBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const Work work(p, N);
  if (thread == 0) {
    for (int i = 0; i < Tile::Stages(N); ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducers + (p.boxed ? 1 : 0));
      ptx::BarrierInit(ptx::SharedAddress(&control.rounded[i]), kConsumerWarps);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumers);
    }
    ptx::BarrierInitFence();
  }
  if (thread < Tile::Lines(KW)) {
    int channel = work.row / KW + thread;
    const int tap = p.by_tap.Split(channel);
    control.line[thread] =
        (work.group * int64_t{p.out_per_group} + channel) * p.dy_channel + tap * p.dy_line;
  }
  __syncthreads();
  if (warp < kProducerWarps) {
    ptx::RegistersDown<kProducerRegisters>();
    Producer<T, KW, N>{p, control, work, stages, thread}.Run();
    __syncwarp();
    if (p.cluster > 1) cluster::Sync();  // as the consumers, when they add
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    Consumer<T, KW, N>{p, control, work, stages, warp - kProducerWarps, thread % 32}.Run();
  }
  // No block may go while another reads its shared memory.
  __syncwarp();
  if (p.cluster > 1) cluster::SyncToLeave();
}

}  // namespace transconv::cuda::sm90_gemm_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_GEMM_WGRAD_CUH_
