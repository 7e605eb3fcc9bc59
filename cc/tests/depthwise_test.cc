// The depthwise kernels on the CPU, thread by thread as on a GPU, against the definition.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "core/depthwise_plan.h"
#include "core/geometry.h"
#include "cuda_emulation.h"
#include "definition.h"
#include "direct_oracle.h"
// After the emulation.
#include "cuda/kernels/depthwise.cuh"

namespace {

using transconv::Axis;
using transconv::DepthwisePlan;
using transconv::DepthwiseShape;
using transconv::kDepthwiseForward;
using transconv::kDepthwiseGradInput;
using transconv::kDepthwiseThreads;
using transconv::Pass;
using transconv::Problem;
using transconv::definition::MakeAxis;
using transconv::definition::MakeProblem;
using transconv::direct_oracle::Element;
using transconv::direct_oracle::Example;
using transconv::direct_oracle::Narrow;

constexpr size_t kForwards = std::size(kDepthwiseForward);
constexpr size_t kGradInputs = std::size(kDepthwiseGradInput);

template <typename Shapes>
size_t IndexOf(const DepthwiseShape& shape, const Shapes& shapes) {
  size_t i = 0;
  while (shapes[i].rows != shape.rows || shapes[i].step != shape.step ||
         shapes[i].columns != shape.columns) {
    ++i;
  }
  return i;
}

template <typename E, size_t... kI>
void RunForward(const DepthwisePlan& p, const Example<E>& e, std::vector<typename E::Type>* got,
                std::index_sequence<kI...>) {
  const size_t shape = IndexOf(p.shape, kDepthwiseForward);
  const auto run = [&](auto i) {
    constexpr DepthwiseShape kIs = kDepthwiseForward[decltype(i)::value];
    if (shape != decltype(i)::value) return;
    transconv::emulation::Launch(static_cast<unsigned>(p.blocks), kDepthwiseThreads, 0, [&] {
      transconv::cuda::depthwise::DepthwiseForward<E, kIs.rows, kIs.step, kIs.columns>(
          e.source.data(), e.weight.data(), e.bias_or_null(), got->data(), p);
    });
  };
  (run(std::integral_constant<size_t, kI>()), ...);
}

template <typename E, size_t... kI>
void RunGradInput(const DepthwisePlan& p, const Example<E>& e, std::vector<typename E::Type>* got,
                  std::index_sequence<kI...>) {
  const size_t shape = IndexOf(p.shape, kDepthwiseGradInput);
  const auto run = [&](auto i) {
    constexpr DepthwiseShape kIs = kDepthwiseGradInput[decltype(i)::value];
    if (shape != decltype(i)::value) return;
    transconv::emulation::Launch(static_cast<unsigned>(p.blocks), kDepthwiseThreads, 0, [&] {
      transconv::cuda::depthwise::DepthwiseGradInput<E, kIs.rows, kIs.step, kIs.columns>(
          e.source.data(), e.weight.data(), got->data(), p);
    });
  };
  (run(std::integral_constant<size_t, kI>()), ...);
}

struct Count {
  int forward[kForwards] = {}, grad_input[kGradInputs] = {};
  int declined = 0, bands = 0;
};

template <typename E>
void Check(const Problem& q, Pass pass, int64_t wanted, Count* count, std::mt19937* random) {
  const DepthwisePlan plan = transconv::PlanDepthwise(pass, q, wanted);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  const bool forward = pass == Pass::kForward;
  ++(forward ? count->forward[IndexOf(plan.shape, kDepthwiseForward)]
             : count->grad_input[IndexOf(plan.shape, kDepthwiseGradInput)]);
  count->bands += plan.by_bands.divisor > 1;
  const Example<E> example(q, pass, (*random)() % 3 != 0, random);
  std::vector<typename E::Type> got(example.want.size(), E::kPoison);
  if (forward) {
    RunForward<E>(plan, example, &got, std::make_index_sequence<kForwards>());
  } else {
    RunGradInput<E>(plan, example, &got, std::make_index_sequence<kGradInputs>());
  }
  const char* wrong = example.Compare(got);
  if (wrong == nullptr) return;
  std::printf("depthwise_test: %s: %s\n", forward ? "forward" : "grad_input", wrong);
  transconv::definition::Describe(q);
  std::printf("%d rows of a thread, shape %d %d %d\n", plan.rows, plan.shape.rows, plan.shape.step,
              plan.shape.columns);
  std::exit(1);
}

}  // namespace

