// The matrix product of lines on the CPU, thread by thread as on a GPU, against the definition on
// random problems: the packing of weights, and the product by single blocks and by clusters, with
// every plan that there is. Values are small integers, so that every order of summation gives the
// same.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/lines_plan.h"
#include "cuda_emulation.h"
#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
#include "sm90_register_products.h"

// After the emulation.
#include "cuda/kernels/pack_lines.cuh"
#include "cuda/kernels/sm90_lines.cuh"
#include "cuda/launch/sm90_lines_call.cuh"

namespace transconv {
namespace {

using cuda::Call;
using cuda::PackLinesKernel;
using cuda::PackLinesParams;
using cuda::sm90_lines::LinesKernel;
using cuda::sm90_lines::LinesParams;

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("lines_test: %s\n", what);
  std::exit(1);
}

// As the launcher does, on so many multiprocessors.
template <int STEPS>
void Run(const Call& call, const LinesPlan& g, int multiprocessors) {
  const PackLinesParams pack = cuda::sm90_lines::PackParamsOf(call, g);
  emulation::Launch(cuda::sm90_lines::PackBlocks(pack), cuda::kPackLinesThreads, 0, [&] {
    g.products == 3 ? PackLinesKernel<STEPS, 3>(pack) : PackLinesKernel<STEPS, 1>(pack);
  });
  const LinesParams p = cuda::sm90_lines::ParamsOf(call, g);
  const unsigned threads = cuda::sm90_lines::kConsumers + 32 +
                           static_cast<unsigned>(LinesCopiers(g.instruction, g.phase[0].halves));
  const auto run = [&](auto kernel) {
    emulation::LaunchSm90(
        cuda::sm90_lines::Blocks(p, multiprocessors), threads,
        static_cast<size_t>(g.shared_bytes()), [&] { kernel(p); }, static_cast<unsigned>(g.splits));
  };
  if (g.products == 3) {
    return g.instruction == 32 ? run(LinesKernel<32, 1, STEPS, 3>)
                               : run(LinesKernel<64, 1, STEPS, 3>);
  }
  const bool halves = g.phase[0].halves == 2;
  switch (g.instruction) {
    case 256:
      return run(LinesKernel<256, 1, STEPS, 1>);
    case 128:
      return halves ? run(LinesKernel<128, 2, STEPS, 1>) : run(LinesKernel<128, 1, STEPS, 1>);
    default:
      return halves ? run(LinesKernel<64, 2, STEPS, 1>) : run(LinesKernel<64, 1, STEPS, 1>);
  }
}

enum class Values { kIntegers, kNan, kNormal };

// How a problem is run, beyond what its plan says.
struct How {
  bool any_plan = false;  // or the one that is chosen
  bool splits = false;
  int multiprocessors = 132;
  size_t shift = 0;
  bool bias = false;
  Values values = Values::kIntegers;
};

struct Count {
  int problems = 0, refused = 0;
  int columns[3] = {}, vectors[3] = {}, stores[3] = {}, steps[2] = {}, halves[2] = {};
  int splits = 0, turns = 0, rounds = 0, along = 0, images = 0, swapped = 0, phases = 0;
  int traded = 0, ordered = 0, ordered_splits = 0, unaligned_along = 0;
  int exact = 0, narrow = 0, skipped_rows = 0;
};

void Check(const Problem& q, Pass pass, const How& how, std::mt19937* random, Count* count) {
  const bool forward = pass == Pass::kForward;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto draw = [&] {
    std::normal_distribution<float> normal;
    return how.values == Values::kNormal
               ? normal(*random)
               : static_cast<float>(static_cast<int>((*random)() % 9) - 4);
  };
  Tensor<float> from(definition::Size(q, forward), how.shift, kNan);
  Tensor<float> to(definition::Size(q, !forward), how.shift, 7.f);
  Tensor<float> weight(definition::WeightSize(q), how.shift, kNan);
  Tensor<float> bias(static_cast<size_t>(q.out_channels), how.shift, kNan);

  const int vector = cuda::Aligned(from.data(), 16);
  LinesPlan plan;
  if (PlanLines(q, pass, DType::kF32, 132, vector, &plan) != nullptr) {
    ++count->refused;
    return;
  }
  if (how.any_plan || how.splits) {
    unsigned plans = 0;
    lines::ForEachPlan(q, forward, 132, vector, [&](const LinesPlan& g) {
      if ((g.splits > 1) == how.splits && (*random)() % ++plans == 0) plan = g;
    });
  }
  Tensor<float> workspace(static_cast<size_t>(plan.workspace_bytes) / 4, 0, kNan);
  for (Tensor<float>* tensor : {&from, &weight, &bias}) {
    for (size_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = draw();
  }
  std::fill_n(to.data(), to.size(), kNan);
  std::fill_n(workspace.data(), workspace.size(), kNan);
  if (how.values == Values::kNan) {
    const auto put = [&](float v) { from.data()[(*random)() % from.size()] = v; };
    put(kNan);
    put(std::numeric_limits<float>::infinity());
  }

  Call call;
  call.pass = pass;
  call.problem = q;
  call.dtype = DType::kF32;
  call.x = forward ? from.data() : to.data();
  call.w = weight.data();
  call.y = forward ? to.data() : from.data();
  call.vector = forward && how.bias ? bias.data() : nullptr;
  call.workspace = workspace.data();
  const int store = cuda::sm90_lines::StoreOf(call, plan);
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(from.data(), from.bytes());
  emulation::readable.Allow(workspace.data(), workspace.bytes(), true);
  plan.steps == 3 ? Run<3>(call, plan, how.multiprocessors)
                  : Run<4>(call, plan, how.multiprocessors);
  if (!to.Kept() || !workspace.Kept()) Fail(q, "something is written outside of the result");

  std::vector<double> want(to.size(), 0.0), typical(to.size(), 0.0);
  definition::ForAll(q, [&](size_t x, size_t tap, size_t y) {
    const double product = static_cast<double>(weight.data()[tap]) * from.data()[forward ? x : y];
    want[forward ? y : x] += product;
    typical[forward ? y : x] += product * product;
  });
  if (call.vector != nullptr) {
    definition::ForAllOfY(
        q, [&](size_t y, size_t channel) { want[y] += static_cast<double>(bias.data()[channel]); });
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    const float rounded = static_cast<float>(want[i]), got = to.data()[i];
    if (how.values == Values::kNormal) {
      error += (got - want[i]) * (got - want[i]);
      norm += typical[i] + want[i] * want[i];
    } else if (!std::isfinite(want[i]) && plan.products == 3) {
      // Of inf, parts of a weight may make nan.
      if (std::isfinite(got)) Fail(q, "what is not finite is lost");
    } else if (std::isnan(want[i]) ? !std::isnan(got) : got != rounded) {
      std::printf(
          "element %zu of %zu: %g, not %g; tiles of %d x %d x %d, %d columns, %d steps, slabs of "
          "%d, "
          "%d splits, copies of %d\n",
          i, to.size(), static_cast<double>(got), static_cast<double>(rounded), plan.tile_n,
          plan.tile_h, plan.tile_w, plan.instruction, plan.steps, plan.slab_channels, plan.splits,
          plan.vector);
      Fail(q, forward ? "y is wrong" : "dx is wrong");
    }
  }
  const double most = plan.products == 3 ? 3e-7 : 5e-4;
  if (!(error <= most * most * norm)) Fail(q, "the error is too large");

  const auto logarithm = [](int v) { return v == 1 ? 0 : v == 2 ? 1 : 2; };
  int pieces = 0;
  for (int i = 0; i < plan.phases; ++i) pieces = std::max(pieces, plan.phase[i].pieces);
  ++count->problems;
  ++count->columns[logarithm(std::max(plan.instruction / 64, 1))];
  count->narrow += plan.instruction == 32;
  ++count->vectors[logarithm(plan.vector)];
  ++count->steps[plan.steps - 3];
  if (forward) ++count->stores[logarithm(store)];
  if (forward) ++count->halves[plan.phase[0].halves - 1];
  count->splits += plan.splits > 1;
  count->turns += plan.splits == 1 && plan.tiles() > how.multiprocessors;
  count->rounds += plan.slabs * pieces > plan.splits * plan.weight_stages &&
                   plan.slabs > plan.splits * plan.line_stages;
  count->along += plan.along_taps;
  count->images += plan.tile_n > 1;
  count->swapped += plan.phase[0].first_half;
  count->phases += plan.phases > 2;
  count->traded += store == 4 && plan.phase[0].halves == 2;
  count->exact += plan.products == 3;
  count->skipped_rows += plan.row_step > 1;
  count->ordered += plan.ordered;
  count->ordered_splits += plan.ordered && plan.splits > 1;
  count->unaligned_along += plan.along_taps && how.shift != 0;
}

void CheckProblems(int most) {
  std::mt19937 random(11);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  const auto axis = [&](bool one) {
    Axis a;
    if (one) return Axis{1, 1, 1, 1, 1, 0};
    a.stride = pick(0, 2) == 0 ? 2 : pick(1, 5);
    a.kernel = pick(0, 2) == 0   ? 2 * a.stride
               : pick(0, 5) == 0 ? pick(1, 3)
                                 : a.stride + pick(0, 4);
    a.dilation = pick(0, 7) == 0 ? pick(2, 4) : 1;
    a.in = pick(0, 1) == 0 ? 4 * pick(1, 4) : pick(1, 13);
    const int64_t full = a.stride * (a.in - 1) + a.dilation * (a.kernel - 1) + 1;
    if (pick(0, 1) == 0) {
      a.crop_lo = std::max<int64_t>(0, (a.kernel - a.stride) / 2);
      a.out = a.in * a.stride;
    } else {
      a.crop_lo = pick(-5, 9);
      a.out = std::max<int64_t>(1, full - a.crop_lo + pick(-8, 6));
    }
    return a;
  };
  // Of large strides: both halves of residues stored by fours, or runs of different lengths.
  const auto far = [&] {
    const int64_t in = 4 * pick(1, 8);
    return pick(0, 1) == 0 ? Axis{in, 8 * in, 16, 8, 1, 4} : Axis{in, 12 * in, 24, 12, 1, 4};
  };
  // Of whose rows every second one is read.
  const auto dilated = [&](int64_t out) {
    return Axis{pick(2, 30), out, pick(1, 3), pick(2, 5), 2, pick(-1, 3)};
  };
  // All residues alike, of odd strides.
  const auto runs = [&] {
    const int64_t stride = 2 * pick(1, 2) + 1, in = pick(9, 40), taps = pick(1, 2);
    const int64_t out = stride * in + pick(-3, 3);
    return Axis{in, out, stride * taps, stride, 1, stride * pick(-1, 1)};
  };
  Count count;
  for (int i = 0; i < most; ++i) {
    const Pass pass = pick(0, 1) == 0 ? Pass::kForward : Pass::kGradInput;
    const bool one = pick(0, 2) == 0;
    const int kind = one ? pick(0, 4) : 0;
    const bool spread = !one && pick(0, 5) == 0;
    const Axis h = spread ? dilated(2 * pick(1, 20)) : axis(one);
    const Axis w = spread     ? dilated(4 * pick(1, 30) + 2)
                   : kind > 1 ? runs()
                   : kind > 0 ? far()
                              : axis(false);
    const int in = pick(1, i % 5 == 2 ? 150 : 40), out = pick(1, i % 5 == 3 ? 150 : 40);
    Problem q = definition::MakeProblem(pick(1, 3), 1, in, out, h, w);
    if (pass == Pass::kGradInput && pick(0, 1) == 0) q.precision = Precision::kHighest;
    How how;
    how.any_plan = i % 4 != 0;
    how.splits = i % 4 == 3 || (kind > 1 && pick(0, 2) == 0);
    how.multiprocessors = pick(1, 3);
    if (i % 5 == 4) how.shift = static_cast<size_t>(pick(1, 3));
    how.bias = pick(0, 1) == 0;
    if (i % 6 == 5) how.values = Values::kNan;
    if (i % 12 == 8) how.values = Values::kNormal;
    Check(q, pass, how, &random, &count);
  }
  std::printf(
      "lines_test: %d problems (%d refused): %d %d %d of 64, 128 and 256 columns; %d %d %d with "
      "copies of 4, 8 and 16 bytes; %d %d with three and four steps; %d %d %d stored by one, two "
      "and four; %d %d of one and two halves, %d with the second first; %d with splits, %d with "
      "tiles in turns, %d with more than its stages, %d along taps, %d of several images, %d of "
      "many phases, %d with halves traded, %d ordered, %d of them with splits, %d along taps of "
      "any start, %d with three products, %d of them "
      "of 32 columns, %d without rows that no tap reads\n",
      count.problems, count.refused, count.columns[0], count.columns[1], count.columns[2],
      count.vectors[0], count.vectors[1], count.vectors[2], count.steps[0], count.steps[1],
      count.stores[0], count.stores[1], count.stores[2], count.halves[0], count.halves[1],
      count.swapped, count.splits, count.turns, count.rounds, count.along, count.images,
      count.phases, count.traded, count.ordered, count.ordered_splits, count.unaligned_along,
      count.exact, count.narrow, count.skipped_rows);
  const int cases[] = {
      count.columns[0], count.columns[1], count.columns[2],     count.vectors[0],
      count.vectors[1], count.vectors[2], count.stores[0],      count.stores[1],
      count.stores[2],  count.steps[0],   count.steps[1],       count.halves[0],
      count.halves[1],  count.swapped,    count.splits,         count.turns,
      count.rounds,     count.along,      count.images,         count.phases,
      count.traded,     count.ordered,    count.ordered_splits, count.unaligned_along,
      count.exact,      count.narrow,     count.skipped_rows};
  if (most >= 100 && *std::min_element(std::begin(cases), std::end(cases)) == 0) {
    Fail({}, "a case is not met");
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  transconv::CheckProblems(argc > 1 ? std::atoi(argv[1]) : 140);
  return 0;
}
