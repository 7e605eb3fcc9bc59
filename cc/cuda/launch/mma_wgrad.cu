// The portable dense kernel of the weight gradient, and its entry.
#include <algorithm>
#include <limits>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/mma_wgrad.cuh"
#include "cuda/launch/grad_bias.cuh"
#include "cuda/launch/mma_launch.cuh"
#include "cuda/launch/sum_splits_launch.cuh"

namespace transconv::cuda {
namespace mma_wgrad {
namespace {

constexpr int64_t kTargetBlocks = 264;
constexpr int64_t kMaxPartialBytes = int64_t{64} << 20;
// Positions of a tile: with three products few enough that truncated sums stay short.
constexpr int kMostPositions[] = {256, 64};

struct Programme {
  TilePlan plan;
  int products = 1, rows = 0, columns = 0, column_shift = 0;
  int tiles_x = 0, tiles_y = 0, tap_blocks = 0, in_blocks = 0, out_blocks = 0;
  int64_t tiles = 0, per_split = 0, splits = 0, blocks = 0;
  int x_pitch = 0, dy_pitch = 0, table_at = 0, x_at = 0, dy_at = 0, shared_bytes = 0;
};

const char* MakeProgramme(const Problem& q, DType dtype, int rows, int shift, Programme* result) {
  Programme g;
  g.products = ProductsOf(q, dtype);
  g.rows = rows;
  g.column_shift = shift;
  g.columns = 8 << shift;
  if (!MakeTilePlan(q, Pass::kGradInput, rows, g.columns, &g.plan)) {
    return "the kernel or the stride is too large for a tile programme";
  }
  const int parts = g.products == 3 ? 2 : 1, positions = rows * g.columns;
  const auto whole = [](int64_t bytes) { return CeilDiv(bytes, int64_t{128}) * 128; };
  const int64_t dy_pitch = int64_t{16} * g.plan.planes() * g.plan.plane_pitch;
  const int64_t table_at = kExchangeBytes + int64_t{sizeof(CellPlace)} * positions;
  const int64_t x_at = whole(table_at + int64_t{sizeof(CellPlace)} * g.plan.cells);
  const int64_t dy_at = x_at + int64_t{16} * positions * kChunks * parts;
  const int64_t bytes = dy_at + dy_pitch * kChunks * parts;
  if (bytes > kMmaSharedBytes) return "the halo of a tile exceeds shared memory";
  g.x_pitch = 16 * positions;
  g.dy_pitch = static_cast<int>(dy_pitch);
  g.table_at = static_cast<int>(table_at);
  g.x_at = static_cast<int>(x_at);
  g.dy_at = static_cast<int>(dy_at);
  g.shared_bytes = static_cast<int>(bytes);
  g.tiles_x = static_cast<int>(CeilDiv(q.w.in, g.columns));
  g.tiles_y = static_cast<int>(CeilDiv(q.h.in, g.rows));
  g.tiles = q.batch * g.tiles_x * g.tiles_y;
  g.tap_blocks = static_cast<int>(CeilDiv(g.plan.taps, kTaps));
  g.in_blocks = static_cast<int>(CeilDiv(q.in_per_group(), kChannels));
  g.out_blocks = static_cast<int>(CeilDiv(q.out_per_group(), kChannels));
  g.blocks = q.groups * g.in_blocks * g.out_blocks * int64_t{g.tap_blocks};
  const int64_t partial = 4 * q.in_channels * q.out_per_group() * q.taps();
  const int64_t wanted =
      std::min(CeilDiv(kTargetBlocks, g.blocks), std::max<int64_t>(kMaxPartialBytes / partial, 1));
  g.per_split = CeilDiv(g.tiles, std::clamp<int64_t>(wanted, 1, g.tiles));
  g.splits = CeilDiv(g.tiles, g.per_split);
  *result = g;
  return nullptr;
}

// What a tile loads and multiplies, over all tiles.
double Cost(const Programme& g) {
  const double positions = g.rows * g.columns;
  return static_cast<double>(g.tiles) * (2 * positions + g.plan.cells + 64);
}

const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* best) {
  if (pass != Pass::kGradWeight) return "computes the weight gradient alone";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (const char* reason = TooLarge(q, dtype)) return reason;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  const char* reason = nullptr;
  bool found = false;
  const int most = kMostPositions[ProductsOf(q, dtype) == 3];
  for (int shift = 0; shift <= 3; ++shift) {
    for (int rows = 1; rows * (8 << shift) <= most; ++rows) {
      // An instruction takes 16 positions.
      if (rows * (8 << shift) % 16 != 0) continue;
      Programme g;
      const char* why = MakeProgramme(q, dtype, rows, shift, &g);
      if (why == nullptr && (g.tiles + g.per_split > kMax || g.blocks * g.splits > kMax)) {
        why = "more than 2^31 tiles";
      }
      if (why != nullptr) {
        reason = why;
      } else if (!found || Cost(g) < Cost(*best)) {
        *best = g;
        found = true;
      }
    }
  }
  return found ? nullptr : reason;
}

int64_t PartialBytes(const Problem& q, const Programme& g) {
  return CeilDiv(4 * g.splits * q.in_channels * q.out_per_group() * q.taps(), int64_t{256}) * 256;
}

void FillParams(const Call& call, const Programme& g, WgradParams* p) {
  const Problem& q = call.problem;
  *p = WgradParams{};
  p->x = CellsOfImage(q, call.dtype, true, call.x);
  p->x.halo_rows = g.rows;
  p->x.halo_columns = g.columns;
  p->x.plane_pitch = p->x.cells = g.rows * g.columns;
  p->x.by_cell = Divider(p->x.cells);
  p->x.chunk_pitch = g.x_pitch;
  p->x.low_at = kChunks * g.x_pitch;
  p->dy = CellsOfImage(q, call.dtype, false, call.y);
  SetCells(g.plan, &p->dy);
  p->dy.low_at = kChunks * g.dy_pitch;
  p->partial = static_cast<float*>(call.workspace);
  p->size = q.in_channels * q.out_per_group() * q.taps();
  p->in_per_group = static_cast<int>(q.in_per_group());
  p->out_per_group = static_cast<int>(q.out_per_group());
  p->taps = g.plan.taps;
  p->rows = g.rows;
  p->columns = g.columns;
  p->column_shift = g.column_shift;
  p->steps = g.rows * g.columns / 16;
  p->tiles = static_cast<int>(g.tiles);
  p->per_split = static_cast<int>(g.per_split);
  p->by_taps = Divider(g.tap_blocks);
  p->by_out = Divider(g.out_blocks);
  p->by_in = Divider(g.in_blocks);
  p->by_group = Divider(q.groups);
  p->by_strip = Divider(g.tiles_x);
  p->by_row = Divider(g.tiles_y);
  p->table_at = g.table_at;
  p->x_at = g.x_at;
  p->dy_at = g.dy_at;
  p->first_row = static_cast<int>(g.plan.first_row[0]);
  p->first_column = static_cast<int>(g.plan.first_column);
  for (int t = 0; t < g.plan.taps; ++t) {
    p->tap_cell[t] = g.plan.tap_cell(t);
    p->tap_kernel[t] = static_cast<int16_t>(g.plan.tap_kernel[t]);
  }
}

template <typename T, int PRODUCTS>
cudaError_t LaunchType(const Call& call, const Programme& g) {
  auto* kernel = WgradKernel<T, PRODUCTS>;
  cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, g.shared_bytes);
  if (status != cudaSuccess) return status;
  WgradParams p;
  FillParams(call, g, &p);
  kernel<<<static_cast<unsigned>(g.blocks * g.splits), kThreads, g.shared_bytes, call.stream>>>(p);
  if ((status = cudaGetLastError()) != cudaSuccess) return status;
  return LaunchSumSplits<T>(p.partial, call.w, p.size, g.splits, call.stream);
}

cudaError_t LaunchWeight(const Call& call, const Programme& g) {
  switch (call.dtype) {
    case DType::kF32:
      return g.products == 3 ? LaunchType<float, 3>(call, g) : LaunchType<float, 1>(call, g);
    case DType::kF16:
      return LaunchType<__half, 1>(call, g);
    case DType::kBF16:
      return LaunchType<__nv_bfloat16, 1>(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

constexpr auto Plan = PlanOf<Programme, Choose>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  const Programme& g = planned->plan;
  return PartialBytes(problem, g) + grad_bias::WorkspaceBytes(problem, dtype);
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const Programme& g = planned->plan;
  const cudaError_t status = LaunchWeight(call, g);
  if (status != cudaSuccess || call.vector == nullptr) return status;
  return grad_bias::Launch(call,
                           static_cast<uint8_t*>(call.workspace) + PartialBytes(call.problem, g));
}

}  // namespace
}  // namespace mma_wgrad

const KernelEntry kCudaMmaWgradEntry = {Algorithm::kCudaMmaWgrad, mma_wgrad::Supports,
                                        mma_wgrad::Workspace, mma_wgrad::Launch};

}  // namespace transconv::cuda
