// The direct kernel on the CPU, thread by thread as on a GPU, against the definition.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/direct_plan.h"
#include "core/geometry.h"
#include "cuda_emulation.h"
#include "definition.h"
#include "direct_oracle.h"
// After the emulation.
#include "cuda/kernels/direct.cuh"

namespace {

using transconv::Axis;
using transconv::CeilDiv;
using transconv::DirectLimits;
using transconv::DirectPlan;
using transconv::Layout;
using transconv::Pass;
using transconv::Problem;
using transconv::definition::MakeAxis;
using transconv::definition::MakeProblem;
using transconv::direct_oracle::Element;
using transconv::direct_oracle::Example;
using transconv::direct_oracle::Narrow;

template <typename E, Pass kPass>
void Run(const DirectPlan& p, const typename E::Type* image, const typename E::Type* weight,
         const typename E::Type* bias, typename E::Type* target) {
  const auto run = [&](auto rm) {
    constexpr int kRm = decltype(rm)::value;
    transconv::emulation::Launch(
        static_cast<unsigned>(p.blocks), static_cast<unsigned>(p.threads),
        static_cast<size_t>(p.shared_bytes), [&] {
          using transconv::cuda::direct::DirectKernel;
          if (p.slices() > 1) {
            DirectKernel<E, kRm, kPass, true>(image, weight, bias, target, p);
          } else {
            DirectKernel<E, kRm, kPass, false>(image, weight, bias, target, p);
          }
        });
  };
  switch (p.rm) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 3:
      return run(std::integral_constant<int, 3>());
    case 4:
      return run(std::integral_constant<int, 4>());
    default:
      return run(std::integral_constant<int, 8>());
  }
}

void Describe(const Problem& q, const DirectPlan& p) {
  transconv::definition::Describe(q);
  std::printf(
      "rm %d strip %d row_items %d m_groups %d all %d threads %d items %d chunk_c %d chunk_k %d "
      "slices %dx%d tile %dx%d planes %dx%d lanes %d bytes %d blocks %lld\n",
      p.rm, p.strip, p.row_items, p.m_groups, p.all_residues, p.threads, p.items, p.chunk_c,
      p.chunk_k, p.slices_w, p.slices_c, p.rows, p.columns, p.planes_h, p.planes_w, p.load_lanes,
      p.shared_bytes, static_cast<long long>(p.blocks));
}

// Counts what ran.
struct Count {
  int checked = 0, declined = 0, sliced = 0, columns = 0, channels = 0, chunks = 0;
};

template <typename E, Pass kPass>
void Check(const Problem& q, bool with_bias, const DirectLimits& limits, Count* count,
           std::mt19937* random) {
  using Sum = typename E::Sum;
  constexpr bool kForward = kPass == Pass::kForward;
  const DirectPlan plan = transconv::PlanDirect(kPass, q, sizeof(Sum), limits);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  ++count->checked;
  count->sliced += plan.slices() > 1;
  count->columns += plan.slices_w > 1;
  count->channels += plan.slices_c > 1;
  count->chunks += plan.slices() > 1 && plan.chunks > 1;
  const Example<E> example(q, kPass, with_bias, random);
  std::vector<typename E::Type> got(example.want.size(), E::kPoison);
  Run<E, kPass>(plan, example.source.data(), example.weight.data(), example.bias_or_null(),
                got.data());
  if (const char* wrong = example.Compare(got)) {
    std::printf("direct_test: %s: %s\n", kForward ? "forward" : "grad_input", wrong);
    Describe(q, plan);
    std::exit(1);
  }
}

// Taps and sources of every target of an axis, from the definition.
void CheckAxis(const Axis& axis) {
  const transconv::DirectAxis a(axis, Pass::kForward);
  for (int o = 0; o < axis.out; ++o) {
    const auto taps = a.TapsOf(o);
    int found = 0;
    for (int64_t k = 0; k < axis.kernel; ++k) {
      const int64_t scaled = o + axis.crop_lo - axis.dilation * k;
      if (transconv::FloorDiv(scaled, axis.stride) * axis.stride != scaled) continue;
      const int64_t source = scaled / axis.stride;
      if (k != taps.first + found * a.step || source != taps.source - found * a.hop ||
          source < a.FirstSource(o)) {
        std::printf("direct_test: a tap is wrong\n");
        std::exit(1);
      }
      ++found;
    }
    if (found != taps.count) std::printf("direct_test: taps are missing\n"), std::exit(1);
  }
}

