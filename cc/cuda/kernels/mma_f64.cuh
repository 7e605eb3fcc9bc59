// float64 on tensor cores, forward pass and input gradient: a matrix product per group and, in the
// forward pass, per output residue (core/geometry.h):
//
//     forward      rows: output positions of the residue   columns: output channels
//                  sum: (input channel, tap of the residue)
//     grad_input   rows: input positions                   columns: input channels
//                  sum: (output channel, tap)
//
// A block of four warps computes kM x kN results. Sixteen terms of the sum make a stage of a ring
// in shared memory; every value is a copy of its own of eight bytes, which is zero where a tap
// leaves the image. A warp holds 32 x 8 NT sums in registers. The tensor cores take 32 cycles for
// what the loads of a warp tile take 16 of shared memory's, so that nothing has to be clever to
// feed them.
#ifndef TRANSCONV_CUDA_KERNELS_MMA_F64_CUH_
#define TRANSCONV_CUDA_KERNELS_MMA_F64_CUH_

#include <cstdint>

#include "core/divider.h"
#include "core/geometry.h"
#include "core/residue_taps.h"
#include "cuda/primitives/copy_async.cuh"
#include "cuda/primitives/mma_f64.cuh"
#include "cuda/primitives/shared_memory.cuh"

namespace transconv::cuda::mma_f64 {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kBlocksEach = 3;  // of a multiprocessor
constexpr int kTerms = 16;      // of a stage
constexpr int kStages = 3;
// Rows of shared memory lie apart by 4 modulo 16 values, so that the 16 lanes which are served at a
// time meet all banks.
constexpr int kTermPitch = kTerms + 4;
constexpr int Pitch(int values) { return (values + 15) / 16 * 16 + 4; }

// WARPS_M x WARPS_N warps of 32 x 8 NT results.
template <int WARPS_M, int WARPS_N, int NT_>
struct Tile {
  static constexpr int NT = NT_, kM = 32 * WARPS_M, kWarpN = 8 * NT, kN = kWarpN * WARPS_N;
  static constexpr int kWarpsM = WARPS_M;
  static_assert(WARPS_M * WARPS_N == kWarps, "every warp has a part");
  static_assert(kThreads % kM == 0, "a thread gathers for one row");
};

// A warp's sums: of row 16 i + lane / 4 + 8 (v / 2) and column 8 j + 2 (lane % 4) + v % 2.
template <typename Tile>
using Sums = double[2][Tile::NT][4];

// What a thread's sums are of, and where its operands start in a stage.
template <typename Tile>
struct Place {
  int row, column;  // of the block's tile, of sum [0][0][0]
  int g, t;
  __device__ Place() {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
    g = lane / 4;
    t = lane % 4;
    row = 32 * (warp % Tile::kWarpsM) + g;
    column = Tile::kWarpN * (warp / Tile::kWarpsM);
  }
};

// Adds a stage: a[row * ROW + term * TERM], b[column * kTermPitch + term].
template <typename Tile, int ROW, int TERM>
__device__ __forceinline__ void AddStage(Sums<Tile>& sum, const double* a, const double* b,
                                         const Place<Tile>& place) {
  a += place.row * ROW + place.t * TERM;
  b += (place.column + place.g) * kTermPitch + place.t;
#pragma unroll
  for (int k = 0; k < kTerms; k += 8) {
    double from_b[Tile::NT][2];
#pragma unroll
    for (int j = 0; j < Tile::NT; ++j) {
      from_b[j][0] = b[8 * j * kTermPitch + k];
      from_b[j][1] = b[8 * j * kTermPitch + k + 4];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const double* const at = a + 16 * i * ROW + k * TERM;
      const double from_a[4] = {at[0], at[8 * ROW], at[4 * TERM], at[8 * ROW + 4 * TERM]};
#pragma unroll
      for (int j = 0; j < Tile::NT; ++j) Multiply(sum[i][j], from_a, from_b[j][0], from_b[j][1]);
    }
  }
}

// Strides of an image in elements, and its extents.
struct Image {
  int64_t batch = 0;
  int channel = 0, row = 0, column = 0, height = 0, width = 0;
};

struct GatherParams {
  const double* image;  // x or dy
  const double* weight;
  const double* bias;  // or null
  double* target;      // y or dx
  Image from, to;
  Axis h, w;
  int batch, per_group, summed;                     // columns and summed channels of a group
  int weight_column, weight_summed, group_weights;  // strides and size
  // A block's index, from the fastest part on: columns, residue, rows, residue, group.
  Divider by_n, by_w, by_m, by_h;
};

// One term of the sum.
struct alignas(16) Term {
  int row, column;  // what to add to a row's place in the image
  int offset;       // the same in elements, channel included
  int weight;       // offset of the weight of the group's first column; negative: no term
};
constexpr int kNowhere = -(1 << 29);  // a place that no tap moves into an image

template <typename Tile>
constexpr int kGatherBytes = kStages * (8 * (kTerms * Pitch(Tile::kM) + Tile::kN * kTermPitch) +
                                        kTerms * static_cast<int>(sizeof(Term))) +
                             8 * Tile::kM;

template <typename Tile, Pass kPass>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    GatherKernel(const __grid_constant__ GatherParams p) {
  constexpr bool kForward = kPass == Pass::kForward;
  constexpr int kPitch = Pitch(Tile::kM);
  constexpr int kSizeA = kTerms * kPitch, kSizeB = Tile::kN * kTermPitch;
  Term* const terms = reinterpret_cast<Term*>(SharedMemory());
  double* const ring_a = reinterpret_cast<double*>(terms + kStages * kTerms);
  double* const ring_b = ring_a + kStages * kSizeA;
  int64_t* const targets = reinterpret_cast<int64_t*>(ring_b + kStages * kSizeB);
  const int tid = static_cast<int>(threadIdx.x);

  int group = static_cast<int>(blockIdx.x);
  const int n0 = p.by_n.Split(group) * Tile::kN;
  const int residue_w = p.by_w.Split(group);
  const int m0 = p.by_m.Split(group) * Tile::kM;
  const int residue_h = p.by_h.Split(group);
  const ResidueTaps taps_h =
      kForward ? TapsOfResidue(p.h, residue_h) : ResidueTaps{0, 1, p.h.kernel};
  const ResidueTaps taps_w =
      kForward ? TapsOfResidue(p.w, residue_w) : ResidueTaps{0, 1, p.w.kernel};
  const int count_h = static_cast<int>(taps_h.count), count_w = static_cast<int>(taps_w.count);
  const int depth = count_h * count_w * p.summed;
  const int stages = (depth + kTerms - 1) / kTerms;

  // This thread's row: its place in the gathered image before any tap.
  const int m = tid % Tile::kM;
  int row = kNowhere, column = kNowhere;
  int64_t image_at = 0, target = -1;
  const int width = static_cast<int>(kForward ? p.w.ResidueExtent(residue_w) : p.w.in);
  const int height = static_cast<int>(kForward ? p.h.ResidueExtent(residue_h) : p.h.in);
  if (m0 + m < p.batch * height * width) {
    const int v = (m0 + m) / width, image = v / height;
    const int stride_h = static_cast<int>(p.h.stride), stride_w = static_cast<int>(p.w.stride);
    row = v - image * height;
    column = m0 + m - v * width;
    target = image * p.to.batch;
    if (kForward) {
      target += int64_t{row * stride_h + residue_h} * p.to.row +
                int64_t{column * stride_w + residue_w} * p.to.column;
    } else {
      target += int64_t{row} * p.to.row + int64_t{column} * p.to.column;
      row = row * stride_h - static_cast<int>(p.h.crop_lo);
      column = column * stride_w - static_cast<int>(p.w.crop_lo);
    }
    image_at = image * p.from.batch + int64_t{group} * p.summed * p.from.channel +
               int64_t{row} * p.from.row + int64_t{column} * p.from.column;
  }
  if (tid < Tile::kM) targets[m] = target;

  const auto make_terms = [&](int stage) {
    if (tid >= kTerms) return;
    const int k = stage * kTerms + tid;
    Term term = {kNowhere, kNowhere, 0, -1};
    if (k < depth) {
      const int tap = k / count_w, c = tap / count_h;
      const int64_t k_w = taps_w.first + taps_w.step * (k - tap * count_w);
      const int64_t k_h = taps_h.first + taps_h.step * (tap - c * count_h);
      term.row = static_cast<int>(kForward ? -p.h.TapOf(k_h).shift : p.h.dilation * k_h);
      term.column = static_cast<int>(kForward ? -p.w.TapOf(k_w).shift : p.w.dilation * k_w);
      term.offset = term.row * p.from.row + term.column * p.from.column + c * p.from.channel;
      term.weight = c * p.weight_summed + static_cast<int>(k_h * p.w.kernel + k_w);
    }
    terms[stage % kStages * kTerms + tid] = term;
  };
  const auto load = [&](int stage) {
    const Term* const of = terms + stage % kStages * kTerms;
    double* const a = ring_a + stage % kStages * kSizeA + m;
#pragma unroll
    for (int k = tid / Tile::kM; k < kTerms; k += kThreads / Tile::kM) {
      const Term term = of[k];
      const bool inside =
          static_cast<unsigned>(row + term.row) < static_cast<unsigned>(p.from.height) &&
          static_cast<unsigned>(column + term.column) < static_cast<unsigned>(p.from.width);
      CopyAsyncBytes<8>(a + k * kPitch, p.image + (inside ? image_at + term.offset : 0), inside);
    }
    const int k = tid % kTerms, weight = of[k].weight;
    const double* const from =
        p.weight + static_cast<int64_t>(group) * p.group_weights + (weight < 0 ? 0 : weight);
    double* const b = ring_b + stage % kStages * kSizeB + k;
#pragma unroll
    for (int n = tid / kTerms; n < Tile::kN; n += kThreads / kTerms) {
      const bool inside = weight >= 0 && n0 + n < p.per_group;
      CopyAsyncBytes<8>(b + n * kTermPitch, from + (inside ? (n0 + n) * p.weight_column : 0),
                        inside);
    }
  };

  for (int stage = 0; stage < kStages; ++stage) make_terms(stage);
  __syncthreads();
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) load(stage);
    CopyAsyncCommit();
  }
  const Place<Tile> place;
  Sums<Tile> sum = {};
  for (int stage = 0; stage < stages; ++stage) {
    CopyAsyncWait<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < stages) load(stage + kStages - 1);
    CopyAsyncCommit();
    // In the place of this stage's, which were read two barriers ago.
    if (stage + kStages < stages) make_terms(stage + kStages);
    AddStage<Tile, 1, kPitch>(sum, ring_a + stage % kStages * kSizeA,
                              ring_b + stage % kStages * kSizeB, place);
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t at = targets[place.row + 8 * i];
    if (at < 0) continue;
#pragma unroll
    for (int j = 0; j < 2 * Tile::NT; ++j) {
      const int n = n0 + place.column + 8 * (j / 2) + 2 * place.t + j % 2;
      if (n >= p.per_group) continue;
      const int channel = group * p.per_group + n;
      double v = sum[i / 2][j / 2][2 * (i % 2) + j % 2];
      if (kForward && p.bias != nullptr) v += p.bias[channel];
      p.target[at + static_cast<int64_t>(channel) * p.to.channel] = v;
    }
  }
}

}  // namespace transconv::cuda::mma_f64

#endif  // TRANSCONV_CUDA_KERNELS_MMA_F64_CUH_
