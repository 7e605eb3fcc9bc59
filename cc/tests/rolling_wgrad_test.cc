// The rolling weight gradient on the CPU, thread by thread as on a GPU: its plan, its kernel and
// the sum of its slots, against the definition. With one product and, as accurate as float32, with
// three.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/dtypes.h"
#include "core/geometry.h"
#include "definition.h"
#include "hopper_emulation.h"
// After the emulation.
#include "cuda/kernels/sm90_wgrad_rolling.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/sm90_wgrad_rolling_plan.cuh"

namespace {

namespace rolling = transconv::cuda::sm90_wgrad_rolling;
namespace emulation = transconv::emulation;
using transconv::Precision;
using transconv::Problem;
using transconv::definition::ForAll;
using transconv::definition::MakeAxis;
using transconv::definition::MakeProblem;

void Fail(const char* what) {
  std::printf("rolling_wgrad_test: %s\n", what);
  std::exit(1);
}

template <int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS>
void RunKernel(const rolling::RollingParams& p, const rolling::Programme& g) {
  using Ring = transconv::RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS == 3 ? 2 : 1>;
  emulation::Launch(g.blocks(), rolling::kThreads, rolling::kControlBytes + Ring::kBytes, [&] {
    rolling::RollingWgradKernel<float, COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS>(p);
  });
}

template <int COLUMNS>
void RunColumns(const rolling::RollingParams& p, const rolling::Programme& g) {
  if (g.products == 3) return RunKernel<COLUMNS, 1, 1, 3>(p, g);
  if (g.in_halves == 2) {
    return g.out_halves == 2 ? RunKernel<COLUMNS, 2, 2, 1>(p, g)
                             : RunKernel<COLUMNS, 2, 1, 1>(p, g);
  }
  return g.out_halves == 2 ? RunKernel<COLUMNS, 1, 2, 1>(p, g) : RunKernel<COLUMNS, 1, 1, 1>(p, g);
}

// `spread`: binades between the magnitudes of rows, which makes exponents change.
void Check(const Problem& q, int shares, int spread, std::mt19937* random) {
  rolling::Programme g;
  const char* const reason =
      rolling::Choose(q, transconv::Pass::kGradWeight, transconv::DType::kF32, &g);
  if (reason != nullptr) Fail(reason);
  g.shares = std::min(shares, static_cast<int>(q.batch) * g.pairs);
  std::normal_distribution<float> draw;
  std::vector<float> x(static_cast<size_t>(q.batch * q.in_channels * q.h.in * q.w.in));
  std::vector<float> dy(static_cast<size_t>(q.batch * q.out_channels * q.h.out * q.w.out));
  const auto fill = [&](std::vector<float>* image, int64_t width, int64_t height) {
    std::vector<float> scale(static_cast<size_t>(height), 1.f);
    for (float& s : scale) {
      const int binades = static_cast<int>((*random)() % static_cast<unsigned>(spread + 1));
      s = std::ldexp(1.f, binades - spread / 2);
    }
    for (size_t i = 0; i < image->size(); ++i) {
      (*image)[i] = draw(*random) * scale[i / static_cast<size_t>(width) % scale.size()];
    }
  };
  fill(&x, q.w.in, q.h.in);
  fill(&dy, q.w.out, q.h.out);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  const size_t slot_floats = 9 * 64 * 64;
  std::vector<float4> slots(static_cast<size_t>(g.slots) * g.strips * g.shares * slot_floats / 4,
                            float4{nan, nan, nan, nan});
  const size_t weights = static_cast<size_t>(q.in_channels * q.out_per_group() * q.taps());
  std::vector<float> dw(weights, nan);
  rolling::RollingParams p = rolling::ParamsOf(q, transconv::DType::kF32, g);
  p.x = x.data();
  p.dy = dy.data();
  p.slots = &slots[0].x;
  emulation::loadable = {{reinterpret_cast<const char*>(x.data()), 4 * x.size()},
                         {reinterpret_cast<const char*>(dy.data()), 4 * dy.size()}};
  g.columns == 128 ? RunColumns<128>(p, g) : RunColumns<64>(p, g);
  transconv::cuda::SumParams s = rolling::SumParamsOf(q, g);
  s.slots = p.slots;
  s.dw = dw.data();
  emulation::Launch(rolling::SumBlocks(q, s), transconv::cuda::kSumThreads, 0,
                    [&] { transconv::cuda::SumSlotsKernel<float>(s); });

  std::vector<double> want(weights, 0.0), typical(weights, 0.0);
  ForAll(q, [&](size_t from, size_t tap, size_t to) {
    const double product = static_cast<double>(x[from]) * dy[to];
    want[tap] += product;
    typical[tap] += product * product;
  });
  double error = 0, norm = 0;
  for (size_t i = 0; i < weights; ++i) {
    if (!std::isfinite(dw[i])) Fail("a weight is not finite");
    error += (dw[i] - want[i]) * (dw[i] - want[i]);
    norm += typical[i];  // of a sum of as many random products
  }
  const double bound = g.products == 3 ? 3e-7 : 5e-4;
  if (error > bound * bound * norm) {
    std::printf("%d x %d x (%d to %d) x %dx%d, %dx%d, %d products, %d columns: %.2e\n",
                static_cast<int>(q.batch), static_cast<int>(q.groups),
                static_cast<int>(q.in_per_group()), static_cast<int>(q.out_per_group()),
                static_cast<int>(q.h.in), static_cast<int>(q.w.in), static_cast<int>(q.h.kernel),
                static_cast<int>(q.w.kernel), g.products, g.columns, std::sqrt(error / norm));
    Fail("the error is too large");
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(11);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  const int count = argc > 1 ? std::atoi(argv[1]) : 16;
  for (int i = 0; i < count; ++i) {
    const bool three = i % 2 == 0;
    const int kernel_h = i % 3 == 2 ? pick(4, 5) : pick(1, 3);
    const int kernel_w = i % 7 == 3 ? pick(4, 5) : pick(1, 3);
    // Tall ones add to their slots more than once.
    const int height = i % 11 == 6 ? pick(130, 140) : pick(1, 9);
    const auto h = MakeAxis(height, kernel_h, 1, 1, pick(-1, 1), pick(-1, 1));
    const auto w = MakeAxis(i % 5 >= 3 ? pick(70, 140) : pick(1, 66), kernel_w, 1, 1, pick(-1, 2),
                            pick(-2, 1));
    const int groups = i % 3 == 1 ? 2 : 1;
    const bool many = i % 8 >= 4;  // more channels than a block has, or a half
    const int in = many && i % 4 != 1 ? pick(33, three ? 68 : 64) : pick(8, 32);
    const int out = many && i % 4 != 2 ? pick(33, three ? 68 : 64) : pick(8, 32);
    Problem q = MakeProblem(pick(1, 2), groups, in, out, h, w);
    if (three) q.precision = i % 4 == 0 ? Precision::kHighest : Precision::kHigh;
    Check(q, pick(1, 3), i % 7 >= 5 ? 60 : 0, &random);
  }
  std::printf("rolling_wgrad_test: %d problems\n", count);
  return 0;
}
