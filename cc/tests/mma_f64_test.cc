// The float64 kernels on the CPU, thread by thread as on a GPU, against the definition on random
// problems. Values are small integers, so that every order of summation gives the same.
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

// After the emulation.
#include "cuda/kernels/mma_f64.cuh"
#include "cuda/kernels/mma_f64_wgrad.cuh"
#include "cuda/launch/mma_f64_call.cuh"

namespace transconv {
namespace {

using cuda::Call;
using cuda::mma_f64::GatherKernel;
using cuda::mma_f64::GatherParams;
using cuda::mma_f64::kThreads;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("mma_f64_test: %s\n", what);
  std::exit(1);
}

int Columns(int64_t channels) {
  return cuda::mma_f64::WithTile(channels, [](auto tile) { return tile.kN; });
}

// As the launcher does.
template <Pass kPass>
void RunGather(const Call& call) {
  const GatherParams p = cuda::mma_f64::GatherParamsOf(call);
  const int64_t blocks = cuda::mma_f64::GatherGrid(kPass, call.problem).blocks().value();
  cuda::mma_f64::WithTile(p.per_group, [&](auto tile) {
    using Tile = decltype(tile);
    emulation::Launch(static_cast<unsigned>(blocks), kThreads, cuda::mma_f64::kGatherBytes<Tile>,
                      [&] { GatherKernel<Tile, kPass>(p); });
  });
}

int RunWgrad(const Call& call) {
  int splits = 0;
  const cuda::mma_f64::WgradParams p = cuda::mma_f64::WgradParamsOf(call, &splits);
  emulation::Launch(static_cast<unsigned>(cuda::mma_f64::WgradBlocks(p, splits)), kThreads,
                    cuda::mma_f64::kWgradBytes, [&] { cuda::mma_f64::WgradKernel(p); });
  if (splits == 1) return 1;
  for (int64_t i = 0; i < p.size; ++i) {
    double sum = 0;
    for (int s = 0; s < splits; ++s) sum += p.partial[s * p.size + i];
    static_cast<double*>(call.w)[i] = sum;
  }
  return splits;
}

struct Count {
  int problems = 0, splits = 0, columns[4] = {};
};

void Check(const Problem& q, Pass pass, std::mt19937* random, Count* count) {
  if (const char* why = cuda::mma_f64::Unsupported(pass, q, DType::kF64)) Fail(q, why);
  Tensor<double> x(definition::Size(q, true), 0, kNan), y(definition::Size(q, false), 0, kNan);
  Tensor<double> w(definition::WeightSize(q), 0, kNan);
  Tensor<double> bias(static_cast<size_t>(q.out_channels), 0, kNan);
  Tensor<double> workspace(static_cast<size_t>(cuda::mma_f64::PartialBytes(q)) / 8, 0, kNan);
  for (Tensor<double>* tensor : {&x, &y, &w, &bias}) {
    for (size_t i = 0; i < tensor->size(); ++i) {
      tensor->data()[i] = static_cast<double>(static_cast<int>((*random)() % 9) - 4);
    }
  }
  Tensor<double>& to = pass == Pass::kForward ? y : pass == Pass::kGradInput ? x : w;
  std::fill_n(to.data(), to.size(), kNan);
  std::fill_n(workspace.data(), workspace.size(), kNan);
  Call call;
  call.pass = pass;
  call.problem = q;
  call.dtype = DType::kF64;
  call.x = x.data();
  call.w = w.data();
  call.y = y.data();
  call.vector = pass == Pass::kForward && (*random)() % 2 == 0 ? bias.data() : nullptr;
  call.workspace = workspace.data();
  switch (pass) {
    case Pass::kForward:
      RunGather<Pass::kForward>(call);
      break;
    case Pass::kGradInput:
      RunGather<Pass::kGradInput>(call);
      break;
    case Pass::kGradWeight:
      count->splits += RunWgrad(call) > 1;
  }
  if (!x.Kept() || !y.Kept() || !w.Kept() || !workspace.Kept()) {
    Fail(q, "something is written outside of the result");
  }
  std::vector<double> want(to.size(), 0.0);
  definition::ForAll(q, [&](size_t i, size_t tap, size_t o) {
    switch (pass) {
      case Pass::kForward:
        want[o] += x.data()[i] * w.data()[tap];
        break;
      case Pass::kGradInput:
        want[i] += y.data()[o] * w.data()[tap];
        break;
      case Pass::kGradWeight:
        want[tap] += x.data()[i] * y.data()[o];
    }
  });
  if (call.vector != nullptr) {
    definition::ForAllOfY(q, [&](size_t o, size_t channel) { want[o] += bias.data()[channel]; });
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(to.data()[i] == want[i])) {
      std::printf("pass %d: [%zu] is %g, not %g\n", static_cast<int>(pass), i, to.data()[i],
                  want[i]);
      Fail(q, "a result is wrong");
    }
  }
  ++count->problems;
  if (pass != Pass::kGradWeight) {
    const int64_t channels = pass == Pass::kForward ? q.out_per_group() : q.in_per_group();
    const int columns = Columns(channels);
    ++count->columns[columns == 8 ? 0 : columns == 16 ? 1 : columns == 32 ? 2 : 3];
  }
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(12);
  const auto draw = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  Count count;
  for (int i = 0; i < 150; ++i) {
    const bool many = i % 3 == 0;
    const int groups = draw(0, 3) == 0 ? draw(2, 3) : 1;
    const int most = many ? 80 / groups : 12;
    const Problem q = definition::MakeProblem(
        draw(1, 3), groups, draw(1, most), draw(1, most), definition::DrawAxis(draw, 9, 4, 4, 3),
        definition::DrawAxis(draw, 9, 4, 4, 3), draw(0, 1) == 0 ? Layout::kNCHW : Layout::kNHWC);
    for (const Pass pass : {Pass::kForward, Pass::kGradInput, Pass::kGradWeight}) {
      Check(q, pass, &random, &count);
    }
  }
  std::printf("mma_f64: %d problems, columns %d %d %d %d, split %d\n", count.problems,
              count.columns[0], count.columns[1], count.columns[2], count.columns[3], count.splits);
  const bool all = *std::min_element(count.columns, count.columns + 4) > 0 && count.splits > 0;
  if (!all) std::printf("mma_f64_test: a way to run was never taken\n");
  return all ? 0 : 1;
}
