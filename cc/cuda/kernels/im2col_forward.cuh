// The forward pass of problems with few channels on one side, on the tensor cores: a matrix product
// with the columns of every tap, and their sum (col2im) from shared memory.
//
// A warp holds the x of 16 MF pixels in registers, read from the image as fragments: eight
// neighbouring pixels of four channels or, channels last, two or four neighbouring channels a lane,
// are whole sectors. It multiplies them by the weights of all taps of some output channels, whose
// fragments lie in shared memory, and stores the columns there. Then lanes are neighbouring outputs
// and add up the columns of their taps; with a stride of two a lane has both outputs of a pixel, so
// that lanes read neighbouring columns. core/im2col_forward_plan.h has the sizes.
//
// The next tile's x is on its way while the last sums are made. Where input channels come in chunks
// and a tile has fewer pixels than warps, several warps have the same pixels and take turns at the
// chunks: what one waits for is on its way while the others multiply. Only taps inside of the image
// are added, and only pixels of the image are multiplied; input channels beyond the last one are
// zeros on both sides. Every sum has a fixed order.
#ifndef TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_CUH_
#define TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_CUH_

#include <cstdint>
#include <cstring>

#include "core/direct_plan.h"
#include "core/divider.h"
#include "core/geometry.h"
#include "core/im2col_forward_plan.h"
#include "cuda/kernels/im2col_stage.cuh"
#include "cuda/kernels/im2col_sums.cuh"
#include "cuda/primitives/shared_memory.cuh"
#include "cuda/primitives/tf32.cuh"

namespace transconv::cuda::im2col {

// The channel of a chunk that lane t multiplies in a step, in the first or second register: one
// order for both operands, as it suits the loads of x.
__device__ __forceinline__ int ChannelOf(int step, int t, int half, int wide) {
  if (wide == 1) return step * 8 + t + 4 * half;
  if (wide == 2) return step * 8 + 2 * t + half;
  return step / 2 * 16 + 4 * t + step % 2 * 2 + half;
}

// Weights of `parts` parts from one on, [part][chunk of k][fragment of columns][step][lane][two].
// kAhead: loads of a thread that are on their way at a time.
template <typename E, int KS, int kAhead>
__device__ __forceinline__ void StageColumnsWeights(float* to,
                                                    const typename E::Type* __restrict__ weight,
                                                    int part, int parts, const ForwardParams& p) {
  const Im2colForwardPlan& g = p.plan;
  const int size = parts * g.part_weights(), columns = p.out_per_group * p.taps;
  for (int e = static_cast<int>(threadIdx.x); e < size; e += kAhead * kBoxThreads) {
    typename E::Type found[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      // A lane's place in a fragment is the same for all.
      const int half = e % 2, lane = e / 2 % 32, t = lane % 4;
      int chunk = (e + i * kBoxThreads) / 64;
      const int step = p.by_steps.Split(chunk), fragment = p.by_fragments.Split(chunk);
      int at_part = chunk;
      chunk = p.by_chunks.Split(at_part);
      const int column = fragment * 8 + lane / 4;
      const int all = (part + at_part) * g.chunk * p.taps + column;
      const int in = chunk * (8 * KS) + ChannelOf(step, t, half, p.wide);
      found[i] = 0;
      if (column < g.chunk * p.taps && all < columns && in < p.in_per_group) {
        found[i] = weight[in * columns + all];
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (e + i * kBoxThreads < size) to[e + i * kBoxThreads] = E::Load(found[i]);
    }
  }
}

// An element's bits in a register, as which it is loaded, and the operand that it becomes when it
// is there.
template <typename E>
__device__ __forceinline__ float Held(typename E::Type v) {
  uint32_t bits = 0;
  memcpy(&bits, &v, sizeof(v));
  float held;
  memcpy(&held, &bits, sizeof(held));
  return held;
}
template <typename E>
__device__ __forceinline__ float OperandOf(float held) {
  typename E::Type v;
  memcpy(&v, &held, sizeof(v));
  return E::Load(v);
}

// The x of a piece and a chunk of k, as the registers of its fragments.
template <typename E, int MF, int KS>
__device__ __forceinline__ void LoadPixels(float (&a)[MF][KS][4],
                                           const typename E::Type* __restrict__ x,
                                           const ForwardTile& tile, int piece, int chunk,
                                           const ForwardParams& p) {
  using Type = typename E::Type;
  const int lane = static_cast<int>(threadIdx.x) % 32, t = lane % 4;
  const int first = chunk * (8 * KS) + p.wide * t;
  const uint32_t channel = static_cast<uint32_t>(p.x_channel);
  const Type* const image = x + tile.image * p.x_batch;
#pragma unroll
  for (int i = 0; i < 2 * MF; ++i) {
    const int m = piece * (16 * MF) + i * 8 + lane / 4;
    int r = m;
    const int c = p.by_window.Split(r);
    const int channels = m < p.plan.pixels() ? p.in_per_group - first : 0;
    // An image has fewer than 2^31 elements.
    const uint32_t at = static_cast<uint32_t>((tile.x_row + r) * p.w.source + tile.x_column + c) *
                            static_cast<uint32_t>(p.x_column) +
                        static_cast<uint32_t>(first) * channel;
    float (&to)[KS][4] = a[i / 2];
    if (KS > 1 && p.wide == 4) {
#pragma unroll
      for (int s = 0; s < KS; s += 2) {
        Vector<Type, 4> four = {};  // zero's bits in every type
        if (s * 8 < channels) {
          four = *reinterpret_cast<const Vector<Type, 4>*>(image + (at + s * 8));
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          to[(s + k / 2) % KS][i % 2 + k % 2 * 2] = Held<E>(four.value[k]);
        }
      }
    } else if (p.wide == 2) {
#pragma unroll
      for (int s = 0; s < KS; ++s) {
        Vector<Type, 2> two = {};
        if (s * 8 < channels) {
          two = *reinterpret_cast<const Vector<Type, 2>*>(image + (at + s * 8));
        }
        to[s][i % 2] = Held<E>(two.value[0]);
        to[s][i % 2 + 2] = Held<E>(two.value[1]);
      }
    } else {
#pragma unroll
      for (int s = 0; s < KS; ++s) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          Type value = 0;
          if (s * 8 + 4 * j < channels) value = image[at + (s * 8 + 4 * j) * channel];
          to[s][i % 2 + 2 * j] = Held<E>(value);
        }
      }
    }
  }
}

