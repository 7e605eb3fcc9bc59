// One matrix product for kernels as large as their stride on the CPU, thread by thread as on a GPU,
// against the definition on random problems: the packing of weights, and the product by single
// blocks and by clusters. Values are small integers, so that every order of summation gives the
// same.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "core/gemm_plan.h"
#include "core/geometry.h"
#include "cuda_emulation.h"
#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
#include "sm90_register_products.h"

// After the emulation.
#include "cuda/kernels/sm90_gemm.cuh"
#include "cuda/launch/sm90_gemm_call.cuh"

namespace transconv {
namespace {

using cuda::Call;
using cuda::PackGemmKernel;
using cuda::PackGemmParams;
using cuda::sm90_gemm::GemmKernel;
using cuda::sm90_gemm::GemmParams;

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("gemm_test: %s\n", what);
  std::exit(1);
}

template <typename T, int VALUES, bool ROWS = false>
void RunTiles(const GemmParams& p, const GemmPlan& g, unsigned blocks) {
  const auto run = [&](auto kernel) {
    emulation::LaunchSm90(
        blocks, cuda::sm90_gemm::kThreads, static_cast<size_t>(cuda::sm90_gemm::SharedBytes(g)),
        [&] { kernel(p); }, static_cast<unsigned>(g.splits));
  };
  switch (g.tile_columns) {
    case 256:
      return run(GemmKernel<T, 256, VALUES, ROWS>);
    case 192:
      return run(GemmKernel<T, 192, VALUES, ROWS>);
    case 128:
      return run(GemmKernel<T, 128, VALUES, ROWS>);
    default:
      return run(GemmKernel<T, 64, VALUES, ROWS>);
  }
}

// As the launcher does, on so many multiprocessors.
template <typename T>
void Run(const Call& call, const GemmPlan& g, int multiprocessors) {
  GemmParams p = cuda::sm90_gemm::ParamsOf(call, g);
  const unsigned blocks = cuda::sm90_gemm::Blocks(p, multiprocessors);
  const bool copied = reinterpret_cast<uintptr_t>(call.w) % 16 != 0;
  const cuda::BoxTensor boxes =
      cuda::sm90_gemm::WeightBoxesOf(call, g, copied ? call.workspace : call.w);
  if constexpr (sizeof(T) == 2) {
    const size_t bytes = static_cast<size_t>(g.weight_bytes);
    if (bytes != sizeof(T) * definition::WeightSize(call.problem))
      Fail(call.problem, "of other size");
    if (copied) std::memcpy(call.workspace, call.w, bytes);
    p.weight_boxes = cuda::ptx::MapOf(&boxes);
    emulation::readable.Allow(boxes.base, bytes);
    if (call.pass == Pass::kForward) return RunTiles<T, 1, true>(p, g, blocks);
  } else {
    const PackGemmParams pack = cuda::sm90_gemm::PackParamsOf(call, g);
    emulation::Launch(cuda::sm90_gemm::PackBlocks(g), cuda::kPackGemmThreads, 0, [&] {
      g.values == 1   ? PackGemmKernel<1>(pack)
      : g.values == 2 ? PackGemmKernel<2>(pack)
                      : PackGemmKernel<4>(pack);
    });
  }
  switch (g.values) {
    case 1:
      return RunTiles<T, 1>(p, g, blocks);
    case 2:
      return RunTiles<T, 2>(p, g, blocks);
    default:
      return RunTiles<T, 4>(p, g, blocks);
  }
}

enum class Values { kIntegers, kNan, kNormal };

// How a problem is run, beyond what its plan says.
struct How {
  int tile_columns = 0, splits = 0;  // where not 0
  int multiprocessors = 132;
  size_t shift = 0;
  bool bias = false;
  Values values = Values::kIntegers;
};

struct Count {
  int problems = 0, refused = 0;
  int columns[4] = {}, vectors[3] = {}, values[3] = {};  // of 64; by their logarithms
  int staged[5] = {}, runs[4] = {}, own[3] = {};
  int splits = 0, turns = 0, rounds = 0;
};

template <typename T>
void Check(const Problem& q, Pass pass, const How& how, std::mt19937* random, Count* count) {
  const bool forward = pass == Pass::kForward;
  constexpr DType kDType = sizeof(T) == 4              ? DType::kF32
                           : std::is_same_v<T, __half> ? DType::kF16
                                                       : DType::kBF16;
  GemmPlan plan;
  if (PlanGemm(q, pass, kDType, 132, &plan) != nullptr) {
    ++count->refused;
    return;
  }
  if (how.tile_columns != 0) plan.SetTiles(how.tile_columns, std::min(how.splits, plan.slabs));

  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto draw = [&] {
    std::normal_distribution<float> normal;
    return how.values == Values::kNormal
               ? normal(*random)
               : static_cast<float>(static_cast<int>((*random)() % 9) - 4);
  };
  Tensor<T> from(definition::Size(q, forward), how.shift, kNan);
  Tensor<T> to(definition::Size(q, !forward), how.shift, 7.f);
  Tensor<T> weight(definition::WeightSize(q), how.shift, kNan);
  Tensor<T> bias(static_cast<size_t>(q.out_channels), how.shift, kNan);
  Tensor<float> workspace(static_cast<size_t>(CeilDiv(plan.workspace_bytes, 4)), 0, kNan);
  for (Tensor<T>* tensor : {&from, &weight, &bias}) {
    for (size_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = static_cast<T>(draw());
  }
  std::fill_n(to.data(), to.size(), static_cast<T>(kNan));
  std::fill_n(workspace.data(), workspace.size(), kNan);
  if (how.values == Values::kNan) {
    const auto put = [&](Tensor<T>* tensor, float v) {
      tensor->data()[(*random)() % tensor->size()] = static_cast<T>(v);
    };
    put(&from, kNan);
    put(&from, std::numeric_limits<float>::infinity());
    put(&weight, kNan);
  }

  Call call;
  call.pass = pass;
  call.problem = q;
  call.dtype = kDType;
  call.x = forward ? from.data() : to.data();
  call.w = weight.data();
  call.y = forward ? to.data() : from.data();
  call.vector = forward && how.bias ? bias.data() : nullptr;
  call.workspace = workspace.data();
  plan = cuda::sm90_gemm::PlanFor(call, plan);
  if (plan.vector < cuda::sm90_gemm::SmallestCopy(plan, sizeof(T))) {
    ++count->refused;
    return;
  }
  const GemmParams params = cuda::sm90_gemm::ParamsOf(call, plan);
  const size_t store = static_cast<size_t>(params.store) * sizeof(T);
  const size_t vector = static_cast<size_t>(std::max(params.staged.vector, 1));
  const uintptr_t target = reinterpret_cast<uintptr_t>(to.data());
  if (target % vector != 0 || (params.staged.vector == 0 && target % store != 0)) {
    Fail(q, "stores are not aligned");
  }
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(from.data(), from.bytes());
  if (plan.packed) emulation::readable.Allow(workspace.data(), workspace.bytes(), true);
  Run<T>(call, plan, how.multiprocessors);
  if (!to.Kept() || !workspace.Kept()) Fail(q, "something is written outside of the result");

  std::vector<double> want(to.size(), 0.0), typical(to.size(), 0.0);
  definition::ForAll(q, [&](size_t x, size_t tap, size_t y) {
    const double product = static_cast<double>(static_cast<float>(weight.data()[tap])) *
                           static_cast<float>(from.data()[forward ? x : y]);
    want[forward ? y : x] += product;
    typical[forward ? y : x] += product * product;
  });
  if (call.vector != nullptr) {
    definition::ForAllOfY(q, [&](size_t y, size_t channel) {
      want[y] += static_cast<double>(static_cast<float>(bias.data()[channel]));
    });
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const float rounded = static_cast<float>(static_cast<T>(static_cast<float>(want[i])));
    const float got = static_cast<float>(to.data()[i]);
    if (how.values == Values::kNormal) {
      error += (got - want[i]) * (got - want[i]);
      norm += typical[i] + want[i] * want[i];
    } else if (std::isnan(want[i]) ? !std::isnan(got) : got != rounded) {
      std::printf("element %zu of %zu: %g, not %g; tiles of %d columns, %d splits\n", i, to.size(),
                  static_cast<double>(got), static_cast<double>(rounded), plan.tile_columns,
                  plan.splits);
      Fail(q, forward ? "y is wrong" : "dx is wrong");
    }
  }
  const double most = kDType == DType::kBF16 ? 3e-3 : 5e-4;  // of rounding
  if (!(error <= most * most * norm)) Fail(q, "the error is too large");

  const auto logarithm = [](int v) { return v == 1 ? 0 : v == 2 ? 1 : 2; };
  ++count->problems;
  ++count->columns[plan.tile_columns / 64 - 1];
  ++count->vectors[logarithm(plan.vector / 4)];
  ++count->values[logarithm(plan.values)];
  if (params.staged.vector == 0) {
    ++count->own[logarithm(params.store)];
  } else {
    ++count->runs[params.staged.log_run];
    for (int log = 0; log < 5; ++log) count->staged[log] += params.staged.vector == 1 << log;
  }
  count->splits += plan.splits > 1;
  count->turns += plan.splits == 1 && plan.tiles() > how.multiprocessors;
  count->rounds += plan.slabs > plan.splits * cuda::sm90_gemm::Stages(plan);
}

Axis AxisOf(int64_t in, int64_t stride) { return {in, in * stride, stride, stride, 1, 0}; }

// Offsets in tensors of more than 2^31 elements, whose last pixels and columns are looked at, too.
void CheckOffsets() {
  std::mt19937 random(3);
  for (const int64_t kh : {1, 2, 3}) {
    const Problem q = definition::MakeProblem(70, 1, 64, 48, AxisOf(720, kh), AxisOf(1000, 4));
    for (const Pass pass : {Pass::kForward, Pass::kGradInput}) {
      const bool forward = pass == Pass::kForward;
      GemmPlan plan;
      if (PlanGemm(q, pass, DType::kF32, 132, &plan) != nullptr) Fail(q, "is refused");
      Call call;
      call.pass = pass;
      call.problem = q;
      const GemmParams p = cuda::sm90_gemm::ParamsOf(call, plan);
      for (int i = 0; i < 2000; ++i) {
        const auto pick = [&](int64_t n) {
          return i % 5 == 0 ? n - 1 : static_cast<int64_t>(random()) % n;
        };
        const int64_t n = pick(q.batch), py = pick(q.h.in), px = pick(q.w.in);
        const int64_t c = pick(q.in_channels), o = pick(q.out_channels);
        const int64_t ky = pick(kh), kx = pick(q.w.kernel);
        const int pixel = static_cast<int>((n * q.h.in + py) * q.w.in + px);
        const int64_t x = static_cast<int64_t>(definition::At(q, true, n, c, py, px));
        const int64_t y = static_cast<int64_t>(
            definition::At(q, false, n, o, kh * py + ky, q.w.kernel * px + kx));
        // The columns' 32-bit arithmetic is the kernel's.
        if (forward) {
          const int column = static_cast<int>((o * kh + ky) * q.w.kernel + kx);
          int channel = column;
          const int within = p.by_value.Split(channel), row = p.by_row.Split(channel);
          const int offset = channel * p.to_channel + row * p.to_row + within;
          if (p.from.OffsetOf(pixel) + c * p.channel != x) Fail(q, "x is elsewhere");
          if (p.to.OffsetOf(pixel) + offset != y) Fail(q, "y is elsewhere");
        } else {
          const int offset = static_cast<int>(c) * p.to_channel;
          const int64_t line = o * p.channel + ky * p.line;
          if (p.from.OffsetOf(pixel) + line + kx != y) Fail(q, "dy is elsewhere");
          if (p.to.OffsetOf(pixel) + offset != x) Fail(q, "dx is elsewhere");
        }
      }
    }
  }
}

void CheckProblems(int most) {
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  constexpr int kKernels[][2] = {{2, 2}, {1, 1}, {4, 4}, {3, 3}, {1, 2}, {2, 1}, {3, 1},
                                 {2, 4}, {2, 2}, {4, 4}, {1, 4}, {3, 2}, {1, 8}, {2, 16}};
  Count count;
  for (int i = 0; i < most; ++i) {
    const Pass pass = pick(0, 1) == 0 ? Pass::kForward : Pass::kGradInput;
    const bool forward = pass == Pass::kForward;
    const auto& kernel = kKernels[pick(0, 13)];
    const int taps = kernel[0] * kernel[1];
    int height = pick(1, 9), width = pick(1, 9);
    if (i % 3 != 0) width = 2 * pick(1, 6);
    if (i % 7 == 3) height = 4 * pick(1, 3);
    // A sum of one slab, of some, or of more than a ring has; columns of one tile, or of some.
    const bool split = i % 4 == 3;
    const int sums = split             ? pick(100, 400)
                     : pick(0, 3) == 0 ? pick(1, 32)
                                       : pick(33, i % 5 == 2 ? 600 : 150);
    const int columns = pick(1, i % 4 == 1 ? 300 : 100);
    const int in = forward ? sums : columns;
    int out = std::max(1, (forward ? columns : sums) / taps);
    const int type = pick(0, 3);
    if (type < 2 && i % 16 != 0) out = (out * taps + 7) / 8 * 8 / std::gcd(taps, 8);
    const Problem q = definition::MakeProblem(pick(1, 5), 1, in, out, AxisOf(height, kernel[0]),
                                              AxisOf(width, kernel[1]));
    How how;
    if (i % 8 != 0) how.tile_columns = 64 * pick(1, 4), how.splits = 1;
    if (split) how.splits = 1 << pick(1, 3);
    how.multiprocessors = pick(1, 3);
    if (i % 5 == 4) how.shift = static_cast<size_t>(pick(1, 3));
    how.bias = pick(0, 1) == 0;
    if (i % 6 == 5) how.values = Values::kNan;
    if (i % 12 == 8) how.values = Values::kNormal;
    switch (type) {
      case 0:
        how.shift *= 2;
        Check<__half>(q, pass, how, &random, &count);
        break;
      case 1:
        how.shift *= 2;
        Check<__nv_bfloat16>(q, pass, how, &random, &count);
        break;
      default:
        Check<float>(q, pass, how, &random, &count);
    }
  }
  std::printf(
      "gemm_test: %d problems (%d refused): %d %d %d %d of 64 to 256 columns; %d %d %d with "
      "copies of 4, 8 and 16 bytes; %d %d %d with one, two and four values; %d with splits, %d "
      "with "
      "tiles in turns, %d with more slabs than a ring\n",
      count.problems, count.refused, count.columns[0], count.columns[1], count.columns[2],
      count.columns[3], count.vectors[0], count.vectors[1], count.vectors[2], count.values[0],
      count.values[1], count.values[2], count.splits, count.turns, count.rounds);
  std::printf(
      "stored by ones %d, twos %d and fours %d; %d %d %d %d in lines of one to eight columns, by "
      "%d "
      "%d %d %d vectors of two to 16 bytes\n",
      count.own[0], count.own[1], count.own[2], count.runs[0], count.runs[1], count.runs[2],
      count.runs[3], count.staged[1], count.staged[2], count.staged[3], count.staged[4]);
  const bool met = *std::min_element(count.own, count.own + 3) > 0 &&
                   *std::min_element(count.runs, count.runs + 4) > 0 &&
                   *std::min_element(count.staged + 1, count.staged + 5) > 0;
  if (most >= 100 && !met) Fail({}, "a case is not met");
  for (const auto& of : {count.vectors, count.values}) {
    if (most >= 100 && std::min({of[0], of[1], of[2]}) == 0) Fail({}, "a case is not met");
  }
  if (most >= 100 && *std::min_element(count.columns, count.columns + 4) == 0) {
    Fail({}, "a case is not met");
  }
  if (most >= 100 && std::min({count.splits, count.turns, count.rounds}) == 0) {
    Fail({}, "a case is not met");
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  transconv::CheckOffsets();
  transconv::CheckProblems(argc > 1 ? std::atoi(argv[1]) : 240);
  return 0;
}
