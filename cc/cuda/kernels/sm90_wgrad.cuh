// Hopper's dense kernel for the weight gradient: tiles of both images and wgmma over pixels.
//
// dw[c, o, tap] = sum over positions of x[c, position] * dy[o, position moved by the tap]. The rows
// of the matrix product are 64 channels of x, its columns 64 channels of dy for each tap, and the
// sum runs over pixels, so both operands are read MN-major from cells (core/wgrad_plan.h):
//
//     producers    4 or 8 warps gather a tile of x and its halo of dy in any layout, convert them
//                  to 16 bits and store them as cells, each once for all taps; or cells that are
//                  ready are copied (sm90_wgrad_cells.cuh)
//     consumers    two or three warpgroups with their own taps, up to three accumulators of 64 x
//                  64, in one instruction where the taps are vertical neighbours; or two with two
//                  halves of 128 channels and the same four taps
//
// The tiles are split over blocks; every block adds its sums, in float32 and at a fixed interval
// (tensor-core accumulators truncate), to a private slot in the workspace. A second kernel adds the
// slots in their order: bit-reproducible, no atomics. float32 carries a block exponent for each
// image (primitives/operand.cuh); with PRODUCTS = 3 the low parts are multiplied too.
#ifndef TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_
#define TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_

#include <cstdint>

#include "cuda/kernels/sm90_wgrad_cells.cuh"
#include "cuda/kernels/sm90_wgrad_gather.cuh"
#include "cuda/kernels/sm90_wgrad_params.cuh"
#include "cuda/primitives/operand.cuh"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/wgmma.cuh"

namespace transconv::cuda::sm90_wgrad {

template <typename T, typename Form, bool RUN, int PRODUCTS, bool CELLS>
struct Consumer {
  static constexpr int kSlots = Form::kSlots;
  using Operand = typename Element<T>::Operand;
  static constexpr bool kScaled = sizeof(T) == 4;

  const WgradParams& p;
  const Work work;
  Control& control;
  const uint32_t stages;
  const int group, thread;  // warpgroup, thread in it

  __device__ void Run() {
    float sum[kSlots][32];
    const int half = Form::kHalves == 2 ? group : 0;
    const int first_place = (work.pass * Form::kTapGroups + group - half) * kSlots;
    const uint64_t a_base =
        wgmma::Descriptor(p.pixel_groups == 0 ? 128 : p.x_row_bytes, p.x_chunk_bytes) |
        ((stages + half * 8 * p.x_chunk_bytes) >> 4);
    const uint64_t b_base =
        wgmma::Descriptor(p.pixel_groups == 0 ? 128 : p.dy_row_bytes, p.dy_chunk_bytes) |
        (stages >> 4);
    uint32_t b_start[kSlots];
#pragma unroll
    for (int s = 0; s < kSlots; ++s) b_start[s] = p.start[first_place + s];
    int stage = 0;
    uint32_t parity = 0;
    bool first = true;
    int tile = work.first;
    do {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[s][i] = 0.f;
      }
      int exponent = 0;
      for (int n = 0; n < p.flush && tile < work.last; ++n, ++tile) {
        ptx::BarrierWait(ptx::SharedAddress(&control.full[stage]), parity);
        if constexpr (CELLS) ptx::FenceAsync();  // copies of threads are none of the async proxy
        if constexpr (kScaled && !CELLS) {
          // Unconditional: a branch would make the compiler serialise the matrix instructions.
          const int now = control.exponent[stage];
          const float factor = n == 0 ? 1.f : PowerOfTwo(max(exponent - now, -126));
          exponent = now;
#pragma unroll
          for (int s = 0; s < kSlots; ++s) {
#pragma unroll
            for (int i = 0; i < 32; ++i) sum[s][i] *= factor;
          }
        }
        Accumulate(sum, a_base + static_cast<uint32_t>(stage * (p.stage_bytes >> 4)),
                   b_base + static_cast<uint32_t>(stage * (p.stage_bytes >> 4)), b_start);
        if (thread % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(&control.empty[stage]));
        if (++stage == p.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float4* const slot = reinterpret_cast<float4*>(p.slots) +
                           (static_cast<int64_t>(blockIdx.x) * Form::kWarpgroups + group) * kSlots *
                               (kSlotFloats / 4) +
                           thread;
      if constexpr (kScaled && CELLS) {
        exponent =
            PackedExponent<PRODUCTS>(p.magnitudes[0]) + PackedExponent<PRODUCTS>(p.magnitudes[1]);
      }
      // Two steps: the product of both scales may leave float32's range.
      const float scale = kScaled ? PowerOfTwo(exponent / 2 - kTargetExponent) : 1.f;
      const float scale_too = kScaled ? PowerOfTwo(exponent - exponent / 2 - kTargetExponent) : 1.f;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          float4* const at = slot + (s * 8 + j) * 128;
          // Not all loads at once: they would need as many registers as the sums.
          asm volatile("" ::: "memory");
          const float4 old = first ? make_float4(0.f, 0.f, 0.f, 0.f) : *at;
          *at = make_float4(old.x + sum[s][4 * j] * scale * scale_too,
                            old.y + sum[s][4 * j + 1] * scale * scale_too,
                            old.z + sum[s][4 * j + 2] * scale * scale_too,
                            old.w + sum[s][4 * j + 3] * scale * scale_too);
        }
      }
      first = false;
    } while (tile < work.last);
  }

