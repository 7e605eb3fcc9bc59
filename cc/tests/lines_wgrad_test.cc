// The weight gradient from lines on the CPU, thread by thread as on a GPU, against the definition
// on random problems, with every plan that there is. Values are small integers, so that every order
// of summation gives the same.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "cuda_emulation.h"
#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
#include "sm90_register_products.h"

// After the emulation.
#include "cuda/kernels/sm90_lines_wgrad.cuh"
#include "cuda/launch/sm90_limits.h"

namespace transconv {
namespace {

using cuda::sm90_lines_wgrad::kThreads;
using cuda::sm90_lines_wgrad::LinesWgradKernel;
using cuda::sm90_lines_wgrad::MakeParams;
using cuda::sm90_lines_wgrad::Params;

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("lines_wgrad_test: %s\n", what);
  std::exit(1);
}

void Run(const Params& p, const LinesWgradPlan& plan) {
  const auto run = [&](auto kernel) {
    emulation::LaunchSm90(static_cast<unsigned>(plan.blocks * plan.splits), kThreads,
                          static_cast<size_t>(lines_wgrad::SharedBytes(plan)), [&] { kernel(p); });
  };
  switch (plan.columns) {
    case 256:
      return run(LinesWgradKernel<256, 1>);
    case 128:
      return plan.tiles == 2 ? run(LinesWgradKernel<128, 2>) : run(LinesWgradKernel<128, 1>);
    default:
      return run(LinesWgradKernel<64, 2>);
  }
}

enum class Values { kIntegers, kNan, kNormal };

struct Count {
  int problems = 0, refused = 0, splits = 0, ragged = 0, rounds = 0, images = 0, rows = 0;
  int columns[4] = {}, x[3] = {}, dy[3] = {};
};

void Check(const Problem& q, bool any_plan, int64_t splits, size_t shift, Values values,
           std::mt19937* random, Count* count) {
  LinesWgradPlan plan;
  if (PlanLinesWgrad(q, Pass::kGradWeight, DType::kF32, &plan) != nullptr) {
    ++count->refused;
    return;
  }
  if (any_plan) {
    unsigned plans = 0;
    lines_wgrad::ForEachPlan(q, [&](const LinesWgradPlan& g) {
      if ((*random)() % ++plans == 0) plan = g;
    });
    lines_wgrad::Cost(q, std::min(splits, plan.stages), &plan);
    lines_wgrad::SetPitches(q, &plan);
  }
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Tensor<float> x(definition::Size(q, true), shift, kNan);
  Tensor<float> dy(definition::Size(q, false), shift, kNan);
  Tensor<float> dw(definition::WeightSize(q), shift, 7.f);
  Tensor<float> slots(plan.splits > 1 ? dw.size() * static_cast<size_t>(plan.splits) : 0, 0, 5.f);
  for (Tensor<float>* tensor : {&x, &dy}) {
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < tensor->size(); ++i) {
      tensor->data()[i] = values == Values::kNormal
                              ? normal(*random)
                              : static_cast<float>(static_cast<int>((*random)() % 9) - 4);
    }
  }
  if (values == Values::kNan) {
    dy.data()[(*random)() % dy.size()] = kNan;
    dy.data()[(*random)() % dy.size()] = std::numeric_limits<float>::infinity();
    // None in x: there it would also meet the zeros around dy.
  }
  std::fill_n(dw.data(), dw.size(), kNan);
  std::fill_n(slots.data(), slots.size(), kNan);
  Params p = MakeParams(q, plan);
  p.x = x.data();
  p.dy = dy.data();
  p.dw = dw.data();
  p.slots = plan.splits > 1 ? slots.data() : nullptr;
  p.x_copy = cuda::Aligned(x.data(), p.x_copy);
  p.dy_copy = cuda::Aligned(dy.data(), p.dy_copy);
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(x.data(), x.bytes());
  emulation::readable.Allow(dy.data(), dy.bytes());
  Run(p, plan);
  if (plan.splits > 1) {
    for (size_t i = 0; i < dw.size(); ++i) {
      float sum = 0;
      for (int64_t s = 0; s < plan.splits; ++s) {
        sum += slots.data()[i + static_cast<size_t>(s) * dw.size()];
      }
      dw.data()[i] = sum;
    }
  }
  if (!dw.Kept() || !slots.Kept()) Fail(q, "something is written outside of the result");

