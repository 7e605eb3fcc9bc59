// The weight gradient by TF32 products of a shifted image, emulated, against the definition on
// random problems. Values are small integers, so that every order of summation gives the same.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/im2col_wgrad_plan.h"
#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/im2col_wgrad.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;
using cuda::im2col_wgrad::MakeParams;
using cuda::im2col_wgrad::Params;
using cuda::im2col_wgrad::WgradKernel;

template <typename E>
struct Tensors {
  std::vector<typename E::Type> x, dy;
};

template <typename E, int FM>
void RunColumns(const Params& p, const Tensors<E>& t, std::vector<float>* partial) {
  const auto run = [&](auto kernel) {
    emulation::Launch(static_cast<unsigned>(p.plan.blocks * p.plan.splits), kBoxThreads,
                      static_cast<size_t>(p.plan.shared_bytes),
                      [&] { kernel(t.x.data(), t.dy.data(), partial->data(), p); });
  };
  if (p.plan.fragments_n == 1) return run(WgradKernel<E, FM, 1>);
  if (p.plan.fragments_n == 2) return run(WgradKernel<E, FM, 2>);
  run(WgradKernel<E, FM, 4>);
}

template <typename E>
void Run(const Params& p, const Tensors<E>& t, std::vector<float>* partial) {
  if (p.plan.fragments_m == 2) return RunColumns<E, 2>(p, t, partial);
  if (p.plan.fragments_m == 3) return RunColumns<E, 3>(p, t, partial);
  RunColumns<E, 4>(p, t, partial);
}

void Describe(const Problem& q, const Im2colWgradPlan& p) {
  const auto number = [](int64_t v) { return static_cast<long long>(v); };
  definition::Describe(q);
  if (p.reason != nullptr) {
    std::printf("%s\n", p.reason);
    return;
  }
  std::printf(
      "fragments %dx%d warps %dx%dx%d out %d in %d taps %dx%d tile %dx%d of %dx%d, halo %dx%d, "
      "steps %d, x form %d vector %d pitches %d %d %d, dy form %d vector %d pitches %d %d %d, "
      "wavefronts %d of %d, bytes %d, blocks %lld tiles %lld splits %lld of %lld, %.1f us\n",
      p.fragments_m, p.fragments_n, p.warps_m, p.warps_n, p.slices, p.out, p.in, p.h.taps, p.w.taps,
      p.h.size, p.w.size, p.h.tiles, p.w.tiles, p.h.halo, p.w.halo, p.steps,
      static_cast<int>(p.x.box.form), p.x.box.vector, p.x.box.row, p.x.box.column, p.x.box.channel,
      static_cast<int>(p.dy.box.form), p.dy.box.vector, p.dy.box.row, p.dy.box.column,
      p.dy.box.channel,
      im2col_wgrad::Wavefronts(p, p.dy.box.row, p.dy.box.column, p.dy.box.channel),
      (std::min(p.m, im2col_wgrad::kSampledWeights) + 7) / 8, p.shared_bytes, number(p.blocks),
      number(p.tiles), number(p.splits), number(p.per_split), p.cycles / 1750);
}

struct Count {
  int checked = 0, declined = 0, narrow = 0, parts = 0, forms[3][2] = {}, vectors[5] = {};
};

enum class Data { kIntegers, kUnread, kInfinities };

template <typename E>
void Check(const Problem& q, const Im2colWgradLimits& limits, Data data, Count* count,
           std::mt19937* random) {
  const Im2colWgradPlan plan = PlanIm2colWgrad(q, sizeof(typename E::Type), limits);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  // The launcher falls back to this one where a buffer is not aligned, with the same workspace.
  Im2colWgradLimits single = limits;
  single.most_vector = 1;
  const Im2colWgradPlan other = PlanIm2colWgrad(q, sizeof(typename E::Type), single);
  if (other.reason != nullptr || other.splits != plan.splits) {
    std::printf("im2col_wgrad_test: without vectors the plan is another one\n");
    Describe(q, plan);
    Describe(q, other);
    std::exit(EXIT_FAILURE);
  }
  ++count->checked;
  count->narrow += plan.half_row;
  count->parts += plan.blocks > q.groups;
  ++count->forms[static_cast<int>(plan.x.box.form)][0];
  ++count->forms[static_cast<int>(plan.dy.box.form)][1];
  ++count->vectors[plan.dy.box.vector];
  Tensors<E> t;
  t.x.resize(Size(q, true));
  t.dy.resize(Size(q, false));
  for (auto* v : {&t.x, &t.dy}) {
    for (auto& e : *v) e = E::Round(static_cast<float>((*random)() % 17) - 8);
  }
  const Params p = MakeParams(q, plan);
  std::vector<float> expected(p.size, 0);
  if constexpr (std::is_same_v<E, Single>) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (data == Data::kUnread) {
      // What no product reads must not be met by the zeros beside x.
      std::vector<char> reached(t.dy.size(), 0);
      ForAll(q, [&](size_t, size_t, size_t y) { reached[y] = 1; });
      for (size_t i = 0; i < t.dy.size(); ++i) {
        if (reached[i] == 0) t.dy[i] = kInfinity;
      }
    } else if (data == Data::kInfinities) {
      // But zeros of x are products.
      for (int i = 0; i < 3; ++i) t.dy[(*random)() % t.dy.size()] = i == 0 ? -kInfinity : kInfinity;
    }
  }
  ForAll(q,
         [&](size_t x, size_t w, size_t y) { expected[w] += E::Load(t.x[x]) * E::Load(t.dy[y]); });
  constexpr float kNever = -1234.5f;  // no sum of integers
  std::vector<float> partial(p.size * plan.splits, kNever);
  Run<E>(p, t, &partial);
  for (int64_t i = 0; i < p.size; ++i) {
    float sum = 0;
    bool written = true;
    for (int64_t s = 0; s < plan.splits; ++s) {
      sum += partial[s * p.size + i];
      written &= partial[s * p.size + i] != kNever;
    }
    if (written && Same(sum, expected[i])) continue;
    std::printf("im2col_wgrad_test: dw[%lld] is %g, not %g\n", static_cast<long long>(i),
                static_cast<double>(sum), static_cast<double>(expected[i]));
    Describe(q, plan);
    std::exit(EXIT_FAILURE);
  }
}

