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
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
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

template <typename T, int COLUMNS, int IN_HALVES, int OUT_HALVES, int PRODUCTS = 1>
void RunKernel(const rolling::RollingParams& p, const rolling::Programme& g) {
  using Ring = transconv::RollingWgradRing<COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS == 3 ? 2 : 1>;
  emulation::LaunchSm90(g.blocks(), rolling::kThreads, rolling::kControlBytes + Ring::kBytes, [&] {
    rolling::RollingWgradKernel<T, COLUMNS, IN_HALVES, OUT_HALVES, PRODUCTS>(p);
  });
}

template <typename T, int COLUMNS>
void RunColumns(const rolling::RollingParams& p, const rolling::Programme& g) {
  if constexpr (sizeof(T) == 4) {
    if (g.products == 3) return RunKernel<T, COLUMNS, 1, 1, 3>(p, g);
  }
  if (g.in_halves == 2) {
    return g.out_halves == 2 ? RunKernel<T, COLUMNS, 2, 2>(p, g)
                             : RunKernel<T, COLUMNS, 2, 1>(p, g);
  }
  return g.out_halves == 2 ? RunKernel<T, COLUMNS, 1, 2>(p, g) : RunKernel<T, COLUMNS, 1, 1>(p, g);
}

// `spread`: binades between the magnitudes of one image's rows, which makes exponents change. Of
// both images, or where the largest rows meet nothing, small rows would count that lie beside large
// ones, and they do lose digits. `x_shift` and `dy_shift`: elements from a multiple of 16 bytes.
template <typename T>
void Check(const Problem& q, int shares, int spread, size_t x_shift, size_t dy_shift,
           std::mt19937* random) {
  rolling::Programme g;
  constexpr auto kType = sizeof(T) == 4 ? transconv::DType::kF32 : transconv::DType::kF16;
  const char* const reason = rolling::Choose(q, transconv::Pass::kGradWeight, kType, &g);
  if (reason != nullptr) Fail(reason);
  g.shares = std::min(shares, static_cast<int>(q.batch) * g.pairs);
  std::normal_distribution<float> draw;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  transconv::Tensor<T> x_tensor(transconv::definition::Size(q, true), x_shift, nan);
  transconv::Tensor<T> dy_tensor(transconv::definition::Size(q, false), dy_shift, nan);
  T* const x = x_tensor.data();
  T* const dy = dy_tensor.data();
  const auto fill = [&](T* image, size_t size, int64_t width, int64_t height, bool spreads) {
    std::vector<float> scale(static_cast<size_t>(height), 1.f);
    for (float& s : scale) {
      if (!spreads) break;
      const int binades = static_cast<int>((*random)() % static_cast<unsigned>(spread + 1));
      s = std::ldexp(1.f, binades - spread / 2);
    }
    for (size_t i = 0; i < size; ++i) {
      image[i] =
          static_cast<T>(draw(*random) * scale[i / static_cast<size_t>(width) % scale.size()]);
    }
  };
  const bool of_x = (*random)() % 2 == 0;
  fill(x, x_tensor.size(), q.w.in, q.h.in, of_x);
  fill(dy, dy_tensor.size(), q.w.out, q.h.out, !of_x);

  const size_t slot_floats = 9 * 64 * 64;
  std::vector<float4> slots(static_cast<size_t>(g.slots) * g.strips * g.shares * slot_floats / 4,
                            float4{nan, nan, nan, nan});
  const size_t weights = transconv::definition::WeightSize(q);
  std::vector<T> dw(weights, static_cast<T>(nan));
  transconv::cuda::Call call;
  call.problem = q;
  call.dtype = kType;
  call.x = x;
  call.y = dy;
  call.workspace = slots.data();
  const rolling::RollingParams p = rolling::ParamsOf(call, g);
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(x, x_tensor.bytes());
  emulation::readable.Allow(dy, dy_tensor.bytes());
  g.columns == 128 ? RunColumns<T, 128>(p, g) : RunColumns<T, 64>(p, g);
  transconv::cuda::SumParams s = rolling::SumParamsOf(q, g);
  s.slots = p.slots;
  s.dw = dw.data();
  emulation::LaunchSm90(s.blocks, transconv::cuda::kSumThreads, 0,
                        [&] { transconv::cuda::SumSlotsKernel<T>(s); });

  std::vector<double> want(weights, 0.0), typical(weights, 0.0);
  ForAll(q, [&](size_t from, size_t tap, size_t to) {
    const double product =
        static_cast<double>(static_cast<float>(x[from])) * static_cast<float>(dy[to]);
    want[tap] += product;
    typical[tap] += product * product;
  });
  double error = 0, norm = 0;
  for (size_t i = 0; i < weights; ++i) {
    const double off = static_cast<float>(dw[i]) - want[i];
    if (!std::isfinite(off)) Fail("a weight is not finite");
    error += off * off;
    norm += typical[i];  // of a sum of as many random products
  }
  const double bound = g.products == 3 ? 3e-7 : 5e-4;
  if (error > bound * bound * norm) {
    transconv::definition::Describe(q);
    std::printf("%d products, %d columns: %.2e\n", g.products, g.columns, std::sqrt(error / norm));
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
    const bool three = i % 3 == 0, half = i % 3 == 1;
    const bool wide = i / 3 % 2 == 1, pairs = half && i % 4 < 3;
    // More channels than a block of three products has, or than a half.
    const bool many_in = i % 4 >= 2, many_out = (i + 1) % 4 >= 2;
    const int most = three ? 68 : 64;
    const int spread = !half && i % 4 == 3 ? 60 : 0;
    const auto crop = [&](int lo, int hi) { return spread > 0 ? 0 : pick(lo, hi); };
    // Tall ones add to their slots more than once.
    const auto h = MakeAxis(i % 11 == 6 ? pick(130, 140) : pick(1, 9), pick(1, i % 5 == 2 ? 5 : 3),
                            crop(-1, 1), crop(-1, 1));
    auto w = MakeAxis(wide ? pick(70, 140) : pick(3, 66), pick(1, i % 5 == 4 ? 5 : 3), crop(-2, 2),
                      crop(-2, 1));
    if (pairs) {
      w.in += w.in % 2;
      w.out += w.out % 2;
    }
    Problem q = MakeProblem(pick(1, 2), pick(1, 2), many_in ? pick(33, most) : pick(8, 32),
                            many_out ? pick(33, most) : pick(8, 32), h, w);
    if (three) q.precision = i % 2 == 0 ? Precision::kHighest : Precision::kHigh;
    const int shares = pick(1, 3);
    const size_t x_shift = i % 8 == 4 ? 1 : 0, dy_shift = i % 8 == 5 ? 1 : 0;
    if (half) {
      Check<__half>(q, shares, 0, x_shift, dy_shift, &random);
    } else {
      Check<float>(q, shares, spread, x_shift, dy_shift, &random);
    }
  }
  std::printf("rolling_wgrad_test: %d problems\n", count);
  return 0;
}