  std::vector<double> want(dw.size(), 0.0), typical(dw.size(), 0.0);
  definition::ForAll(q, [&](size_t from, size_t tap, size_t at) {
    const double product = static_cast<double>(x.data()[from]) * dy.data()[at];
    want[tap] += product;
    typical[tap] += product * product;
  });
  double error = 0, norm = 0;
  for (size_t i = 0; i < dw.size(); ++i) {
    const float rounded = static_cast<float>(want[i]), got = dw.data()[i];
    if (values == Values::kNormal) {
      error += (got - want[i]) * (got - want[i]);
      norm += typical[i];
    } else if (std::isnan(want[i]) ? !std::isnan(got) : got != rounded) {
      std::printf("weight %zu of %zu: %g, not %g; %d columns, %d tiles, stages of %d x %d x %d\n",
                  i, dw.size(), static_cast<double>(got), static_cast<double>(rounded),
                  plan.columns, plan.tiles, plan.tile_n, plan.tile_h, plan.tile_w);
      Fail(q, "a weight is wrong");
    }
  }
  if (!(error <= 5e-4 * 5e-4 * norm)) Fail(q, "the error is too large");
  const auto logarithm = [](int v) { return v == 1 ? 0 : v == 2 ? 1 : 2; };
  ++count->problems;
  ++count->columns[plan.columns == 128 ? plan.tiles : plan.columns == 256 ? 3 : 0];
  ++count->x[logarithm(p.x_copy / 4)];
  ++count->dy[logarithm(p.dy_copy / 4)];
  count->splits += plan.splits > 1;
  count->ragged += p.ragged;
  count->rounds += plan.per_split > plan.ring;
  count->images += plan.tile_n > 1;
  count->rows += plan.row_blocks > 1;
}

void CheckProblems(int most) {
  std::mt19937 random(5);
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
  Count count;
  for (int i = 0; i < most; ++i) {
    const bool one = pick(0, 3) == 0;
    Axis h = axis(one), w = axis(false);
    if (one && pick(0, 1) == 0) w = Axis{8 * pick(1, 9), 64, 16, 8, 1, 4};
    if (one && w.kernel == 16) w.out = w.in * 8;
    const int groups = i % 7 == 6 ? 2 : 1;
    const Problem q = definition::MakeProblem(pick(1, 3), groups, pick(1, i % 5 == 2 ? 280 : 40),
                                              pick(1, i % 5 == 3 ? 60 : 12), h, w);
    const Values values = i % 4 == 3   ? Values::kNan
                          : i % 8 == 6 ? Values::kNormal
                                       : Values::kIntegers;
    Check(q, i % 3 != 0, pick(1, 4), i % 5 == 4 ? static_cast<size_t>(pick(1, 3)) : 0, values,
          &random, &count);
  }
  std::printf(
      "lines_wgrad_test: %d problems (%d refused): %d %d %d %d of 64, 128, twice 128 and 256 "
      "columns; %d %d %d and %d %d %d with copies of 4, 8 and 16 bytes; %d with splits, %d ragged, "
      "%d with more than their stages, %d of several images, %d with blocks of rows\n",
      count.problems, count.refused, count.columns[0], count.columns[1], count.columns[2],
      count.columns[3], count.x[0], count.x[1], count.x[2], count.dy[0], count.dy[1], count.dy[2],
      count.splits, count.ragged, count.rounds, count.images, count.rows);
  const int cases[] = {count.columns[0], count.columns[1], count.columns[2], count.columns[3],
                       count.x[0],       count.x[1],       count.x[2],       count.dy[0],
                       count.dy[1],      count.dy[2],      count.splits,     count.ragged,
                       count.rounds,     count.images,     count.rows};
  if (most >= 100 && *std::min_element(std::begin(cases), std::end(cases)) == 0) {
    Fail({}, "a case is not met");
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  transconv::CheckProblems(argc > 1 ? std::atoi(argv[1]) : 120);
  return 0;
}
