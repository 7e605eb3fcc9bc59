// From a problem to the parameters of the float64 kernels: no CUDA runtime, for the launcher and
// for their test on the CPU.
#ifndef TRANSCONV_CUDA_LAUNCH_MMA_F64_CALL_CUH_
#define TRANSCONV_CUDA_LAUNCH_MMA_F64_CALL_CUH_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/checked_math.h"
#include "core/dtypes.h"
#include "cuda/call.h"
#include "cuda/kernels/mma_f64.cuh"
#include "cuda/kernels/mma_f64_wgrad.cuh"

namespace transconv::cuda::mma_f64 {

constexpr int64_t kWanted = 3 * 132;             // blocks, of the weight gradient
constexpr int64_t kLeastPositions = 8 * kTerms;  // of a split
constexpr int64_t kMostPartialBytes = int64_t{64} << 20;

inline Image ImageOf(const Problem& q, bool is_x) {
  const int64_t channels = is_x ? q.in_channels : q.out_channels;
  Image i;
  const int64_t height = is_x ? q.h.in : q.h.out, width = is_x ? q.w.in : q.w.out;
  const bool first = q.layout == Layout::kNCHW;
  i.batch = channels * height * width;
  i.channel = static_cast<int>(first ? height * width : 1);
  i.row = static_cast<int>(first ? width : width * channels);
  i.column = static_cast<int>(first ? 1 : channels);
  i.height = static_cast<int>(height);
  i.width = static_cast<int>(width);
  return i;
}

// Calls `use` with the tile for so many channels of the result a group.
template <typename Use>
auto WithTile(int64_t channels, const Use& use) {
  if (channels <= 8) return use(Tile<4, 1, 1>{});
  if (channels <= 16) return use(Tile<4, 1, 2>{});
  if (channels <= 32) return use(Tile<4, 1, 4>{});
  return use(Tile<2, 2, 4>{});
}

// Blocks of the forward pass or the input gradient, along each part of their index.
struct Grid {
  int64_t columns, residues_w, rows, residues_h, groups;
  CheckedSize blocks() const {
    return CheckedProduct({columns, residues_w, rows, residues_h, groups});
  }
};
inline Grid GatherGrid(Pass pass, const Problem& q) {
  const bool forward = pass == Pass::kForward;
  const int64_t channels = forward ? q.out_per_group() : q.in_per_group();
  const int64_t rows =
      q.batch *
      (forward ? CeilDiv(q.h.out, q.h.stride) * CeilDiv(q.w.out, q.w.stride) : q.h.in * q.w.in);
  return WithTile(channels, [&](auto tile) {
    return Grid{CeilDiv(channels, tile.kN), forward ? q.w.stride : 1, CeilDiv(rows, tile.kM),
                forward ? q.h.stride : 1, q.groups};
  });
}

// Why a problem is none for these kernels, or null: offsets within one image, of weights and of
// positions have 32 bits, places that no tap moves into an image start at -kNowhere.
// A grid is counted as it is launched.
inline const char* Unsupported(Pass pass, const Problem& q, DType dtype) {
  if (dtype != DType::kF64) return "computes in float64 alone";
  const auto fits = [](CheckedSize size, int64_t most) {
    return size.valid() && size.value() < most;
  };
  for (const Axis& a : {q.h, q.w}) {
    const CheckedSize reach = CheckedProduct({a.in, a.stride}) +
                              CheckedProduct({a.kernel, a.dilation}) +
                              CheckedSize(std::abs(a.crop_lo)) + CheckedSize(a.out);
    if (!fits(reach, -kNowhere / 2)) return "an axis exceeds 2^28 positions";
  }
  constexpr int64_t kInt = int64_t{1} << 31;
  for (const bool is_x : {true, false}) {
    const int64_t channels = is_x ? q.in_channels : q.out_channels;
    const Axis &h = q.h, &w = q.w;
    // Before a tap that is outside of the image is found to be so.
    const CheckedSize rows = CheckedProduct({h.in, is_x ? 1 : h.stride}) +
                             CheckedProduct({h.kernel, h.dilation}) + CheckedSize(h.out);
    const CheckedSize columns = CheckedProduct({w.in, is_x ? 1 : w.stride}) +
                                CheckedProduct({w.kernel, w.dilation}) + CheckedSize(w.out);
    if (!fits((rows + CheckedSize(std::abs(h.crop_lo))) *
                  (columns + CheckedSize(std::abs(w.crop_lo))) * channels,
              kInt)) {
      return "an image exceeds 32-bit offsets";
    }
  }
  const CheckedSize weights = CheckedProduct({q.in_channels, q.out_per_group(), q.taps()});
  const CheckedSize positions =
      CheckedProduct({q.batch, q.h.in, q.w.in}) +
      CheckedProduct({q.batch, q.h.out + q.h.stride, q.w.out + q.w.stride});
  // Tiles and splits are padded to 64 or 128 at the most.
  if (!fits(weights * CheckedSize(64), kInt) || !fits(positions * CheckedSize(64), kInt)) {
    return "positions or weights exceed 32-bit arithmetic";
  }
  if (pass != Pass::kGradWeight && !fits(GatherGrid(pass, q).blocks(), kInt)) {
    return "more than 2^31 blocks";
  }
  return nullptr;
}

inline GatherParams GatherParamsOf(const Call& call) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward;
  GatherParams p{};
  p.image = static_cast<const double*>(forward ? call.x : call.y);
  p.weight = static_cast<const double*>(call.w);
  p.bias = forward ? static_cast<const double*>(call.vector) : nullptr;
  p.target = static_cast<double*>(forward ? call.y : call.x);
  p.from = ImageOf(q, forward);
  p.to = ImageOf(q, !forward);
  p.h = q.h;
  p.w = q.w;
  p.batch = static_cast<int>(q.batch);
  const int in = static_cast<int>(q.in_per_group()), out = static_cast<int>(q.out_per_group());
  const int taps = static_cast<int>(q.taps());
  p.per_group = forward ? out : in;
  p.summed = forward ? in : out;
  p.weight_column = forward ? taps : out * taps;
  p.weight_summed = forward ? out * taps : taps;
  p.group_weights = in * out * taps;
  const Grid grid = GatherGrid(call.pass, q);
  p.by_n = Divider(grid.columns);
  p.by_w = Divider(grid.residues_w);
  p.by_m = Divider(grid.rows);
  p.by_h = Divider(grid.residues_h);
  return p;
}

