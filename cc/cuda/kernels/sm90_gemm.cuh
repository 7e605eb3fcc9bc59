// Hopper's matrix product for kernels as large as their stride (core/gemm_plan.h).
//
//     producers    a warpgroup copies lines of the image as they are, asynchronously, and has the
//                  weights copied: packed ones (pack_gemm.cuh) in bulk, those of 16 bits as boxes
//                  of what they are
//     consumers    two warpgroups with 64 pixels each read what they need of the lines into
//                  registers, round float32 to TF32, and multiply it by all columns of the tile
//
// So no operand is stored to shared memory a second time, and no pixel is gathered. How results
// leave is sm90_gemm_store.cuh's.
//
// Where tiles are few, a tile's sum is cut between the blocks of a cluster; then each of them adds
// all parts of its own columns in their order, which makes results the same in every run.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_GEMM_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_GEMM_CUH_

#include <cstdint>

#include "cuda/kernels/cluster_parts.cuh"
#include "cuda/kernels/sm90_gemm_params.cuh"
#include "cuda/kernels/sm90_gemm_store.cuh"
#include "cuda/primitives/box_load.cuh"
#include "cuda/primitives/cluster.cuh"
#include "cuda/primitives/mma.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/wgmma.cuh"
#include "cuda/primitives/wgmma_registers.cuh"

namespace transconv::cuda::sm90_gemm {

// ROWS: weights are of 16 bits, and neighbours are columns.
template <typename T, int N, int VALUES, bool ROWS>
struct Kernel {
  static constexpr int kElements = kGemmSlabBytes / sizeof(T);
  static constexpr int kSlabLines = kElements / VALUES;
  static constexpr int kLinePitch =
      kGemmRows * VALUES * sizeof(T) + (sizeof(T) == 4 || VALUES == 2 ? 32
                                        : VALUES == 1                 ? 16
                                                                      : 64);
  static constexpr bool kPacked = sizeof(T) == 4;
  static constexpr int kWeightBytes = N * kGemmSlabBytes;
  static constexpr int kStageBytes = kGemmLineBytes + kWeightBytes;
  static_assert(kSlabLines * kLinePitch <= kGemmLineBytes);

  const GemmParams& p;
  Control& control;
  const ClusterWork work;
  const uint32_t stages;  // their shared address

  __device__ uint32_t Full(int stage) const { return ptx::SharedAddress(&control.full[stage]); }
  __device__ uint32_t Empty(int stage) const { return ptx::SharedAddress(&control.empty[stage]); }

  // -- producers --

  // What a slab needs of the weights.
  __device__ __forceinline__ void LoadWeights(int column_tile, int slab, int stage) const {
    const uint32_t to = stages + stage * kStageBytes + kGemmLineBytes;
    ptx::BarrierArriveExpect(Full(stage), kWeightBytes);
    const int column = column_tile * N, sum = slab * kElements;
    if constexpr (kPacked) {
      const int64_t at = static_cast<int64_t>(column_tile) * p.slabs + slab;
      ptx::BulkLoad(to, p.weights + at * kWeightBytes, kWeightBytes, Full(stage));
    } else if constexpr (ROWS) {
#pragma unroll
      for (int c = 0; c < N; c += 64) {
        ptx::BoxLoad(to + c * kGemmSlabBytes, p.weight_boxes, {column + c, sum, 0, 0, 0},
                     Full(stage));
      }
    } else {
      ptx::BoxLoad(to, p.weight_boxes, {sum, column, 0, 0, 0}, Full(stage));
    }
  }
  // Those of the first slabs, which have been packed just before.
  __device__ void LoadFirstWeights(int count) const {
    ptx::WaitForKernelsBefore();
    for (int k = 0; k < count; ++k) {
      int tile = work.first + k / work.slabs * work.step;
      const int column_tile = p.by_column_tile.Split(tile);
      LoadWeights(column_tile, work.first_slab + k % work.slabs, k);
    }
  }

