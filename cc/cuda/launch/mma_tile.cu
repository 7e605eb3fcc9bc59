// The portable dense kernel of the forward pass and the gradient of x, and its entry.
#include <algorithm>
#include <limits>

#include "core/plans.h"
#include "cuda/call.h"
#include "cuda/kernels/mma_tile.cuh"
#include "cuda/launch/mma_launch.cuh"
#include "cuda/launch/pack_weights_launch.cuh"

namespace transconv::cuda {
namespace mma_tile {
namespace {

struct Programme {
  TilePlan plan;
  PackedWeights packed;
  int products = 1, rows = 0, columns = 0, column_shift = 0;
  int64_t tiles_x = 0, tiles_y = 0, tiles = 0;
  int chunk_pitch = 0, low_at = 0, cells_at = 0, shared_bytes = 0;
};

// Fills the programme for tiles `columns` wide; returns why it does not fit, or null.
const char* MakeProgramme(const Problem& q, Pass pass, DType dtype, int shift, Programme* result) {
  Programme g;
  g.products = ProductsOf(q, dtype);
  g.column_shift = shift;
  g.columns = 8 << shift;
  g.rows = kTargets / g.columns;
  if (!MakeTilePlan(q, pass, g.rows, g.columns, &g.plan)) {
    return "the kernel or the stride is too large for a tile programme";
  }
  // Residues beyond the last one have no taps.
  std::fill(g.plan.first_tap + g.plan.h.residues, g.plan.first_tap + kMaxResidues + 1, g.plan.taps);
  g.packed = PackedWeights(q, pass, dtype, g.plan.taps, g.products);
  const int64_t chunk = int64_t{16} * g.plan.planes() * g.plan.plane_pitch;
  const int64_t table = int64_t{sizeof(CellPlace)} * g.plan.cells;
  const int64_t cells_at = CeilDiv(kExchangeBytes + table, int64_t{128}) * 128;
  const int64_t bytes = cells_at + 2 * chunk * (g.products == 3 ? 2 : 1);
  if (bytes > kMmaSharedBytes) return "the halo of a tile exceeds shared memory";
  g.chunk_pitch = static_cast<int>(chunk);
  g.low_at = static_cast<int>(2 * chunk);
  g.cells_at = static_cast<int>(cells_at);
  g.shared_bytes = static_cast<int>(bytes);
  g.tiles_x = CeilDiv(g.plan.max_target_columns(), g.columns);
  g.tiles_y = CeilDiv(g.plan.max_target_rows(), g.rows);
  g.tiles = g.packed.m_blocks * g.plan.h.residues * int64_t{g.plan.w.residues} * g.tiles_x *
            g.tiles_y * q.groups * q.batch;
  *result = g;
  return nullptr;
}

// What a tile loads and multiplies, over all tiles.
double Cost(const Programme& g) {
  return static_cast<double>(g.tiles) * (kTargets + 0.5 * g.plan.cells);
}

const char* Choose(const Problem& q, Pass pass, DType dtype, Programme* best) {
  if (pass == Pass::kGradWeight) return "computes no weight gradient";
  if (dtype == DType::kF64) return "has no float64 instructions";
  if (const char* reason = TooLarge(q, dtype)) return reason;
  const char* reason = nullptr;
  bool found = false;
  for (int shift = 0; shift <= 5; ++shift) {
    Programme g;
    const char* why = MakeProgramme(q, pass, dtype, shift, &g);
    if (why == nullptr && g.tiles > std::numeric_limits<int32_t>::max() - 65536) {
      why = "more than 2^31 tiles";
    }
    if (why != nullptr) {
      reason = why;
    } else if (!found || Cost(g) < Cost(*best)) {
      *best = g;
      found = true;
    }
  }
  return found ? nullptr : reason;
}

void FillParams(const Call& call, const Programme& g, TileParams* p) {
  const Problem& q = call.problem;
  const bool forward = call.pass == Pass::kForward, first = q.layout == Layout::kNCHW;
  const TilePlan& plan = g.plan;
  *p = TileParams{};
  p->cells = CellsOfImage(q, call.dtype, forward, forward ? call.x : call.y);
  SetCells(plan, &p->cells);
  p->cells.low_at = g.low_at;
  p->target = forward ? call.y : call.x;
  p->bias = call.vector;
  p->weights = static_cast<const uint8_t*>(call.workspace);
  p->scales = reinterpret_cast<const float*>(p->weights + g.packed.bytes);
  const int64_t channels = forward ? q.out_channels : q.in_channels;
  const int64_t size = plan.h.target * plan.w.target;
  p->target_batch = channels * size;
  p->target_channel = first ? size : 1;
  p->target_column = first ? 1 : channels;
  p->target_row = plan.w.target * p->target_column;
  p->target_h = static_cast<int>(plan.h.target);
  p->target_w = static_cast<int>(plan.w.target);
  p->target_step_h = static_cast<int>(plan.h.target_step);
  p->target_step_w = static_cast<int>(plan.w.target_step);
  p->k_per_group = g.packed.k_per_group;
  p->m_per_group = g.packed.m_per_group;
  p->slabs = g.packed.slabs;
  p->m_blocks = g.packed.m_blocks;
  p->rows = g.rows;
  p->columns = g.columns;
  p->column_shift = g.column_shift;
  p->tiles = static_cast<int>(g.tiles);
  p->by_block = Divider(g.packed.m_blocks);
  p->by_residue_w = Divider(plan.w.residues);
  p->by_residue_h = Divider(plan.h.residues);
  p->by_strip = Divider(g.tiles_x);
  p->by_row = Divider(g.tiles_y);
  p->by_group = Divider(q.groups);
  p->cells_at = g.cells_at;
  for (int i = 0; i < kMaxResidues; ++i) p->first_row[i] = static_cast<int>(plan.first_row[i]);
  p->first_column = static_cast<int>(plan.first_column);
  std::copy_n(plan.first_tap, kMaxResidues + 1, p->first_tap);
  for (int r = 0; r < kMaxResidues; ++r) {
    std::copy_n(plan.residue_begin[r], kMaxResidues + 1, p->residue_begin[r]);
  }
  for (int t = 0; t < plan.taps; ++t) p->tap_cell[t] = plan.tap_cell(t);
}

template <typename T, int PRODUCTS>
cudaError_t LaunchTile(const Call& call, const Programme& g) {
  cudaError_t status = LaunchPackWeights<T, PRODUCTS>(call, g.plan, g.packed);
  if (status != cudaSuccess) return status;
  auto* kernel = TileKernel<T, PRODUCTS>;
  unsigned blocks = 0;
  status = GridOf(kernel, g.shared_bytes, g.tiles, &blocks);
  if (status != cudaSuccess) return status;
  TileParams p;
  FillParams(call, g, &p);
  kernel<<<blocks, kThreads, g.shared_bytes, call.stream>>>(p);
  return cudaGetLastError();
}

constexpr auto Plan = PlanOf<Programme, Choose>;

const char* Supports(Pass pass, const Problem& problem, DType dtype) {
  return Plan(pass, problem, dtype)->reason;
}

int64_t Workspace(Pass pass, const Problem& problem, DType dtype) {
  const auto planned = Plan(pass, problem, dtype);
  if (planned->reason != nullptr) return -1;
  const Programme& g = planned->plan;
  return g.packed.bytes + g.packed.scales_bytes;
}

cudaError_t Launch(const Call& call) {
  const auto planned = Plan(call.pass, call.problem, call.dtype);
  if (planned->reason != nullptr) return cudaErrorNotSupported;
  const Programme& g = planned->plan;
  switch (call.dtype) {
    case DType::kF32:
      return g.products == 3 ? LaunchTile<float, 3>(call, g) : LaunchTile<float, 1>(call, g);
    case DType::kF16:
      return LaunchTile<__half, 1>(call, g);
    case DType::kBF16:
      return LaunchTile<__nv_bfloat16, 1>(call, g);
    default:
      return cudaErrorNotSupported;
  }
}

}  // namespace
}  // namespace mma_tile

const KernelEntry kCudaMmaTileEntry = {Algorithm::kCudaMmaTile, mma_tile::Supports,
                                       mma_tile::Workspace, mma_tile::Launch};

}  // namespace transconv::cuda