  // Adds one stage: all its rows, 16 pixels at a time.
  __device__ __forceinline__ void Accumulate(float (&sum)[kSlots][32], uint64_t a, uint64_t b,
                                             const uint32_t (&b_start)[kSlots]) {
    const int across = p.pixel_groups == 0 ? p.columns / 16 : 1;  // steps in a row
    const int down = p.pixel_groups == 0 ? p.rows : p.rows / 2;
    const uint32_t x_down = (p.x_row_bytes >> 4) * (p.pixel_groups == 0 ? 1 : 2);
    const uint32_t dy_down = (p.dy_row_bytes >> 4) * (p.pixel_groups == 0 ? 1 : 2);
    if constexpr (PRODUCTS == 1) {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) wgmma::Pin(sum[s]);
      wgmma::Fence();
      for (int y = 0; y < down; ++y) {
        for (int k = 0; k < across; ++k) {
          const uint64_t a_at = a + y * x_down + 16u * k;
          const uint64_t b_at = b + y * dy_down + 16u * k;
          wgmma::Fence();
          if constexpr (RUN) {
            wgmma::MultiplyPixels<Operand, kSlots>::Run(sum, a_at, b_at + b_start[0]);
          } else {
#pragma unroll
            for (int s = 0; s < kSlots; ++s) {
              wgmma::MultiplyPixels<Operand, 1>::Run(reinterpret_cast<float (&)[1][32]>(sum[s]),
                                                     a_at, b_at + b_start[s]);
            }
          }
        }
      }
      wgmma::Commit();
      wgmma::Wait<0>();
#pragma unroll
      for (int s = 0; s < kSlots; ++s) wgmma::Pin(sum[s]);
    } else {
      const uint32_t low = static_cast<uint32_t>(p.part_bytes >> 4);
      const int steps = down * across;
      for (int i = 0; i < steps; i += kPromote) {
        const int end = min(i + kPromote, steps);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          float part[1][32];
#pragma unroll
          for (int e = 0; e < 32; ++e) part[0][e] = 0.f;
          wgmma::Pin(part[0]);
          wgmma::Fence();
          for (int j = i; j < end; ++j) {
            const int y = j / across, k = j - y * across;
            const uint64_t a_at = a + y * x_down + 16u * k;
            const uint64_t b_at = b + b_start[s] + y * dy_down + 16u * k;
            wgmma::Fence();
            // The small products first: less is cut off when the large one joins.
            wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at + low, b_at);
            wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at, b_at + low);
            wgmma::MultiplyPixels<Operand, 1>::Run(part, a_at, b_at);
          }
          wgmma::Commit();
          wgmma::Wait<0>();
          wgmma::Pin(part[0]);
#pragma unroll
          for (int e = 0; e < 32; ++e) sum[s][e] += part[0][e];
        }
      }
    }
  }
};

template <typename T, typename Form, bool RUN, int PRODUCTS, bool CELLS>
__global__ void __launch_bounds__(kThreads, 1) WgradKernel(const __grid_constant__ WgradParams p) {
  TRANSCONV_SHARED_MEMORY(shared);
  Control& control = *reinterpret_cast<Control*>(shared);
  const uint32_t stages = ptx::SharedAddress(shared) + kControlBytes;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kMaxStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&control.full[i]), !CELLS     ? Form::kProducerWarps
                                                             : p.tables ? Form::kProducers
                                                                        : 1);
      ptx::BarrierInit(ptx::SharedAddress(&control.empty[i]), Form::kConsumerWarps);
    }
    ptx::BarrierInitFence();
  }
  const uint32_t table = ptx::SharedAddress(shared + p.table_at);
  if (!CELLS || p.tables) CellTables<Form>{p, Work(p), table, warp, lane}.BuildPlaces();
  if constexpr (CELLS) ptx::WaitForKernelsBefore();
  __syncthreads();
  if (warp < Form::kProducerWarps) {
    ptx::RegistersDown<Form::kProducerRegisters>();
    const Work work(p);
    const CellTables<Form> tables{p, work, table, warp, lane};
    if constexpr (CELLS) {
      CellsProducer<Form, PRODUCTS>{tables, control, stages}.Run();
    } else {
      const int64_t in =
          static_cast<int64_t>(work.group) * p.in_per_group + work.in_block * (64 * Form::kHalves);
      const int64_t out = static_cast<int64_t>(work.group) * p.out_per_group + work.out_block * 64;
      const uint32_t ring =
          static_cast<uint32_t>(p.raw_at + warp * Form::kAhead * kCellBytes + 4 * lane);
      GatherProducer<T, Form, PRODUCTS>{tables,
                                        control,
                                        stages,
                                        stages - kControlBytes + ring,
                                        static_cast<const char*>(p.x) + in * p.x_channel,
                                        static_cast<const char*>(p.dy) + out * p.dy_channel}
          .Run();
    }
  } else {
    ptx::RegistersUp<Form::kConsumerRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - Form::kProducers;
    const int group = (warp - Form::kProducerWarps) / 4;  // the same for all of a warp
    Consumer<T, Form, RUN, PRODUCTS, CELLS>{p, Work(p), control, stages, group, thread % 128}.Run();
  }
}

}  // namespace transconv::cuda::sm90_wgrad

#endif  // TRANSCONV_CUDA_KERNELS_SM90_WGRAD_CUH_
