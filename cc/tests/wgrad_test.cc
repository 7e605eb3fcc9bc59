// The dense weight gradient on the CPU, thread by thread as on a GPU: packing, its kernel that
// gathers images and that which copies cells, and the sum of its slots, against the definition.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/dtypes.h"
#include "core/geometry.h"
#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
// After the emulation.
#include "cuda/kernels/pack_cells.cuh"
#include "cuda/kernels/sm90_wgrad.cuh"
#include "cuda/kernels/sum_slots.cuh"
#include "cuda/launch/sm90_wgrad_programme.cuh"

namespace transconv {
namespace {

namespace wgrad = cuda::sm90_wgrad;

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("wgrad_test: %s\n", what);
  std::exit(1);
}

template <typename T, typename Form, bool RUN, int PRODUCTS, bool CELLS>
void RunKernel(const wgrad::WgradParams& p, const wgrad::Programme& g) {
  emulation::LaunchSm90(static_cast<unsigned>(g.splits * g.units), wgrad::kThreads,
                        static_cast<size_t>(g.shared_bytes),
                        [&] { wgrad::WgradKernel<T, Form, RUN, PRODUCTS, CELLS>(p); });
}

// As the launcher chooses.
template <typename T, bool CELLS>
void RunForm(const wgrad::WgradParams& p, const wgrad::Programme& g) {
  const WgradForm& form = g.plan.form;
  if constexpr (sizeof(T) == 4) {
    if (g.products == 3) {
      if (form.halves == 2) return RunKernel<T, wgrad::Thirds, false, 3, CELLS>(p, g);
      return form.warpgroups == 2 ? RunKernel<T, wgrad::Pair, false, 3, CELLS>(p, g)
                                  : RunKernel<T, wgrad::Single, false, 3, CELLS>(p, g);
    }
  }
  if (form.halves == 2) return RunKernel<T, wgrad::Halves, false, 1, CELLS>(p, g);
  if constexpr (!CELLS) {
    if (form.warpgroups == 2) {
      return g.plan.run ? RunKernel<T, wgrad::Pair, true, 1, false>(p, g)
                        : RunKernel<T, wgrad::Pair, false, 1, false>(p, g);
    }
  }
  return g.plan.run ? RunKernel<T, wgrad::Taps, true, 1, CELLS>(p, g)
                    : RunKernel<T, wgrad::Taps, false, 1, CELLS>(p, g);
}

struct Count {
  int problems = 0, refused = 0, gathered = 0, packed = 0, direct = 0, mixed = 0;
  int forms[3] = {}, three = 0, run = 0, planes = 0, splits = 0, strips = 0, rows = 0, missing = 0,
      instead = 0;
};

template <typename T>
void Check(const Problem& q, bool cells, int splits, std::mt19937* random, Count* count) {
  constexpr DType kType = sizeof(T) == 4 ? DType::kF32 : DType::kF16;
  wgrad::Programme g;
  if (wgrad::Choose(q, Pass::kGradWeight, kType, cells, &g) != nullptr) {
    ++count->refused;
    return;
  }
  g.per_split = static_cast<int>(CeilDiv(g.tiles, splits));
  g.splits = static_cast<int>(CeilDiv(g.tiles, g.per_split));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tensor<T> x(definition::Size(q, true), 0, nan), dy(definition::Size(q, false), 0, nan);
  std::normal_distribution<float> draw;
  for (Tensor<T>* image : {&x, &dy}) {
    for (size_t i = 0; i < image->size(); ++i) image->data()[i] = static_cast<T>(draw(*random));
  }
  const size_t weights = definition::WeightSize(q);
  Tensor<T> dw(weights, 0, nan);
  std::fill_n(dw.data(), weights, static_cast<T>(nan));
  const int64_t cells_at = g.slot_bytes * g.splits;
  const int64_t more = g.cells ? 256 + g.x.bytes() + g.dy.bytes() : 0;
  Tensor<float> workspace(static_cast<size_t>(cells_at + more) / 4, 0, nan);
  std::fill_n(workspace.data(), workspace.size(), nan);
  if (g.cells) {
    g.magnitudes_at = cells_at;
    g.x_cells_at = cells_at + 256;
    g.dy_cells_at = g.x_cells_at + g.x.bytes();
  }

  // As the launcher does where cells that are the images themselves start between vectors.
  const bool gathers = g.cells && (g.x.direct || g.dy.direct) && (*random)() % 2 == 0;
  if (gathers) g.cells = false;

  cuda::Call call;
  call.problem = q;
  call.dtype = kType;
  call.x = x.data();
  call.y = dy.data();
  call.w = dw.data();
  call.workspace = workspace.data();
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(x.data(), x.bytes());
  emulation::readable.Allow(dy.data(), dy.bytes());
  emulation::readable.Allow(workspace.data(), workspace.bytes(), true);
  if (g.cells) {
    std::fill_n(workspace.data() + cells_at / 4, 64, 0.f);  // magnitudes
    const cuda::PackBothParams both = wgrad::PackParamsOf(call, g);
    // Every image by itself: the emulation knows blocks in one dimension.
    for (const cuda::PackCellsParams& image : both.image) {
      const cuda::PackBothParams one{{image, {}}};
      const auto launch = [&](int blocks, auto kernel) {
        if (blocks > 0) {
          emulation::LaunchSm90(static_cast<unsigned>(blocks), cuda::kPackCellsThreads, 0, kernel);
        }
      };
      if (image.parts == 0) continue;
      if constexpr (sizeof(T) == 4) launch(1, [&] { cuda::SampleKernel(one); });
      if constexpr (sizeof(T) == 4) {
        if (g.products == 3) launch(image.parts, [&] { cuda::PackCellsKernel<T, 3>(one); });
      }
      if (g.products == 1) launch(image.parts, [&] { cuda::PackCellsKernel<T, 1>(one); });
      if (sizeof(T) == 4 && g.products == 1) launch(1, [&] { cuda::PackAgainKernel(one); });
    }
  }
  wgrad::WgradParams p;
  wgrad::FillParams(call, g, &p);
  cuda::BoxTensor x_boxes, dy_boxes;
  if (p.x_packed) x_boxes = wgrad::BoxesOfX(p, g);
  if (p.dy_packed) dy_boxes = wgrad::BoxesOfDy(p, g);
  p.x_boxes = cuda::ptx::MapOf(&x_boxes);
  p.dy_boxes = cuda::ptx::MapOf(&dy_boxes);
  g.cells ? RunForm<T, true>(p, g) : RunForm<T, false>(p, g);
  const cuda::SumParams s = wgrad::SumParamsOf(call, g);
  emulation::LaunchSm90(s.blocks, cuda::kSumThreads, 0, [&] { cuda::SumSlotsKernel<T>(s); });
  if (!dw.Kept() || !workspace.Kept()) Fail(q, "something is written outside of the result");

  std::vector<double> want(weights, 0.0), typical(weights, 0.0);
  definition::ForAll(q, [&](size_t from, size_t tap, size_t to) {
    const double product =
        static_cast<double>(static_cast<float>(x.data()[from])) * static_cast<float>(dy.data()[to]);
    want[tap] += product;
    typical[tap] += product * product;
  });
  double error = 0, norm = 0;
  for (size_t i = 0; i < weights; ++i) {
    const double off = static_cast<float>(dw.data()[i]) - want[i];
    if (!std::isfinite(off)) Fail(q, "a weight is not finite");
    error += off * off;
    norm += typical[i];
  }
  const double bound = g.products == 3 ? 3e-7 : 5e-4;
  if (!(error <= bound * bound * norm)) {
    std::printf("%d products, cells %d, error %.2e\n", g.products, g.cells,
                std::sqrt(error / norm));
    Fail(q, "the error is too large");
  }

  ++count->problems;
  count->gathered += !g.cells;
  count->instead += gathers;
  count->packed += g.cells && !g.x.direct && !g.dy.direct;
  count->direct += g.cells && g.x.direct && g.dy.direct;
  count->mixed += g.cells && g.x.direct != g.dy.direct;
  ++count->forms[g.plan.form.halves == 2 ? 2 : g.plan.form.warpgroups - 2];
  count->three += g.products == 3;
  count->run += g.plan.run;
  count->planes += g.plan.planes_h * g.plan.planes_w < g.plan.tile.planes();
  count->splits += g.splits > 1;
  count->strips += g.tiles_x > 1;
  count->rows += g.tiles_y > 1;
  count->missing += q.in_per_group() % 64 != 0 || q.out_per_group() % 64 != 0;
}

void CheckProblems(int most) {
  std::mt19937 random(5);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  const auto axis = [&](bool wide) {
    Axis a{wide && pick(0, 1) == 0 ? pick(20, 70) : pick(1, 12),
           0,
           pick(1, 4),
           pick(1, 3),
           pick(0, 4) == 0 ? pick(2, 3) : 1,
           pick(-2, 3)};
    if (pick(0, 3) == 0) a.stride = 2;
    const int64_t full = a.stride * (a.in - 1) + a.dilation * (a.kernel - 1) + 1;
    a.out = std::max<int64_t>(1, full - a.crop_lo + pick(-3, 3));
    return a;
  };
  Count count;
  for (int i = 0; i < most; ++i) {
    Axis h = axis(false), w = axis(true);
    if (pick(0, 2) == 0) h.kernel = 3;
    const bool cells = i % 3 != 0, many = pick(0, 2) == 0;
    const auto channels = [&] { return pick(0, 2) == 0 ? 8 * pick(1, 9) : pick(1, 70); };
    const int in = many ? channels() + 64 : channels();
    const int out = channels(), groups = many ? 1 : pick(1, 2);
    Problem q = definition::MakeProblem(pick(1, 2), groups, in, out, h, w);
    if (pick(0, 1) == 0) q.layout = Layout::kNHWC;
    if (pick(0, 2) == 0) q.precision = Precision::kHighest;
    const int splits = pick(1, 3);
    pick(0, 1) == 0 ? Check<float>(q, cells, splits, &random, &count)
                    : Check<__half>(q, cells, splits, &random, &count);
  }
  std::printf(
      "wgrad_test: %d problems (%d refused): %d gathered, %d packed, %d with cells as they are, %d "
      "with those of one image; %d by two warpgroups, %d by three, %d by halves; %d with three "
      "products, %d with taps as columns, %d with passes for planes; %d with splits, %d with "
      "several strips, %d with several rows of tiles, %d with missing channels, %d gathered in "
      "place of cells\n",
      count.problems, count.refused, count.gathered, count.packed, count.direct, count.mixed,
      count.forms[0], count.forms[1], count.forms[2], count.three, count.run, count.planes,
      count.splits, count.strips, count.rows, count.missing, count.instead);
  const int cases[] = {count.gathered, count.packed,   count.direct, count.mixed,   count.forms[0],
                       count.forms[1], count.forms[2], count.three,  count.run,     count.planes,
                       count.splits,   count.strips,   count.rows,   count.missing, count.instead};
  if (most >= 40 && *std::min_element(std::begin(cases), std::end(cases)) == 0) {
    Fail({}, "a case is not met");
  }
}

}  // namespace
}  // namespace transconv

int main(int argc, char** argv) {
  transconv::CheckProblems(argc > 1 ? std::atoi(argv[1]) : 60);
  return 0;
}
