// The forward pass of small heads, emulated, against the definition on random problems. Values are
// small integers, so that every order of summation gives the same.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/direct_heads.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;
using cuda::heads::HeadsKernel;

void Check(const Problem& q, int infinite, std::mt19937* random) {
  const std::vector<float> x = Draw<Single>(Size(q, true), 0, random);
  const std::vector<float> w = Draw<Single>(WeightSize(q), infinite, random);
  const std::vector<float> bias = Draw<Single>(static_cast<size_t>(q.out_channels), 0, random);
  const bool with_bias = (*random)() % 2 == 0;
  std::vector<float> y(Size(q, false), Single::kPoison), expected(y.size(), 0);
  if (with_bias) ForAllOfY(q, [&](size_t i, size_t c) { expected[i] = bias[c]; });
  ForAll(q, [&](size_t i, size_t k, size_t o) { expected[o] += x[i] * w[k]; });
  const auto p = cuda::heads::MakeParams(q);
  const auto run = [&](auto kernel) {
    emulation::Launch(static_cast<unsigned>(CeilDiv(p.positions, cuda::heads::kPositions)),
                      cuda::heads::kThreads, static_cast<size_t>(cuda::heads::SharedBytes(q)), [&] {
                        kernel(x.data(), w.data(), with_bias ? bias.data() : nullptr, y.data(), p);
                      });
  };
  q.out_channels == 1 ? run(HeadsKernel<1>) : run(HeadsKernel<2>);
  for (size_t i = 0; i < y.size(); ++i) {
    if (Same(y[i], expected[i])) continue;
    std::printf("direct_heads_test: y[%zu] is %g, not %g\n", i, static_cast<double>(y[i]),
                static_cast<double>(expected[i]));
    Describe(q);
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(37);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int checked = 0;
  for (int i = 0; i < 24; ++i) {
    const auto axis = [&](int most) {
      return MakeAxis(pick(1, most), 4, 2, 1, pick(-3, 3), pick(-3, 3));
    };
    const Problem q = MakeProblem(pick(1, 3), 1, pick(128, 290), 1 + i % 2, axis(6), axis(9));
    if (!heads::IsFor(q)) continue;
    ++checked;
    Check(q, i % 3 == 0 ? 1 : 0, &random);
  }
  std::printf("direct_heads_test: %d problems\n", checked);
  return checked >= 20 ? EXIT_SUCCESS : EXIT_FAILURE;
}
