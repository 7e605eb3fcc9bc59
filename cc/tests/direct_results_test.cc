// The input gradient of few results, emulated, against the definition on random problems. Values
// are small integers, so that every order of summation gives the same, and infinities.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/direct_results.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;

void Check(const Problem& q, int infinite, std::mt19937* random) {
  const std::vector<float> dy = Draw<Single>(Size(q, false), 0, random);
  const std::vector<float> w = Draw<Single>(WeightSize(q), infinite, random);
  std::vector<float> dx(Size(q, true), Single::kPoison), expected(dx.size(), 0);
  ForAll(q, [&](size_t i, size_t k, size_t o) { expected[i] += dy[o] * w[k]; });
  const auto p = cuda::results::MakeParams(q);
  emulation::Launch(static_cast<unsigned>(CeilDiv(p.results, cuda::results::kThreads)),
                    cuda::results::kThreads, 0,
                    [&] { cuda::results::ResultsKernel(dy.data(), w.data(), dx.data(), p); });
  for (size_t i = 0; i < dx.size(); ++i) {
    if (Same(dx[i], expected[i])) continue;
    std::printf("direct_results_test: dx[%zu] is %g, not %g\n", i, static_cast<double>(dx[i]),
                static_cast<double>(expected[i]));
    Describe(q);
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(38);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int checked = 0;
  for (int i = 0; i < 120; ++i) {
    const auto axis = [&](int most) {
      return MakeAxis(pick(1, most), pick(1, 5), pick(1, 4), pick(1, 3), pick(-3, 3), pick(-3, 3));
    };
    const int groups = pick(1, 3);
    const Problem q =
        MakeProblem(pick(1, 3), groups, groups * pick(1, 4), groups * pick(1, 5), axis(6), axis(9));
    if (!results::IsFor(q)) continue;
    ++checked;
    Check(q, i % 3 == 0 ? 1 : 0, &random);
  }
  // The most taps, products and results that it takes, and one more.
  const auto at = [&](int64_t batch, int64_t out, int64_t kernel, int64_t in) {
    const Axis h = MakeAxis(4, 4, 2, 1, 1, 1);
    return MakeProblem(batch, 1, 2, out, h,
                       MakeAxis(static_cast<int>(in), static_cast<int>(kernel), 2, 1, 1, 1));
  };
  const bool limits = results::IsFor(at(1, 4, 4, 4)) && !results::IsFor(at(1, 5, 4, 4)) &&
                      !results::IsFor(at(1, 2, 5, 4)) && results::IsFor(at(2048, 2, 4, 4)) &&
                      !results::IsFor(at(2049, 2, 4, 4));
  if (!limits) {
    std::printf("direct_results_test: takes others than it says\n");
    return EXIT_FAILURE;
  }
  Check(at(1, 4, 4, 4), 0, &random);
  std::printf("direct_results_test: %d problems\n", checked);
  return checked >= 40 ? EXIT_SUCCESS : EXIT_FAILURE;
}