// Prints how problems of well-known networks are cut.
void Print() {
  const auto show = [](const char* name, const Problem& q) {
    for (const Pass pass : {Pass::kForward, Pass::kGradInput}) {
      const DirectPlan plan = transconv::PlanDirect(pass, q, 4);
      std::printf("%s %s: %s\n", name, pass == Pass::kForward ? "forward" : "grad_input",
                  plan.reason == nullptr ? "" : plan.reason);
      if (plan.reason == nullptr) Describe(q, plan);
    }
  };
  show("grouped",
       MakeProblem(16, 4, 8, 16, MakeAxis(128, 3, 2, 2, 1, 1), MakeAxis(256, 5, 3, 1, 2, 2)));
  show("bilinear",
       MakeProblem(8, 21, 1, 1, MakeAxis(125, 4, 2, 1, 1, 1), MakeAxis(125, 4, 2, 1, 1, 1)));
  show("RGB head",
       MakeProblem(128, 1, 64, 3, MakeAxis(32, 4, 2, 1, 1, 1), MakeAxis(32, 4, 2, 1, 1, 1)));
  show("stride 8",
       MakeProblem(1, 21, 1, 1, MakeAxis(64, 16, 8, 1, 4, 4), MakeAxis(64, 16, 8, 1, 4, 4)));
  show("stride 32",
       MakeProblem(1, 1, 21, 21, MakeAxis(16, 64, 32, 1, 16, 16), MakeAxis(16, 64, 32, 1, 16, 16)));
  show("audio",
       MakeProblem(16, 1, 32, 1, MakeAxis(1, 1, 1, 1, 0, 0), MakeAxis(8192, 16, 8, 1, 4, 4)));
  show("dilated",
       MakeProblem(16, 64, 1, 1, MakeAxis(64, 3, 1, 4, 4, 4), MakeAxis(64, 3, 1, 4, 4, 4)));
  show("large",
       MakeProblem(16, 64, 1, 1, MakeAxis(56, 31, 1, 1, 15, 15), MakeAxis(56, 31, 1, 1, 15, 15)));
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {
    Print();
    return 0;
  }
  std::mt19937 random(11);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  for (int i = 0; i < 4000; ++i) {
    CheckAxis(MakeAxis(pick(1, 9), pick(1, 9), pick(1, 12), pick(1, 12), pick(-9, 9), pick(-9, 9)));
  }

  constexpr int kChannels[][2] = {{1, 1}, {1, 2}, {1, 3},  {3, 1},  {4, 5}, {2, 8},
                                  {8, 4}, {6, 3}, {17, 2}, {3, 19}, {5, 10}};
  Count count;
  int turn = 0;
  // Every problem without slices, as planned, and with slices.
  const auto check = [&](const Problem& q, DirectLimits limits) {
    for (int i = 0; i < 3; ++i) {
      limits.least_slices = i < 2 ? 1 : 2;
      limits.most_slices = i < 1 ? 1 : transconv::kDirectThreads;
      const auto passes = [&](auto element) {
        using E = decltype(element);
        const bool with_bias = random() % 3 != 0;
        Check<E, Pass::kForward>(q, with_bias, limits, &count, &random);
        Check<E, Pass::kGradInput>(q, with_bias, limits, &count, &random);
      };
      if ((turn + i) % 3 == 0) passes(Narrow());
      if ((turn + i) % 3 == 1) passes(Element<float>());
      if ((turn + i) % 3 == 2) passes(Element<double>());
    }
    ++turn;
  };
  const DirectLimits few = {64, 128, 40 << 10, 48 << 10};  // threads, for the test's speed
  for (int i = 0; i < 132; ++i) {
    const auto axis = [&](int most_in, int most_kernel) {
      const int d = pick(1, 3);
      return MakeAxis(pick(1, most_in), pick(1, most_kernel), pick(1, 5), d, pick(-3, 3),
                      pick(-3, 3));
    };
    const auto& channels = kChannels[i % 11];
    Problem q = MakeProblem(pick(1, 2), pick(1, 3), channels[0], channels[1],
                            axis(i % 5 == 0 ? 1 : 12, 4), axis(i % 7 == 0 ? 1 : 20, 5));
    q.layout = i % 3 == 0 ? Layout::kNHWC : Layout::kNCHW;
    // Little room makes many strips, bands and chunks.
    check(q, i % 2 == 0 ? DirectLimits{32, i % 4 == 0 ? 8 : 16, 3000, 6000} : few);
  }
  // Kernel = stride, 1x1, long rows, a column, taps in chunks, strides without taps.
  const DirectLimits little = {32, 8, 3000, 6000};
  const Axis one = MakeAxis(1, 1, 1, 1, 0, 0);
  check(MakeProblem(1, 1, 8, 3, MakeAxis(9, 4, 4, 1, 0, 0), MakeAxis(8, 4, 4, 1, 0, 0)), {});
  check(MakeProblem(2, 2, 4, 4, MakeAxis(5, 1, 1, 1, 0, 0), MakeAxis(7, 1, 1, 1, 0, 0)), few);
  check(MakeProblem(1, 3, 1, 2, one, MakeAxis(150, 16, 8, 1, 4, 4)), few);
  check(MakeProblem(1, 1, 5, 2, one, MakeAxis(150, 7, 3, 2, -2, 4)), little);
  check(MakeProblem(1, 3, 2, 1, MakeAxis(150, 5, 2, 1, 1, 1), one), few);
  check(MakeProblem(1, 1, 20, 1, one, MakeAxis(8, 41, 40, 1, 0, 0)), little);  // items in rounds
  check(MakeProblem(1, 1, 2, 2, MakeAxis(3, 32, 16, 1, 8, 8), MakeAxis(3, 32, 16, 1, 8, 8)),
        little);
  check(MakeProblem(1, 2, 1, 1, MakeAxis(4, 2, 9, 1, -2, 0), MakeAxis(5, 3, 7, 1, 0, -3)), little);
  check(MakeProblem(1, 1, 3, 3, MakeAxis(4, 5, 4, 6, 3, 1), MakeAxis(5, 4, 6, 4, 2, 5)), few);
  // Three rows of taps, of which every other row of y has none, and more than four rows of x.
  check(MakeProblem(1, 2, 3, 8, MakeAxis(11, 3, 2, 2, 1, 1), MakeAxis(10, 5, 3, 1, 2, 2)), few);
  check(MakeProblem(1, 1, 5, 19, MakeAxis(9, 3, 1, 1, 1, 1), MakeAxis(21, 3, 1, 1, 1, 1)), {});

  Problem q = MakeProblem(1, 1, 1, 1, MakeAxis(4, 2, 2000, 1, 0, 0), one);
  if (transconv::PlanDirect(Pass::kForward, q, 4).reason == nullptr) return 1;
  q = MakeProblem(1, 1, 1, 1, one, MakeAxis(4, 99999, 1, 1, 0, 0));
  if (transconv::PlanDirect(Pass::kForward, q, 4).reason == nullptr) return 1;
  q = MakeProblem(int64_t{1} << 40, 1, 1, 1, one, one);
  if (transconv::PlanDirect(Pass::kForward, q, 4).reason == nullptr) return 1;
  std::printf(
      "direct_test: %d passes, of which %d in slices (%d of columns, %d of channels, %d in "
      "chunks), "
      "%d declined\n",
      count.checked, count.sliced, count.columns, count.channels, count.chunks, count.declined);
  const bool enough = count.checked - count.sliced >= 150 && count.sliced >= 300 &&
                      count.columns >= 100 && count.channels >= 50 && count.chunks >= 50;
  return enough ? 0 : 1;
}
