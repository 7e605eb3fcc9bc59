// Plans that are remembered: made once, by everything that a problem is, from any thread.
#include "core/plans.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

using namespace transconv;

std::atomic<int> made{0};

struct Sum {
  int64_t value = 0;
};

// Different for everything that is changed below.
const char* Make(const Problem& q, Pass pass, DType dtype, Sum* sum) {
  ++made;
  int64_t value = 0;
  for (const int64_t v : {q.batch,
                          q.in_channels,
                          q.out_channels,
                          q.groups,
                          q.h.in,
                          q.h.out,
                          q.h.kernel,
                          q.h.stride,
                          q.h.dilation,
                          q.h.crop_lo,
                          q.w.in,
                          q.w.out,
                          q.w.kernel,
                          q.w.stride,
                          q.w.dilation,
                          q.w.crop_lo,
                          static_cast<int64_t>(q.layout),
                          static_cast<int64_t>(q.precision),
                          static_cast<int64_t>(pass),
                          static_cast<int64_t>(dtype)}) {
    value = 31 * value + v;
  }
  sum->value = value;
  return q.batch < 0 ? "a negative batch" : nullptr;
}
constexpr auto Plan = PlanOf<Sum, Make>;

void Check(bool holds, const char* what) {
  if (holds) return;
  std::printf("plans_test: %s\n", what);
  std::exit(1);
}

int64_t Fresh(Pass pass, const Problem& q, DType dtype) {
  Sum sum;
  Make(q, pass, dtype, &sum);
  return sum.value;
}

}  // namespace

int main() {
  const Problem base{8, 16, 32, 2, {5, 12, 4, 2, 1, 1}, {7, 14, 3, 2, 1, 0}};
  const auto first = Plan(Pass::kForward, base, DType::kF32);
  Check(Plan(Pass::kForward, base, DType::kF32) == first && made == 1, "made twice");

  const std::vector<std::function<void(Problem&, Pass&, DType&)>> changes = {
      [](Problem& q, Pass&, DType&) { ++q.batch; },
      [](Problem& q, Pass&, DType&) { ++q.in_channels; },
      [](Problem& q, Pass&, DType&) { ++q.out_channels; },
      [](Problem& q, Pass&, DType&) { ++q.groups; },
      [](Problem& q, Pass&, DType&) { ++q.h.in; },
      [](Problem& q, Pass&, DType&) { ++q.h.crop_lo; },
      [](Problem& q, Pass&, DType&) { ++q.w.stride; },
      [](Problem& q, Pass&, DType&) { ++q.w.crop_lo; },
      [](Problem& q, Pass&, DType&) { q.layout = Layout::kNHWC; },
      [](Problem& q, Pass&, DType&) { q.precision = Precision::kHighest; },
      [](Problem&, Pass& pass, DType&) { pass = Pass::kGradInput; },
      [](Problem&, Pass&, DType& dtype) { dtype = DType::kF16; },
  };
  for (const auto& change : changes) {
    Problem q = base;
    Pass pass = Pass::kForward;
    DType dtype = DType::kF32;
    change(q, pass, dtype);
    const auto other = Plan(pass, q, dtype);
    Check(other != first && other->plan.value == Fresh(pass, q, dtype), "another problem's plan");
  }

  Problem refused = base;
  refused.batch = -1;
  Check(Plan(Pass::kForward, refused, DType::kF32)->reason != nullptr, "no reason");
  Check(first->reason == nullptr, "a reason");

  // More problems than are kept; what is held stays valid.
  for (int64_t i = 0; i < 4 * static_cast<int64_t>(kMostPlans); ++i) {
    Problem q = base;
    q.h.in = 100 + i;
    Check(Plan(Pass::kForward, q, DType::kF32)->plan.value == Fresh(Pass::kForward, q, DType::kF32),
          "a wrong plan among many");
  }
  Check(first->plan.value == Fresh(Pass::kForward, base, DType::kF32), "a plan that was held");

  std::atomic<bool> right{true};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 2000; ++i) {
        Problem q = base;
        q.w.in = 1 + (i * (t + 1)) % 300;
        if (Plan(Pass::kForward, q, DType::kF32)->plan.value !=
            Fresh(Pass::kForward, q, DType::kF32)) {
          right = false;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  Check(right, "threads got wrong plans");
  std::printf("plans_test: %zu changes, %d plans made\n", changes.size(), made.load());
}
