// The weight gradient as one matrix product on the CPU, thread by thread as on a GPU, against the
// definition on random problems. Values are small integers, so that every order of summation gives
// the same.
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
#include "sm90_emulation.h"
#include "sm90_products.h"
#include "sm90_register_products.h"

// After the emulation.
#include "cuda/kernels/sm90_gemm_wgrad.cuh"

namespace transconv {
namespace {

using cuda::sm90_gemm_wgrad::GemmWgradKernel;
using cuda::sm90_gemm_wgrad::kThreads;
using cuda::sm90_gemm_wgrad::MakeParams;
using cuda::sm90_gemm_wgrad::Params;
using cuda::sm90_gemm_wgrad::SharedBytes;

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("gemm_wgrad_test: %s\n", what);
  std::exit(1);
}

template <typename T, int KW>
void RunColumns(const Params& p, const GemmWgradPlan& plan) {
  const auto run = [&](auto kernel) {
    emulation::LaunchSm90(
        static_cast<unsigned>(plan.blocks * plan.splits), kThreads,
        static_cast<size_t>(SharedBytes(plan.columns)), [&] { kernel(p); },
        static_cast<unsigned>(plan.cluster()));
  };
  plan.columns == 256 ? run(GemmWgradKernel<T, KW, 256>) : run(GemmWgradKernel<T, KW, 128>);
}

template <typename T>
void RunTaps(const Params& p, const GemmWgradPlan& plan) {
  switch (plan.w.kernel) {
    case 1:
      return RunColumns<T, 1>(p, plan);
    case 2:
      return RunColumns<T, 2>(p, plan);
    case 4:
      return RunColumns<T, 4>(p, plan);
    default:
      return RunColumns<T, 8>(p, plan);
  }
}

enum class Values { kIntegers, kNan, kNormal };

struct Count {
  int problems = 0, splits = 0, vectors = 0, boxed = 0, wide = 0, refused = 0;
  int clusters = 0, half_clusters = 0, group_clusters = 0, full_clusters = 0;
};

// Where `columns` is not 0, it, `splits` and `clustered` replace the plan's; images start `shift`
// elements behind 16 bytes.
template <typename T>
void Check(const Problem& q, int64_t splits, bool clustered, int columns, size_t shift,
           Values values, std::mt19937* random, Count* count) {
  constexpr int kElement = sizeof(T);
  GemmWgradPlan plan = PlanGemmWgrad(q, kElement);
  if (plan.reason != nullptr) {
    ++count->refused;
    return;
  }
  if (columns != 0) {
    gemm_wgrad::Cost(q, columns, std::min(splits, plan.stages), clustered, &plan);
  }
  Params p = MakeParams(q, plan, kElement);
  // Outside of the tensors there is what must not be read.
  constexpr size_t kGuard = 64;
  const T nan = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
  const auto draw = [&] {
    std::normal_distribution<float> normal;
    return values == Values::kNormal ? normal(*random)
                                     : static_cast<float>(static_cast<int>((*random)() % 9) - 4);
  };
  const size_t x_size = definition::Size(q, true), dy_size = definition::Size(q, false);
  struct alignas(16) Block {
    T v[16 / sizeof(T)];
  };
  const auto blocks = [&](size_t size) {
    Block block;
    std::fill(std::begin(block.v), std::end(block.v), nan);
    return std::vector<Block>((size + 2 * kGuard) * sizeof(T) / 16 + 1, block);
  };
  std::vector<Block> x_memory = blocks(x_size), dy_memory = blocks(dy_size);
  T* const x = x_memory[0].v + kGuard + shift;
  T* const dy = dy_memory[0].v + kGuard + shift;
  for (size_t i = 0; i < x_size; ++i) x[i] = static_cast<T>(draw());
  for (size_t i = 0; i < dy_size; ++i) dy[i] = static_cast<T>(draw());
  if (values == Values::kNan) {
    dy[(*random)() % dy_size] = nan;
    dy[(*random)() % dy_size] = static_cast<T>(std::numeric_limits<float>::infinity());
    x[(*random)() % x_size] = nan;
  }
  p.x = reinterpret_cast<const char*>(x);
  p.dy = reinterpret_cast<const char*>(dy);
  const auto vector = [](const void* at, int v) {
    while (reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(v) != 0) v /= 2;
    return v;
  };
  p.x_vector = vector(x, p.x_vector);
  p.dy_vector = vector(dy, p.dy_vector);
  const cuda::BoxTensor boxes = cuda::sm90_gemm_wgrad::XBoxesOf(x, q, plan);
  p.x_boxes = cuda::ptx::MapOf(&boxes);
  p.boxed = plan.boxed && p.x_vector == 16;
  const size_t weights = definition::WeightSize(q);
  if (static_cast<int64_t>(weights) != p.weights) Fail(q, "another number of weights");
  std::vector<float> slots(weights * static_cast<size_t>(plan.splits) + 2 * kGuard, 12345.f);
  std::vector<T> dw(weights + 2 * kGuard, static_cast<T>(7.f));
  // A result may start anywhere, too.
  T* const to = &dw[kGuard + shift];
  p.slots = plan.has_slots() ? &slots[kGuard] : nullptr;
  p.dw = to;
  p.pairs = reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0;
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(x, sizeof(T) * x_size);
  emulation::readable.Allow(dy, sizeof(T) * dy_size);
  RunTaps<T>(p, plan);
  if (plan.has_slots()) {
    for (size_t i = 0; i < weights; ++i) {
      float sum = 0;
      for (int64_t s = 0; s < plan.splits; ++s) {
        sum += slots[kGuard + i + static_cast<size_t>(s) * weights];
      }
      to[i] = static_cast<T>(sum);
    }
  }
  for (size_t i = 0; i < kGuard; ++i) {
    const bool kept = slots[i] == 12345.f && slots[slots.size() - 1 - i] == 12345.f &&
                      static_cast<float>(dw[i]) == 7.f &&
                      (i >= kGuard - shift || static_cast<float>(dw[dw.size() - 1 - i]) == 7.f);
    if (!kept) Fail(q, "something is written outside of the result");
  }

  std::vector<double> want(weights, 0.0), typical(weights, 0.0);
  definition::ForAll(q, [&](size_t from, size_t tap, size_t at) {
    const double product =
        static_cast<double>(static_cast<float>(x[from])) * static_cast<float>(dy[at]);
    want[tap] += product;
    typical[tap] += product * product;
  });
  double error = 0, norm = 0;
  for (size_t i = 0; i < weights; ++i) {
    const float rounded = static_cast<float>(static_cast<T>(static_cast<float>(want[i])));
    const float got = static_cast<float>(to[i]);
    if (values == Values::kNormal) {
      error += (got - want[i]) * (got - want[i]);
      norm += typical[i];
    } else if (std::isnan(want[i]) ? !std::isnan(got) : got != rounded) {
      std::printf("weight %zu of %zu: %g, not %g\n", i, weights, static_cast<double>(got),
                  static_cast<double>(rounded));
      Fail(q, "a weight is wrong");
    }
  }
  if (!(error <= 5e-4 * 5e-4 * norm) && values == Values::kNormal && kElement == 4) {
    Fail(q, "the error is too large");
  }
  ++count->problems;
  count->splits += plan.has_slots();
  count->clusters += plan.cluster() > 1;
  count->half_clusters += plan.cluster() > 1 && kElement == 2;
  count->group_clusters += plan.cluster() > 1 && q.groups > 1;
  count->full_clusters += plan.cluster() == gemm_wgrad::kMostCluster;
  count->vectors += p.x_vector < 16 || p.dy_vector < 16;
  count->boxed += p.boxed;
  count->wide += plan.columns == 256;
}

Axis AxisOf(int64_t in, int64_t stride) { return {in, in * stride, stride, stride, 1, 0}; }

void CheckRefusals() {
  const auto expect = [](Problem q, int element, bool refused) {
    if ((PlanGemmWgrad(q, element).reason != nullptr) != refused) {
      Fail(q, refused ? "is not refused" : "is refused");
    }
  };
  const Problem good = definition::MakeProblem(2, 1, 8, 8, AxisOf(3, 2), AxisOf(5, 2));
  expect(good, 4, false);
  expect(good, 2, true);  // an odd number of pixels
  Problem q = good;
  q.batch = 0;
  expect(q, 4, true);
  q = good;
  q.layout = Layout::kNHWC;
  expect(q, 4, true);
  q = good;
  q.w.crop_lo = 1;
  expect(q, 4, true);
  q = good;
  ++q.h.out;
  expect(q, 4, true);
  q = good;
  q.w.dilation = 2;
  expect(q, 4, true);
  q = good;
  q.w = AxisOf(5, 3);
  expect(q, 4, true);
  q = good;
  q.h = AxisOf(4, 3);
  expect(q, 4, false);
  expect(q, 2, false);
  q.w = AxisOf(5, 1);
  q.w.dilation = 3;
  expect(q, 4, false);
  expect(q, 2, true);  // odd rows of dy
  // No sum takes too many steps, and slots have an end.
  q = definition::MakeProblem(64, 1, 256, 256, AxisOf(256, 2), AxisOf(256, 2));
  expect(q, 4, false);
  const GemmWgradPlan plan = PlanGemmWgrad(q, 4);
  if (plan.per_split * GemmWgradTile::kSteps > gemm_wgrad::kMostSummed) Fail(q, "sums too long");
  if (plan.per_split * plan.splits < plan.stages) Fail(q, "pixels are left out");
  q.in_channels = q.out_channels = 4096;
  expect(q, 4, true);
  // A layer of a dense-prediction transformer: few pixels, whose splits all run at once.
  q = definition::MakeProblem(1, 1, 256, 256, AxisOf(24, 4), AxisOf(24, 4));
  const GemmWgradPlan few = PlanGemmWgrad(q, 4);
  if (few.splits < 2 || few.cluster() != few.splits || few.has_slots()) Fail(q, "no cluster");
}

void Run(int most) {
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  Count count;
  for (int i = 0; i < most; ++i) {
    const int kw = 1 << pick(0, 3), kh = pick(0, 2) == 0 ? 1 : pick(1, 4);
    int64_t height = pick(1, 9), width = pick(1, i % 7 == 0 ? 40 : 9);
    if (i % 11 == 3) width = 1;
    if (i % 3 == 1) width *= 2;
    const bool clustered = pick(0, 1) == 0, many = clustered && pick(0, 1) == 0;  // pixels
    const bool large = !many && i % 5 == 4;  // more channels than a block has
    const int batch = many ? pick(20, 40) : pick(1, 6), groups = i % 6 >= 4 ? 2 : 1;
    Problem q = definition::MakeProblem(batch, groups,
                                        pick(1, large  ? 300
                                                : many ? 20
                                                       : 40),
                                        pick(1, large  ? 260 / (kw * kh) + 1
                                                : many ? 4
                                                       : 20),
                                        AxisOf(height, kh), AxisOf(width, kw));
    if (i % 11 == 3 && pick(0, 1) == 0) std::swap(q.h, q.w);
    const int columns = pick(0, 2) * 128;
    const int64_t splits = many ? pick(4, 8) : pick(1, clustered ? 8 : 12);
    const Values values = i % 4 == 3   ? Values::kNan
                          : i % 8 == 6 ? Values::kNormal
                                       : Values::kIntegers;
    const size_t shift = i % 4 == 1 ? static_cast<size_t>(pick(0, 3)) : 0;
    if (i % 2 == 0) {
      Check<float>(q, splits, clustered, columns, shift, values, &random, &count);
    } else if (i % 4 == 1) {
      Check<__half>(q, splits, clustered, columns, 2 * shift, values, &random, &count);
    } else {
      Check<__nv_bfloat16>(q, splits, clustered, columns, 2 * shift, values, &random, &count);
    }
  }
  std::printf(
      "gemm_wgrad_test: %d problems (%d refused), %d with slots, %d with clusters (%d of 16 bits, "
      "%d "
      "with groups, %d of eight), %d with copies of less than 16 bytes, %d with boxes, %d with 256 "
      "columns\n",
      count.problems, count.refused, count.splits, count.clusters, count.half_clusters,
      count.group_clusters, count.full_clusters, count.vectors, count.boxed, count.wide);
  const int cases[] = {count.refused,        count.splits,        count.half_clusters,
                       count.group_clusters, count.full_clusters, count.vectors,
                       count.boxed,          count.wide};
  if (most >= 100 && *std::min_element(std::begin(cases), std::end(cases)) == 0) {
    Fail({}, "a case is not met");
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  transconv::CheckRefusals();
  transconv::Run(argc > 1 ? std::atoi(argv[1]) : 120);
  return 0;
}