// Prints how problems of well-known networks are cut, and how long that takes.
void Print() {
  const auto show = [](const char* name, const Problem& q) {
    const auto start = std::chrono::steady_clock::now();
    Im2colWgradPlan plan;
    for (int i = 0; i < 100; ++i) plan = PlanIm2colWgrad(q, 4);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    std::printf("%s (plan %.1f us)\n", name, time.count() / 100);
    Describe(q, plan);
  };
  const auto square = [](int64_t in, int64_t kernel, int64_t stride, int64_t lo, int64_t hi) {
    return MakeAxis(in, kernel, stride, 1, lo, hi);
  };
  show("KernelBench 75",
       MakeProblem(16, 4, 8, 16, MakeAxis(128, 3, 2, 2, 1, 1), MakeAxis(256, 5, 3, 1, 2, 2)));
  show("PlaNet",
       MakeProblem(2500, 1, 32, 3, square(30, 6, 2, 0, 0), square(30, 6, 2, 0, 0), Layout::kNHWC));
  show("dcgan-4", MakeProblem(128, 1, 64, 3, square(32, 4, 2, 1, 1), square(32, 4, 2, 1, 1)));
  show("DreamerV3",
       MakeProblem(1024, 1, 32, 3, square(32, 4, 2, 1, 1), square(32, 4, 2, 1, 1), Layout::kNHWC));
  show("fsrcnn", MakeProblem(16, 1, 56, 1, square(32, 9, 3, 3, 4), square(32, 9, 3, 3, 4)));
  show("pix2pix", MakeProblem(1, 1, 128, 3, square(128, 4, 2, 1, 1), square(128, 4, 2, 1, 1)));
  show("3 to 16", MakeProblem(16, 1, 3, 16, square(224, 3, 1, 1, 1), square(224, 3, 1, 1, 1)));
  show("1-D", MakeProblem(16, 1, 32, 1, square(1, 1, 1, 0, 0), square(8192, 16, 8, 4, 4)));
  show("dense", MakeProblem(16, 1, 64, 64, square(64, 4, 2, 1, 1), square(64, 4, 2, 1, 1)));
  show("21 to 21, stride 32",
       MakeProblem(1, 1, 21, 21, square(16, 64, 32, 16, 16), square(16, 64, 32, 16, 16)));
  show("groups, NHWC",
       MakeProblem(16, 32, 8, 8, square(56, 3, 2, 1, 0), square(56, 3, 2, 1, 0), Layout::kNHWC));
  show("depthwise", MakeProblem(16, 64, 1, 1, square(64, 4, 2, 1, 1), square(64, 4, 2, 1, 1)));
}

}  // namespace
}  // namespace transconv

