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
#include "cuda/kernels/direct_wgrad_pairs.cuh"

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

// By a block for each pair of channels; integers, so that every order of sums gives the same.
template <typename T, int TAPS>
bool CheckPairs(const Problem& q, std::mt19937& random) {
  Tensors<T> t;
  t.x.resize(definition::Size(q, true));
  t.dy.resize(definition::Size(q, false));
  for (auto* v : {&t.x, &t.dy}) {
    for (T& e : *v) e = static_cast<T>(static_cast<int>(random() % 17) - 8);
  }
  // Beside dy nothing is a product.
  t.x[random() % t.x.size()] = std::numeric_limits<T>::infinity();
  std::vector<T> dw(definition::WeightSize(q), std::numeric_limits<T>::lowest());
  const auto p = cuda::direct_wgrad::MakePairParams(q);
  emulation::Launch(
      static_cast<unsigned>(q.in_channels * q.out_per_group()), cuda::direct_wgrad::kPairThreads, 0,
      [&] { cuda::direct_wgrad::PairsKernel<T, T, TAPS>(t.x.data(), t.dy.data(), dw.data(), p); });
  const std::vector<double> expected = Expected(q, t);
  for (size_t i = 0; i < dw.size(); ++i) {
    const double found = static_cast<double>(dw[i]);
    if (found == expected[i] || (std::isnan(found) && std::isnan(expected[i]))) continue;
    std::printf("pairs: dw[%zu] is %g instead of %g\n", i, found, expected[i]);
    definition::Describe(q);
    return false;
  }
  return true;
}
template <typename T>
bool CheckPairs(const Problem& q, std::mt19937& random) {
  if (q.taps() <= 4) return CheckPairs<T, 4>(q, random);
  if (q.taps() <= 9) return CheckPairs<T, 9>(q, random);
  return CheckPairs<T, kMostPairTaps>(q, random);
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
  int pairs = 0;
  for (int i = 0; i < 200 && pairs < 24; ++i) {
    Problem few = RandomProblem(random);
    few.layout = Layout::kNCHW;
    if (!IsForPairs(few)) continue;
    ++pairs;
    if (!(i % 3 == 2 ? CheckPairs<double>(few, random) : CheckPairs<float>(few, random))) {
      return EXIT_FAILURE;
    }
  }
  std::printf("direct_wgrad: %d problems, %d by pairs\n", kProblems + 1, pairs);
  return EXIT_SUCCESS;
}