// columns (+)= weights times a warp's pixels. `to` is the lane's first element, `weights` its first
// registers; kAdd: sums of an earlier chunk of k are there.
template <int MF, int KS>
__device__ __forceinline__ void MultiplyColumns(float* to, const float (&a)[MF][KS][4],
                                                const Vector<float, 2>* weights, bool adds,
                                                const Im2colForwardPlan& g) {
#pragma unroll 1
  for (int n = 0; n < g.n_frags; ++n) {
    float sum[MF][4] = {};
    if (adds) {
#pragma unroll
      for (int i = 0; i < MF; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = to[j % 2 * g.pitch + i * 16 + j / 2 * 8];
      }
    }
#pragma unroll
    for (int s = 0; s < KS; ++s) {
      const Vector<float, 2> b = weights[s * 32];
#pragma unroll
      for (int i = 0; i < MF; ++i) tf32::Multiply(sum[i], a[i][s], b.value[0], b.value[1]);
    }
#pragma unroll
    for (int i = 0; i < MF; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) to[j % 2 * g.pitch + i * 16 + j / 2 * 8] = sum[i][j];
    }
    weights += KS * 32;
    to += 8 * g.pitch;
  }
}

// Blocks of a multiprocessor by registers: before 9.0 two steps need more.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <int MF, int KS>
constexpr int kForwardBlocks = KS == 1 ? 3 : 2;
#else
template <int MF, int KS>
constexpr int kForwardBlocks = MF * KS <= 4 ? 3 : 2;
#endif

