// The direct kernel of the weight gradient, emulated, against the definition on random problems.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "cuda_emulation.h"
#include "definition.h"
// After the emulation.
#include "cuda/kernels/direct_wgrad.cuh"

namespace transconv {
namespace {

using cuda::direct_wgrad::MakeParams;
using cuda::direct_wgrad::Params;
using cuda::direct_wgrad::WgradKernel;

template <typename T>
struct Tensors {
  std::vector<T> x, dy;
};

template <typename T>
std::vector<double> Expected(const Problem& q, const Tensors<T>& t) {
  std::vector<double> dw(definition::WeightSize(q));
  definition::ForAll(q, [&](size_t x, size_t w, size_t y) {
    dw[w] += static_cast<double>(t.x[x]) * static_cast<double>(t.dy[y]);
  });
  return dw;
}

template <typename T, int RM, int RN>
void Run(const Params& p, const Tensors<T>& t, std::vector<T>* partial) {
  emulation::Launch(static_cast<unsigned>(p.plan.blocks * p.plan.splits), DirectWgradPlan::kThreads,
                    p.plan.shared_values * sizeof(T), [&] {
                      WgradKernel<T, T, RM, RN>(t.x.data(), t.dy.data(), partial->data(), p);
                    });
}

template <typename T>
bool Check(const Problem& q, std::mt19937& random) {
  DirectWgradPlan plan;
  if (const char* reason = MakeDirectWgradPlan(q, sizeof(T), sizeof(T), &plan)) {
    std::printf("declined: %s\n", reason);
    return false;
  }
  Tensors<T> t;
  t.x.resize(definition::Size(q, true));
  t.dy.resize(definition::Size(q, false));
  std::uniform_real_distribution<double> values(-1, 1);
  for (auto* v : {&t.x, &t.dy}) {
    for (T& e : *v) e = static_cast<T>(values(random));
  }
  const Params p = MakeParams(q, plan);
  std::vector<T> partial(p.size * plan.splits, std::numeric_limits<T>::quiet_NaN());
  if (plan.rm == 4) {
    plan.rn == 4 ? Run<T, 4, 4>(p, t, &partial) : Run<T, 4, 1>(p, t, &partial);
  } else {
    plan.rn == 4 ? Run<T, 1, 4>(p, t, &partial) : Run<T, 1, 1>(p, t, &partial);
  }
  const std::vector<double> expected = Expected(q, t);
  const double terms = static_cast<double>(q.batch * q.h.in * q.w.in);
  const double allowed = 4 * std::numeric_limits<T>::epsilon() * terms;
  for (int64_t i = 0; i < p.size; ++i) {
    double sum = 0;
    for (int64_t s = 0; s < plan.splits; ++s) sum += partial[s * p.size + i];
    if (!(std::abs(sum - expected[i]) <= allowed)) {
      std::printf("dw[%lld]: %g instead of %g\n", static_cast<long long>(i), sum, expected[i]);
      definition::Describe(q);
      return false;
    }
  }
  return true;
}

Problem RandomProblem(std::mt19937& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Problem q;
  q.batch = pick(1, 3);
  q.groups = pick(1, 3);
  const bool many = pick(0, 3) == 0;
  q.in_channels = q.groups * (pick(0, 2) == 0 ? 1 : pick(1, many ? 40 : 9));
  q.out_channels = q.groups * (pick(0, 2) == 0 ? 1 : pick(1, many ? 40 : 9));
  q.h = definition::DrawAxis(pick, 9, 5, 5, 3);
  q.w = definition::DrawAxis(pick, 40, 5, 5, 3);
  if (pick(0, 3) == 0) std::swap(q.h, q.w);
  q.layout = pick(0, 2) == 0 ? Layout::kNHWC : Layout::kNCHW;
  return q;
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(20);
  constexpr int kProblems = 60;
  for (int i = 0; i < kProblems; ++i) {
    const Problem q = RandomProblem(random);
    const bool right = i % 3 == 2 ? Check<double>(q, random) : Check<float>(q, random);
    if (!right) return EXIT_FAILURE;
  }
  // A kernel of more taps than a block has threads.
  Problem q;
  q.batch = 2;
  q.groups = q.in_channels = q.out_channels = 2;
  q.h = {3, 100, 40, 20, 1, 4};
  q.w = {5, 108, 40, 20, 1, 6};
  if (!Check<float>(q, random)) return EXIT_FAILURE;
  std::printf("direct_wgrad: %d problems\n", kProblems + 1);
  return EXIT_SUCCESS;
}