int main() {
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  Count count;
  const auto check = [&](const Problem& q, int64_t wanted) {
    for (const Pass pass : {Pass::kForward, Pass::kGradInput}) {
      const auto type = random() % 3;
      if (type == 0) {
        Check<Element<float>>(q, pass, wanted, &count, &random);
      } else if (type == 1) {
        Check<Element<double>>(q, pass, wanted, &count, &random);
      } else {
        Check<Narrow>(q, pass, wanted, &count, &random);
      }
    }
  };
  // Every instance, among kernels and strides that have none.
  for (int i = 0; i < 1200; ++i) {
    const auto axis = [&](int kernel, int stride, int most) {
      return MakeAxis(pick(1, most), kernel, stride, kernel == 1 ? pick(1, 3) : 1, pick(-3, 4),
                      pick(-3, 4));
    };
    const DepthwiseShape& shape = kDepthwiseGradInput[random() % kGradInputs];
    int kernel = shape.rows, stride = shape.rows == 1 ? pick(1, 3) : shape.step;
    if (i % 2 == 0) {
      stride = pick(1, 9);
      kernel = pick(1, std::min(5 * stride, 20));
    }
    const int kernel_w = i % 3 == 0 ? kernel : pick(1, std::max(shape.columns, 5));
    const int in = i % 5 == 0 ? pick(1, 3) : 1;  // planes of one side that are of one
    const int out = in == 1 && i % 3 == 0 ? pick(1, 3) : 1;
    check(MakeProblem(pick(1, 2), pick(1, 3), in, out, axis(kernel, stride, i % 4 == 0 ? 40 : 12),
                      axis(kernel_w, pick(1, 4), i % 7 == 0 ? 60 : 20)),
          i % 2 == 0 ? 1 : pick(1, 1000));
  }
  const Axis one = MakeAxis(1, 1, 1, 1, 0, 0);
  check(MakeProblem(2, 3, 1, 1, MakeAxis(20, 4, 2, 1, 1, 1), MakeAxis(36, 4, 2, 1, 1, 1)), 300);
  check(MakeProblem(1, 2, 1, 1, MakeAxis(5, 64, 32, 1, 16, 16), MakeAxis(5, 64, 32, 1, 16, 16)),
        300);
  check(MakeProblem(2, 2, 1, 1, one, MakeAxis(97, 15, 4, 1, 0, 0)), 300);
  check(MakeProblem(1, 1, 1, 1, MakeAxis(3, 2, 9, 1, -20, -2), MakeAxis(3, 3, 7, 1, -9, 1)), 1);

  Problem q = MakeProblem(int64_t{1} << 40, 1, 1, 1, one, one);
  if (transconv::PlanDepthwise(Pass::kForward, q).reason == nullptr) return 1;
  q = MakeProblem(1, 1, 1, 1, MakeAxis(1 << 20, 2, 1 << 11, 1, 0, 0), one);
  if (transconv::PlanDepthwise(Pass::kGradInput, q).reason == nullptr) return 1;

  std::printf("depthwise_test: forward");
  bool all = count.bands >= 200 && count.declined >= 100;
  for (const int n : count.forward) std::printf(" %d", n), all = all && n >= 10;
  std::printf(", grad_input");
  for (const int n : count.grad_input) std::printf(" %d", n), all = all && n >= 10;
  std::printf(" passes, %d in bands, %d declined\n", count.bands, count.declined);
  return all ? 0 : 1;
}