template <typename E, int MF, int KS>
__global__ void __launch_bounds__(kBoxThreads, kForwardBlocks<MF, KS>)
    ForwardKernel(const typename E::Type* __restrict__ x,
                  const typename E::Type* __restrict__ weight,
                  const typename E::Type* __restrict__ bias, typename E::Type* __restrict__ y,
                  const __grid_constant__ ForwardParams p) {
  using Type = typename E::Type;
  const Im2colForwardPlan& g = p.plan;
  unsigned char* const shared = SharedMemory();
  float* const weights = reinterpret_cast<float*>(shared);
  float* const columns = reinterpret_cast<float*>(shared + g.columns_at);
  TapRun* const runs = reinterpret_cast<TapRun*>(shared + g.tables_at);
  float* const results = reinterpret_cast<float*>(shared + g.results_at);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  int stream = static_cast<int>(blockIdx.x);
  const int group = p.by_group.Split(stream);
  x += group * p.in_per_group * p.x_channel;
  y += group * p.out_per_group * p.y_channel;
  weight += int64_t{group} * p.in_per_group * p.out_per_group * p.taps;
  if (bias != nullptr) bias += group * p.out_per_group;
  // Of which piece a warp has every `turns`-th chunk, from the `turn`-th on.
  const int turns = g.turns(), turn = warp / g.pieces, own_piece = warp % g.pieces;
  float a[MF][KS][4];
  if (turn < turns && stream < g.tiles) {
    LoadPixels<E, MF, KS>(a, x, ForwardTile(stream, p), own_piece, turn, p);
  }
  if (g.held) StageColumnsWeights<E, KS, (KS > 2 ? 12 : 6)>(weights, weight, 0, g.parts, p);
  for (int index = stream; index < g.tiles; index += p.streams) {
    for (int part = 0; part < g.parts; ++part) {
      __syncthreads();
      if (part == 0) {
        const ForwardTile tile(index, p);
        for (int i = thread; i < g.rows + g.columns; i += kBoxThreads) {
          runs[i] = i < g.rows ? TapsInWindow(p.h, tile.y_row + i, tile.x_row, g.x_rows,
                                              p.w.kernel * g.pitch, g.x_columns)
                               : TapsInWindow(p.w, tile.y_column + i - g.rows, tile.x_column,
                                              g.x_columns, g.pitch, 1);
        }
      }
      if (!g.held) {
        StageColumnsWeights<E, KS, 4>(weights, weight, part, 1, p);
        __syncthreads();
      }
      const auto convert = [&] {
#pragma unroll
        for (int i = 0; i < MF; ++i) {
#pragma unroll
          for (int s = 0; s < KS; ++s) {
#pragma unroll
            for (int j = 0; j < 4; ++j) a[i][s][j] = OperandOf<E>(a[i][s][j]);
          }
        }
      };
      const auto multiply = [&](int piece, int chunk) {
        const int first = g.held ? part * g.part_weights() : 0;
        MultiplyColumns<MF, KS>(columns + lane % 4 * 2 * g.pitch + piece * (16 * MF) + lane / 4, a,
                                reinterpret_cast<const Vector<float, 2>*>(weights + first) +
                                    chunk * (g.n_frags * KS * 32) + lane,
                                chunk > 0, g);
      };
      if (turns > 0) {
        int own = turn;
#pragma unroll 1
        for (int chunk = 0; chunk < g.k_chunks; ++chunk) {
          if (chunk > 0) __syncthreads();
          if (chunk != own || turn >= turns) continue;
          if (!g.keeps_pixels() || part == 0) convert();
          multiply(own_piece, chunk);
          own += turns;
          int next = index, next_chunk = own;
          if (own >= g.k_chunks) {
            next_chunk = turn;
            if (part == g.parts - 1) next += p.streams;
          }
          const bool same = next == index && g.k_chunks == 1;
          if (next < g.tiles && !same) {
            LoadPixels<E, MF, KS>(a, x, ForwardTile(next, p), own_piece, next_chunk, p);
          }
        }
      } else {
#pragma unroll 1
        for (int round = 0; round < g.rounds; ++round) {
          const int piece = round * Im2colPlan::kWarps + warp;
          if (piece >= g.pieces) break;
#pragma unroll 1
          for (int chunk = 0; chunk < g.k_chunks; ++chunk) {
            LoadPixels<E, MF, KS>(a, x, ForwardTile(index, p), piece, chunk, p);
            convert();
            multiply(piece, chunk);
          }
        }
      }
      __syncthreads();
      const ForwardTile tile(index, p);  // anew, rather than in registers all the time
      Type* const to = y + tile.image * p.y_batch;
      if (p.pairs) {
        AddColumns<E, 2>(to, columns, runs, results, bias, tile, part, p);
      } else {
        AddColumns<E, 1>(to, columns, runs, results, bias, tile, part, p);
      }
      if (g.collected && (!g.collects_all || part == g.parts - 1)) {
        __syncthreads();
        StoreCollected<E>(to, results, tile, g.collects_all ? 0 : part * g.chunk, p);
      }
    }
  }
}