inline int WgradBlocks(const WgradParams& p, int splits) {
  return static_cast<int>(p.by_n.divisor * p.by_m.divisor * p.by_group.divisor) * splits;
}

// Depends on the problem alone: results are the same on every device.
inline int SplitsOf(const Problem& q, int* per_split) {
  const int64_t columns = q.out_per_group() * q.taps();
  const int64_t tiles =
      CeilDiv(columns, WgradTile::kN) * CeilDiv(q.in_per_group(), WgradTile::kM) * q.groups;
  const int64_t positions = q.batch * q.h.in * q.w.in;
  const int64_t most = std::min(CeilDiv(positions, kLeastPositions),
                                kMostPartialBytes / (8 * q.in_channels * columns));
  const int64_t splits = std::max<int64_t>(std::min(kWanted / tiles, most), 1);
  const int64_t each = CeilDiv(CeilDiv(positions, splits), kTerms) * kTerms;
  *per_split = static_cast<int>(each);
  return static_cast<int>(CeilDiv(positions, each));
}

inline WgradParams WgradParamsOf(const Call& call, int* splits) {
  const Problem& q = call.problem;
  WgradParams p{};
  *splits = SplitsOf(q, &p.per_split);
  p.x = static_cast<const double*>(call.x);
  p.dy = static_cast<const double*>(call.y);
  p.partial = static_cast<double*>(*splits == 1 ? call.w : call.workspace);
  p.from = ImageOf(q, true);
  p.by = ImageOf(q, false);
  p.stride_h = static_cast<int>(q.h.stride);
  p.stride_w = static_cast<int>(q.w.stride);
  p.dilation_h = static_cast<int>(q.h.dilation);
  p.dilation_w = static_cast<int>(q.w.dilation);
  p.crop_h = static_cast<int>(q.h.crop_lo);
  p.crop_w = static_cast<int>(q.w.crop_lo);
  p.in = static_cast<int>(q.in_per_group());
  p.out = static_cast<int>(q.out_per_group());
  p.columns = p.out * static_cast<int>(q.taps());
  p.size = q.in_channels * p.columns;
  p.positions = static_cast<int>(q.batch * q.h.in * q.w.in);
  p.by_n = Divider(CeilDiv(p.columns, WgradTile::kN));
  p.by_m = Divider(CeilDiv(p.in, WgradTile::kM));
  p.by_group = Divider(q.groups);
  p.by_width = Divider(q.w.in);
  p.by_height = Divider(q.h.in);
  p.by_tap = Divider(q.taps());
  p.by_kernel_w = Divider(q.w.kernel);
  return p;
}

// Of the parts of dw.
inline int64_t PartialBytes(const Problem& q) {
  int per_split = 0;
  const int64_t splits = SplitsOf(q, &per_split);
  if (splits == 1) return 0;
  return AlignUp64(8 * splits * q.in_channels * q.out_per_group() * q.taps()).value();
}

}  // namespace transconv::cuda::mma_f64

#endif  // TRANSCONV_CUDA_LAUNCH_MMA_F64_CALL_CUH_