  // Copies of kVector bytes: a thread has the same pixels in every line.
  template <int kVector>
  __device__ void Produce() const {
    constexpr int kChunks = kGemmRows * VALUES * static_cast<int>(sizeof(T)) / kVector;
    if constexpr (kChunks <= kProducers) {
      constexpr int kTogether = kProducers / kChunks;  // lines
      constexpr int kPixels = kVector / (VALUES * static_cast<int>(sizeof(T)));
      const int thread = threadIdx.x, chunk = thread % kChunks;
      const uint32_t own = stages + thread / kChunks * kLinePitch + chunk * kVector;
      const int slabs = CountSlabs(), ahead = min(p.stages, slabs);
      // From one of the thread's lines to its next.
      const int kh = static_cast<int>(p.by_line.divisor), rest = kTogether % kh;
      const int64_t step = (kTogether / kh * p.channel + rest * p.line) * sizeof(T);
      const int64_t carry = (p.channel - kh * p.line) * static_cast<int>(sizeof(T));
      int stage = 0, k = 0;
      uint32_t parity = 1;
      for (int tile = work.first; tile < p.tiles; tile += work.step) {
        int row_tile = tile;
        const int column_tile = p.by_column_tile.Split(row_tile);
        const int q = row_tile * kGemmRows + chunk * kPixels;
        int line = work.first_slab * kSlabLines + thread / kChunks, channel = line;
        int within = p.by_line.Split(channel);
        const T* const pixel =
            static_cast<const T*>(p.source) + (q < p.pixels ? p.from.OffsetOf(q) : 0);
        const char* from =
            reinterpret_cast<const char*>(pixel + (channel * p.channel + within * p.line));
        const int lines = q < p.pixels ? p.lines : 0;
        for (int slab = 0; slab < work.slabs; ++slab, ++k) {
          ptx::BarrierWait(Empty(stage), parity);
          if (!kPacked && thread == 0) LoadWeights(column_tile, work.first_slab + slab, stage);
          const uint32_t to = own + stage * kStageBytes;
#pragma unroll
          for (int i = 0; i < kSlabLines / kTogether; ++i, line += kTogether) {
            const bool wanted = line < lines;
            ptx::CopyAsync<kVector>(to + i * kTogether * kLinePitch, wanted ? from : p.source,
                                    wanted);
            from += step;
            if ((within += rest) >= kh) {
              within -= kh;
              from += carry;
            }
          }
          ptx::CopyAsyncArrive(Full(stage));
          if (kPacked && thread == 0) {
            // The first lines need not wait for the weights.
            if (k == ahead - 1) LoadFirstWeights(ahead);
            if (k >= ahead) LoadWeights(column_tile, work.first_slab + slab, stage);
          }
          if (++stage == p.stages) stage = 0, parity ^= 1;
        }
      }
      ptx::CopyAsyncCommit();
      ptx::CopyAsyncWait<0>();
    }
  }
  __device__ int CountSlabs() const {
    return work.first < p.tiles ? ((p.tiles - 1 - work.first) / work.step + 1) * work.slabs : 0;
  }

  // -- consumers --

