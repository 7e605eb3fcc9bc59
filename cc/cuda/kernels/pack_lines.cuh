// Brings weights into the order in which the matrix product of lines reads them
// (core/lines_plan.h): of a phase [column tile][slab][piece][part][quad][columns of an
// instruction], four TF32 values each. With three products there are two parts: the value rounded
// to TF32, and what that leaves. What does not exist is zero.
#ifndef TRANSCONV_CUDA_KERNELS_PACK_LINES_CUH_
#define TRANSCONV_CUDA_KERNELS_PACK_LINES_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/gemm_plan.h"
#include "core/lines_plan.h"
#include "cuda/primitives/ptx.cuh"
#include "cuda/primitives/tf32.cuh"
#include "cuda/primitives/tf32_parts.cuh"

namespace transconv::cuda {

constexpr int kPackLinesThreads = 64;

struct PackLinesParams {
  struct Phase {
    uint8_t* packed;
    int pieces;  // of a slab
    int first_quad, columns;
    int blocks;  // up to its own
    Divider by_piece, by_slab, by_residue;
  };
  const float* weight;                // (in_channels, out_channels, kh, kw)
  int channels;                       // of the sum
  int column_stride, channel_stride;  // elements
  int slab_channels, slabs, instruction, blocks_a_piece;
  bool along_taps, fours;
  bool vectors;  // a quad's weights are neighbours, and aligned
  int phases;
  Phase phase[kLinesPhases];
  LinesQuad quad[kLinesQuads];
};

// A thread packs one column of one piece.
template <int STEPS, int PRODUCTS>
__global__ void __launch_bounds__(kPackLinesThreads)
    PackLinesKernel(const __grid_constant__ PackLinesParams p) {
  constexpr int kQuads = 2 * STEPS, kParts = PRODUCTS == 3 ? 2 : 1;
  ptx::LetKernelBehindStart();
  int block = static_cast<int>(blockIdx.x);
  int i = 0;
  while (block >= p.phase[i].blocks) ++i;
  const PackLinesParams::Phase& phase = p.phase[i];
  if (i > 0) block -= p.phase[i - 1].blocks;
  int rest = block / p.blocks_a_piece;
  const int at = block % p.blocks_a_piece * kPackLinesThreads + static_cast<int>(threadIdx.x);
  if (at >= p.instruction) return;
  uint8_t* const to =
      phase.packed +
      (static_cast<int64_t>(rest) * kParts * kQuads * p.instruction + at) * kLinesCell;
  const int piece = phase.by_piece.Split(rest);
  const int slab = phase.by_slab.Split(rest);
  const int column = rest * p.instruction + GemmColumn(at, p.fours);
  int channel = column;
  const int residue = phase.by_residue.Split(channel);
  const float* const from = p.weight + static_cast<int64_t>(channel) * p.column_stride + residue;
  const int next_channel = p.along_taps ? 0 : 1, next_tap = 1 - next_channel;
  float values[kQuads][4];
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    const LinesQuad quad = p.quad[phase.first_quad + piece * kQuads + k];
    const int first = slab * p.slab_channels + quad.channel;
    if (p.vectors) {
      const bool inside =
          column < phase.columns && quad.offset != kLinesNothing && first < p.channels;
      const float4 four =
          inside ? *reinterpret_cast<const float4*>(
                       from + (static_cast<int64_t>(first) * p.channel_stride + quad.tap))
                 : make_float4(0.f, 0.f, 0.f, 0.f);
      values[k][0] = four.x;
      values[k][1] = four.y;
      values[k][2] = four.z;
      values[k][3] = four.w;
      continue;
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int summed = first + t * next_channel;
      const bool inside =
          column < phase.columns && quad.offset != kLinesNothing && summed < p.channels;
      values[k][t] =
          inside ? from[static_cast<int64_t>(summed) * p.channel_stride + quad.tap + t * next_tap]
                 : 0.f;
    }
  }
#pragma unroll
  for (int k = 0; k < kQuads; ++k) {
    uint8_t* const quad = to + static_cast<int64_t>(k) * p.instruction * kLinesCell;
    float high[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) high[t] = tf32::Element<float>::Load(values[k][t]);
    *reinterpret_cast<float4*>(quad) = make_float4(high[0], high[1], high[2], high[3]);
    if constexpr (PRODUCTS == 3) {
      float low[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) low[t] = tf32::LowPart(values[k][t], high[t]);
      *reinterpret_cast<float4*>(quad + kQuads * p.instruction * kLinesCell) =
          make_float4(low[0], low[1], low[2], low[3]);
    }
  }
}

}  // namespace transconv::cuda

#endif  // TRANSCONV_CUDA_KERNELS_PACK_LINES_CUH_