int main(int argc, char**) {
  using namespace transconv;
  if (argc > 1) {
    Print();
    return EXIT_SUCCESS;
  }
  std::mt19937 random(23);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Count count;
  int turn = 0;
  const auto check = [&](const Problem& q, const Im2colWgradLimits& limits) {
    const Data data = turn % 4 == 3   ? Data::kUnread
                      : turn % 4 == 1 ? Data::kInfinities
                                      : Data::kIntegers;
    if (turn++ % 3 == 2) {
      Check<Narrow>(q, limits, Data::kIntegers, &count, &random);
    } else {
      Check<Single>(q, limits, data, &count, &random);
    }
  };
  constexpr int kChannels[][2] = {{1, 1},  {3, 8},  {8, 3},  {4, 4}, {8, 16}, {12, 5}, {2, 33},
                                  {33, 2}, {16, 3}, {3, 16}, {7, 9}, {64, 3}, {70, 1}, {9, 24}};
  for (int i = 0; i < 140; ++i) {
    const auto axis = [&](int most_in, int most_kernel) {
      const int stride = pick(1, 5), dilation = pick(1, 4);
      return MakeAxis(pick(1, most_in), pick(1, most_kernel), stride, dilation, pick(-3, 4),
                      pick(-3, 4));
    };
    const auto& channels = kChannels[i % 14];
    const bool many = channels[0] * channels[1] > 60;
    Problem q = MakeProblem(pick(1, 3), i % 4 < 2 ? 1 : pick(1, 3), channels[0], channels[1],
                            axis(i % 5 == 0 ? 1
                                 : many     ? 6
                                            : 9,
                                 4),
                            axis(i % 7 == 0 ? 4 : 21, 5));
    q.layout = i % 2 == 0 ? Layout::kNHWC : Layout::kNCHW;
    if (i % 6 == 0) {  // rows that vectors divide
      q.w.in = CeilDiv(q.w.in, 4) * 4;
      q.w.out = CeilDiv(q.w.out, 4) * 4;
    }
    if (i % 11 == 0) std::swap(q.h, q.w);
    // Little room makes many tiles and blocks, a large grid many splits.
    Im2colWgradLimits limits;
    limits.grid = i % 3 == 0 ? 24 : pick(1, 6);
    if (i % 2 == 0) limits.columns = i % 4 == 0 ? 8 : 16;
    if (i % 3 == 1) limits.shared_bytes = 12 << 10;
    if (i % 13 == 0) limits.most_vector = 1;
    check(q, limits);
  }
  // Kernel = stride, 1x1, long rows, a column, many taps, rows without taps, far taps.
  const Axis one = MakeAxis(1, 1, 1, 1, 0, 0);
  const Im2colWgradLimits few{96 << 10, 4, 256, 4};
  check(MakeProblem(1, 1, 8, 3, MakeAxis(9, 4, 4, 1, 0, 0), MakeAxis(8, 4, 4, 1, 0, 0)), few);
  check(MakeProblem(2, 2, 4, 4, MakeAxis(5, 1, 1, 1, 0, 0), MakeAxis(7, 1, 1, 1, 0, 0)), few);
  check(MakeProblem(2, 1, 3, 2, one, MakeAxis(301, 16, 8, 1, 4, 4)), few);
  check(MakeProblem(1, 3, 2, 5, MakeAxis(150, 5, 2, 1, 1, 1), one), few);
  check(MakeProblem(1, 1, 5, 3, MakeAxis(3, 32, 16, 1, 8, 8), MakeAxis(3, 32, 16, 1, 8, 8)), few);
  check(MakeProblem(2, 2, 2, 2, MakeAxis(4, 2, 9, 1, -2, 0), MakeAxis(5, 3, 7, 1, 0, -3)), few);
  check(MakeProblem(1, 1, 3, 3, MakeAxis(4, 3, 4, 60, 3, 1), MakeAxis(5, 4, 6, 40, 2, 5)), few);
  check(MakeProblem(3, 2, 8, 16, MakeAxis(6, 3, 2, 2, 1, 1), MakeAxis(20, 5, 3, 1, 2, 2)), few);
  check(MakeProblem(2, 1, 32, 3, MakeAxis(5, 6, 2, 1, 0, 0), MakeAxis(14, 6, 2, 1, 0, 0),
                    Layout::kNHWC),
        few);
  check(MakeProblem(2, 1, 32, 3, MakeAxis(4, 4, 2, 1, 1, 1), MakeAxis(16, 4, 2, 1, 1, 1),
                    Layout::kNHWC),
        few);

  // What it can't run, and numbers at the edge.
  const auto declines = [](const Problem& q) {
    if (PlanIm2colWgrad(q, 4).reason != nullptr) return;
    std::printf("im2col_wgrad_test: took what it can't run\n");
    std::exit(EXIT_FAILURE);
  };
  declines(MakeProblem(1, 1, 1, 1, MakeAxis(4, 2, int64_t{1} << 31, 1, 0, 0), one));
  declines(MakeProblem(1, 1, 1, 1, one, MakeAxis(4, 2, 1 << 19, 1, 0, 0)));
  declines(MakeProblem(1, 1, 1 << 16, 1, MakeAxis(1 << 16, 1, 1, 1, 0, 0), one));
  declines(MakeProblem(1, 1, 1, 8, one, {1 << 20, 99, 3, 1 << 8, 1, 0}, Layout::kNHWC));
  declines(MakeProblem(1, 1, 1, 1, one, MakeAxis(int64_t{1} << 30, 1, 1, 1, 0, 0)));
  std::printf(
      "im2col_wgrad_test: %d problems, %d in narrow images, %d in parts, forms of x %d %d %d and "
      "dy %d %d %d, vectors of dy %d %d %d, %d declined\n",
      count.checked, count.narrow, count.parts, count.forms[0][0], count.forms[1][0],
      count.forms[2][0], count.forms[0][1], count.forms[1][1], count.forms[2][1], count.vectors[1],
      count.vectors[2], count.vectors[4], count.declined);
  const bool enough = count.checked >= 120 && count.narrow >= 10 && count.parts >= 20;
  return enough ? EXIT_SUCCESS : EXIT_FAILURE;
}