  // A stage's operand of a thread: what its steps multiply. `at` is the thread's own place.
  __device__ __forceinline__ static void LoadRows(uint32_t (&a)[4][4], uint32_t at) {
    constexpr uint32_t kBelow = 8 * VALUES * sizeof(T);  // eight pixels on
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if constexpr (sizeof(T) == 2 && VALUES == 1) {
        mma::LoadMatricesTransposed(a[s], at + 16 * s * kLinePitch);
      } else if constexpr (VALUES == 1 || (sizeof(T) == 2 && VALUES == 2)) {
        const uint32_t line = at + 8 * s * kLinePitch;
        a[s][0] = ptx::LoadSharedWord(line);
        a[s][1] = ptx::LoadSharedWord(line + kBelow);
        a[s][2] = ptx::LoadSharedWord(line + 4 * kLinePitch);
        a[s][3] = ptx::LoadSharedWord(line + 4 * kLinePitch + kBelow);
      } else if constexpr (sizeof(T) == 2) {
        const uint32_t line = at + 4 * s * kLinePitch;
        a[s][0] = ptx::LoadSharedWord(line);
        a[s][1] = ptx::LoadSharedWord(line + kBelow);
        a[s][2] = ptx::LoadSharedWord(line + 2 * kLinePitch);
        a[s][3] = ptx::LoadSharedWord(line + 2 * kLinePitch + kBelow);
      } else if constexpr (VALUES == 2) {
        const uint32_t line = at + 4 * s * kLinePitch;
        const uint2 above = ptx::LoadShared64(line), below = ptx::LoadShared64(line + kBelow);
        a[s][0] = above.x, a[s][2] = above.y;
        a[s][1] = below.x, a[s][3] = below.y;
      } else if (s % 2 == 0) {
        const uint32_t line = at + 2 * s * kLinePitch;
        const uint4 above = ptx::LoadShared128(line), below = ptx::LoadShared128(line + kBelow);
        a[s][0] = above.x, a[s][2] = above.y, a[s + 1][0] = above.z, a[s + 1][2] = above.w;
        a[s][1] = below.x, a[s][3] = below.y, a[s + 1][1] = below.z, a[s + 1][3] = below.w;
      }
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[s][i] = __float_as_uint(tf32::Element<float>::Load(__uint_as_float(a[s][i])));
        }
      }
    }
  }

  // Whatever defines them comes before.
  __device__ __forceinline__ static void PinRows(uint32_t (&a)[4][4]) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[s][i])::"memory");
    }
  }

  __device__ void Consume() const {
    const int thread = static_cast<int>(threadIdx.x) - kProducers;
    const int lane = thread % 32, first_row = thread / 32 * 16;  // of the warp
    uint32_t own;
    if constexpr (sizeof(T) == 2 && VALUES == 1) {
      own = (lane / 16 * 8 + lane % 8) * kLinePitch + (first_row + lane / 8 % 2 * 8) * 2;
    } else if constexpr (sizeof(T) == 2 && VALUES == 4) {
      own = lane % 4 / 2 * kLinePitch + (first_row + lane / 4) * 8 + lane % 2 * 4;
    } else {
      own = lane % 4 * kLinePitch + (first_row + lane / 4) * VALUES * sizeof(T);
    }
    const uint32_t lines = stages + own;
    // In a cluster, shared addresses have the block's rank above the 18 bits of a descriptor's.
    const uint64_t layout = kPacked ? wgmma::Descriptor(N * 16, 128)
                            : ROWS  ? wgmma::SwizzledRowsDescriptor(64 * kGemmSlabBytes)
                                    : wgmma::SwizzledDescriptor();
    const uint64_t weights = layout | (((stages + kGemmLineBytes) & 0x3FFFF) >> 4);
    constexpr int kStep = kPacked ? 2 * N * 16 : ROWS ? 16 * wgmma::kSwizzledRow : 32;
    float sum[N / 2];
    int stage = 0;
    uint32_t parity = 0;
    int prepared = -1;
    for (int tile = work.first; tile < p.tiles; tile += work.step) {
      int row_tile = tile;
      const int column_tile = p.by_column_tile.Split(row_tile);
      if (column_tile != prepared) PrepareColumns(column_tile, thread);
      prepared = column_tile;
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sum[i] = 0.f;
      // Multiplies by a stage, while the rows of the next one are read.
      const auto multiply = [&](uint32_t (&rows)[4][4], uint32_t (&next)[4][4], bool more) {
        const uint64_t b = weights + static_cast<uint32_t>(stage * (kStageBytes >> 4));
        PinRows(rows);
        wgmma::Pin(sum);
        wgmma::Fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          wgmma::MultiplyRegisters<T, N, ROWS>::Run(sum, rows[s], b + s * (kStep >> 4), 1);
        }
        wgmma::Commit();
        const int used = stage;
        if (++stage == p.stages) stage = 0, parity ^= 1;
        if (more) {
          ptx::BarrierWait(Full(stage), parity);
          LoadRows(next, lines + stage * kStageBytes);
          PinRows(next);
        }
        wgmma::Wait<0>();
        wgmma::Pin(sum);
        ptx::BarrierArrive(Empty(used));
      };
      uint32_t even[4][4], odd[4][4];
      ptx::BarrierWait(Full(stage), parity);
      LoadRows(even, lines + stage * kStageBytes);
      for (int slab = 0; slab < work.slabs; slab += 2) {
        multiply(even, odd, slab + 1 < work.slabs);
        if (slab + 1 < work.slabs) multiply(odd, even, slab + 2 < work.slabs);
      }
      if (p.splits > 1) {
        // The ring is free: such a block has one tile.
        ptx::NamedBarrier<1, kConsumers>();  // nobody reads it any more
        AddClusterParts<kConsumers>(reinterpret_cast<float (&)[1][N / 2]>(sum), stages, thread,
                                    p.splits);
      }
      Results<T, N>{p, control, thread}.Store(sum, row_tile * kGemmRows);
    }
  }

  // Where the tile's columns are in the target, and their biases.
  __device__ __forceinline__ void PrepareColumns(int column_tile, int thread) const {
    ptx::NamedBarrier<1, kConsumers>();  // those of the last tile are not needed any more
    if (thread < N) {
      const int column = column_tile * N + thread;
      int channel = column;
      const int within = p.by_value.Split(channel);
      const int row = p.by_row.Split(channel);
      const bool exists = column < p.columns;
      control.offset[thread] =
          exists ? static_cast<uint32_t>(channel * p.to_channel + row * p.to_row + within)
                 : kNoColumn;
      const bool biased = exists && p.bias != nullptr;
      control.bias[thread] =
          biased ? static_cast<float>(static_cast<const T*>(p.bias)[channel]) : 0.f;
    }
    ptx::NamedBarrier<1, kConsumers>();
  }
};

template <typename T, int N, int VALUES, bool ROWS>
__global__ void __launch_bounds__(kThreads, 1) GemmKernel(const __grid_constant__ GemmParams p) {
  uint8_t* const shared = SharedMemory();
  Control& control = *reinterpret_cast<Control*>(shared);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      // The producers' copies, and the weights.
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), kProducers + 1);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), kConsumers);
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  const Kernel<T, N, VALUES, ROWS> kernel{
      p, control, ClusterWork(p.splits, p.slabs),
      ptx::SharedAddress(shared) + kControlBytes + (sizeof(T) == 2 ? StagedBytes(N) : 0)};
  if (warp < kProducers / 32) {
    ptx::RegistersDown<kProducerRegisters>();
    if (p.vector == 16) {
      kernel.template Produce<16>();
    } else if (p.vector == 8) {
      kernel.template Produce<8>();
    } else {
      kernel.template Produce<4>();
    }
    __syncwarp();
    if (p.splits > 1) cluster::Sync();  // as the consumers, when they add
  } else {
    ptx::RegistersUp<kConsumerRegisters>();
    kernel.Consume();
  }
  // No block may go while another reads its shared memory.
  __syncwarp();
  if (p.splits > 1) cluster::SyncToLeave();
}

}  // namespace transconv::cuda::sm90_gemm

#endif  // TRANSCONV_CUDA_KERNELS_SM90_GEMM_CUH_