// `most_wide`: of how many elements, 1, 2 or 4, vectors of x are aligned; `pairs_of_y`: whether y
// is aligned to two.
inline ForwardParams MakeForwardParams(const Problem& q, const Im2colForwardPlan& plan,
                                       int most_wide, int most_stored, int64_t blocks) {
  const bool first = q.layout == Layout::kNCHW;
  const int64_t x_size = q.h.in * q.w.in, y_size = q.h.out * q.w.out;
  ForwardParams p{};
  p.plan = plan;
  p.h = DirectAxis(q.h, Pass::kForward);
  p.w = DirectAxis(q.w, Pass::kForward);
  p.x_batch = q.in_channels * x_size;
  p.x_channel = first ? x_size : 1;
  p.x_column = static_cast<int>(first ? 1 : q.in_channels);
  p.y_batch = q.out_channels * y_size;
  p.y_channel = first ? y_size : 1;
  p.y_column = static_cast<int>(first ? 1 : q.out_channels);
  p.in_per_group = static_cast<int>(q.in_per_group());
  p.out_per_group = static_cast<int>(q.out_per_group());
  p.taps = static_cast<int>(q.taps());
  p.streams =
      static_cast<int>(std::clamp<int64_t>(blocks / q.groups, 1, std::max<int64_t>(plan.tiles, 1)));
  p.wide = first ? 1 : plan.k_steps > 1 ? most_wide : std::min(most_wide, 2);
  while (q.in_per_group() % p.wide != 0) p.wide /= 2;
  p.pairs = q.w.stride == 2;
  p.joined = most_stored > 1 && p.y_column == 1 && q.w.out % 2 == 0;
  const int64_t run = plan.columns * q.out_channels;
  p.whole_rows = plan.collected && q.groups == 1 && (plan.parts == 1 || plan.collects_all) &&
                 most_stored == 4 && run % 4 == 0 && q.w.out * q.out_channels % 4 == 0;
  p.by_row_vectors = Divider(std::max<int64_t>(run / 4, 1));
  p.hop_row = p.h.step * p.w.kernel * plan.pitch - p.h.hop * plan.x_columns;
  p.hop_column = p.w.step * plan.pitch - p.w.hop;
  p.by_group = Divider(q.groups);
  p.by_tile_w = Divider(plan.tiles_w);
  p.by_tile_h = Divider(plan.tiles_h);
  p.by_window = Divider(plan.x_columns);
  p.by_items = Divider(plan.columns / (p.pairs ? 2 : 1));
  p.by_run_channels = Divider(plan.collects_all ? q.out_per_group() : plan.chunk);
  p.by_run_columns = Divider(plan.columns);
  p.by_steps = Divider(plan.k_steps);
  p.by_fragments = Divider(plan.n_frags);
  p.by_chunks = Divider(plan.k_chunks);
  return p;
}

}  // namespace transconv::cuda::im2col

#endif  // TRANSCONV_CUDA_KERNELS_IM2COL_FORWARD_CUH_
