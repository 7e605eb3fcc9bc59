// The weight gradient of 16-bit pixels, emulated, against the definition on random problems. Values
// are small integers, so that every order of summation gives the same.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/im2col_wgrad_pixels_plan.h"
#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/im2col_wgrad_pixels.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;
using cuda::pixels_wgrad::MakeParams;
using cuda::pixels_wgrad::Params;
using cuda::pixels_wgrad::PixelsKernel;

// In place of a GPU's 16-bit type: halves, and an infinity.
struct Halves {
  static constexpr int16_t kInfinity = 0x4000;
  static float Load(int16_t v) {
    return v == kInfinity ? std::numeric_limits<float>::infinity() : static_cast<float>(v) / 2;
  }
};
float Value(uint16_t v) { return Halves::Load(static_cast<int16_t>(v)); }

struct Tensors {
  std::vector<uint16_t> x, dy;
};

template <int M, int N>
bool RunIf(const Params& p, const Tensors& t, std::vector<float>* partial) {
  if (p.plan.fragments_m != M || p.plan.fragments_n != N) return false;
  emulation::Launch(static_cast<unsigned>(p.plan.in_blocks * p.plan.splits), kBoxThreads,
                    static_cast<size_t>(p.plan.shared_bytes), [&] {
                      PixelsKernel<Halves, M, N>(t.x.data(), t.dy.data(), partial->data(), p);
                    });
  return true;
}

bool Run(const Params& p, const Tensors& t, std::vector<float>* partial) {
  return RunIf<2, 2>(p, t, partial) || RunIf<4, 2>(p, t, partial) || RunIf<2, 4>(p, t, partial) ||
         RunIf<4, 4>(p, t, partial) || RunIf<2, 5>(p, t, partial) || RunIf<4, 5>(p, t, partial) ||
         RunIf<2, 6>(p, t, partial) || RunIf<3, 6>(p, t, partial) || RunIf<2, 7>(p, t, partial);
}

void Describe(const Problem& q, const PixelsWgradPlan& p) {
  const auto number = [](int64_t v) { return static_cast<long long>(v); };
  definition::Describe(q);
  if (p.reason != nullptr) {
    std::printf("%s\n", p.reason);
    return;
  }
  const auto wavefronts = pixels_wgrad::CountWavefronts(p, im2col_wgrad::ColumnAsRow(q));
  std::printf(
      "fragments %dx%d warps %dx%dx%d in %d of %d weights %d tile %dx%d of %dx%d, halo %dx%d, "
      "steps "
      "%d, vector %d, pitches %d %d %d %d, wavefronts %d of %d, bytes %d + %d + %d twice, %d, "
      "tiles "
      "%lld splits %lld of %lld, %.1f us\n",
      p.fragments_m, p.fragments_n, p.warps_m, p.warps_n, p.slices, p.in, p.in_blocks, p.weights,
      p.h.size, p.w.size, p.h.tiles, p.w.tiles, p.h.halo, p.w.halo, p.steps, p.vector, p.copy,
      p.residue, p.row, p.channel, wavefronts.all, wavefronts.loads, p.x_bytes, p.dy_bytes,
      p.planes_bytes, p.shared_bytes, number(p.tiles), number(p.splits), number(p.per_split),
      p.cycles / 1750);
}

struct Count {
  int checked = 0, declined = 0, ragged = 0, copies = 0, blocks = 0, vectors[3] = {},
      fragments[5][8] = {};
};

enum class Data { kIntegers, kUnread, kInfinities };

void Check(const Problem& q, const PixelsWgradLimits& limits, Data data, Count* count,
           std::mt19937* random) {
  const PixelsWgradPlan plan = PlanPixelsWgrad(q, limits);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  ++count->checked;
  count->ragged += q.w.in % 16 != 0;
  count->copies += plan.copy != 0;
  count->blocks += plan.in_blocks > 1;
  ++count->vectors[plan.vector == 16 ? 2 : plan.vector == 8 ? 1 : 0];
  ++count->fragments[plan.fragments_m][plan.fragments_n];
  Tensors t;
  t.x.resize(Size(q, true));
  t.dy.resize(Size(q, false));
  for (auto* v : {&t.x, &t.dy}) {
    for (auto& e : *v) {
      e = static_cast<uint16_t>(2 * (static_cast<int>((*random)() % 17) - 8));
    }
  }
  if (data == Data::kUnread) {
    // What no product reads must not be met by the zeros beside x.
    std::vector<char> reached(t.dy.size(), 0);
    ForAll(q, [&](size_t, size_t, size_t y) { reached[y] = 1; });
    for (size_t i = 0; i < t.dy.size(); ++i) {
      if (reached[i] == 0) t.dy[i] = static_cast<uint16_t>(Halves::kInfinity);
    }
  } else if (data == Data::kInfinities) {
    for (int i = 0; i < 3; ++i) {
      t.dy[(*random)() % t.dy.size()] = static_cast<uint16_t>(Halves::kInfinity);
    }
  }
  const int64_t size = static_cast<int64_t>(WeightSize(q));
  std::vector<float> expected(size, 0);
  ForAll(q, [&](size_t x, size_t w, size_t y) { expected[w] += Value(t.x[x]) * Value(t.dy[y]); });
  constexpr float kNever = -1234.25f;  // no sum of integers
  std::vector<float> partial(size * plan.splits, kNever);
  if (!Run(MakeParams(q, plan), t, &partial)) {
    std::printf("im2col_wgrad_pixels_test: no such kernel\n");
    Describe(q, plan);
    std::exit(EXIT_FAILURE);
  }
  for (int64_t i = 0; i < size; ++i) {
    float sum = 0;
    bool written = true;
    for (int64_t s = 0; s < plan.splits; ++s) {
      sum += partial[s * size + i];
      written &= partial[s * size + i] != kNever;
    }
    if (written && Same(sum, expected[i])) continue;
    std::printf("im2col_wgrad_pixels_test: dw[%lld] is %g, not %g\n", static_cast<long long>(i),
                static_cast<double>(sum), static_cast<double>(expected[i]));
    Describe(q, plan);
    std::exit(EXIT_FAILURE);
  }
}

// Prints how problems of well-known networks are cut, and how long that takes.
void Print() {
  const auto show = [](const char* name, int64_t n, int64_t in, int64_t out, const Axis& axis) {
    const Problem q = MakeProblem(n, 1, in, out, axis, axis, Layout::kNHWC);
    const auto start = std::chrono::steady_clock::now();
    PixelsWgradPlan plan;
    for (int i = 0; i < 100; ++i) plan = PlanPixelsWgrad(q);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    std::printf("%s (plan %.1f us)\n", name, time.count() / 100);
    Describe(q, plan);
  };
  show("DreamerV3 2024, 64 to 3", 1024, 64, 3, MakeAxis(64, 5, 1, 1, 2, 2));
  show("DreamerV3 2026, 128 to 3", 1024, 128, 3, MakeAxis(32, 5, 2, 1, 1, 2));
  show("DreamerV3 2023, 96 to 3", 1024, 96, 3, MakeAxis(32, 4, 2, 1, 1, 1));
  show("DreamerV3 2024, 32 to 16", 1024, 32, 16, MakeAxis(32, 5, 2, 1, 1, 2));
  show("PlaNet", 2500, 32, 3, MakeAxis(30, 6, 2, 1, 0, 0));
  show("VQ-VAE", 128, 64, 3, MakeAxis(64, 4, 2, 1, 1, 1));
}

}  // namespace
}  // namespace transconv

int main(int argc, char**) {
  using namespace transconv;
  if (argc > 1) {
    Print();
    return EXIT_SUCCESS;
  }
  std::mt19937 random(29);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Count count;
  int turn = 0;
  const auto check = [&](const Problem& q, const PixelsWgradLimits& limits) {
    const Data data = turn % 3 == 2   ? Data::kUnread
                      : turn % 3 == 1 ? Data::kInfinities
                                      : Data::kIntegers;
    ++turn;
    Check(q, limits, data, &count, &random);
  };
  constexpr int kChannels[][2] = {{8, 1},  {16, 3}, {64, 3},  {96, 3}, {32, 2},  {40, 5},
                                  {72, 1}, {24, 7}, {136, 2}, {8, 16}, {128, 3}, {48, 4}};
  for (int i = 0; i < 96; ++i) {
    const auto axis = [&](int most_in, int most_kernel) {
      const int stride = pick(1, 4), dilation = pick(1, 3);
      return MakeAxis(pick(1, most_in), pick(1, most_kernel), stride, dilation, pick(-3, 4),
                      pick(-3, 4));
    };
    const auto& channels = kChannels[i % 12];
    Problem q = MakeProblem(pick(1, 3), 1, channels[0], channels[1], axis(i % 5 == 0 ? 1 : 7, 5),
                            axis(37, 5), Layout::kNHWC);
    q.w.in = std::max<int64_t>(q.w.in, 9);
    q.w.out = q.w.stride * (q.w.in - 1) + q.w.dilation * (q.w.kernel - 1) + 1 - q.w.crop_lo;
    if (i % 4 < 2) q.w.out = CeilDiv(q.w.out, 8) * 8;
    if (i % 8 == 3) q.w.out = CeilDiv(q.w.out, 4) * 4;
    if (q.w.out * q.out_channels % 2 != 0) ++q.w.out;
    if (i % 11 == 0) std::swap(q.h, q.w);
    // Little room makes many tiles, a large grid many splits.
    PixelsWgradLimits limits;
    limits.grid = i % 3 == 0 ? 24 : pick(1, 6);
    if (i % 2 == 0) limits.columns = i % 4 == 0 ? 16 : 32;
    if (i % 3 == 1) limits.rows = pick(1, 3);
    check(q, limits);
  }
  // DreamerV3's heads, smaller; a column; kernel = stride; rows without taps; most weights.
  const auto small = [&](int64_t in, int64_t out, const Axis& h, const Axis& w) {
    PixelsWgradLimits limits;
    limits.grid = 4;
    check(MakeProblem(2, 1, in, out, h, w, Layout::kNHWC), limits);
  };
  small(64, 3, MakeAxis(6, 5, 1, 1, 2, 2), MakeAxis(64, 5, 1, 1, 2, 2));
  small(128, 3, MakeAxis(5, 5, 2, 1, 1, 2), MakeAxis(32, 5, 2, 1, 1, 2));
  small(96, 3, MakeAxis(5, 4, 2, 1, 1, 1), MakeAxis(32, 4, 2, 1, 1, 1));
  small(32, 16, MakeAxis(3, 5, 2, 1, 1, 2), MakeAxis(32, 5, 2, 1, 1, 2));
  small(16, 2, MakeAxis(40, 5, 2, 1, 1, 1), MakeAxis(1, 1, 1, 1, 0, 0));
  small(8, 4, MakeAxis(4, 4, 4, 1, 0, 0), MakeAxis(20, 4, 4, 1, 0, 0));
  small(24, 2, MakeAxis(3, 2, 5, 1, -2, 0), MakeAxis(17, 3, 7, 1, 0, -3));
  small(16, 16, MakeAxis(3, 5, 1, 1, 2, 2), MakeAxis(16, 5, 1, 1, 2, 2));

  std::printf(
      "im2col_wgrad_pixels_test: %d problems, %d with ragged rows, %d with shifted copies, %d in "
      "blocks of channels, vectors of dy %d %d %d, %d declined; fragments",
      count.checked, count.ragged, count.copies, count.blocks, count.vectors[0], count.vectors[1],
      count.vectors[2], count.declined);
  bool enough = count.checked >= 80 && count.ragged >= 20 && count.copies >= 20;
  for (const auto& f : pixels_wgrad::kFragments) {
    std::printf(" %dx%d %d", f.m, f.n, count.fragments[f.m][f.n]);
  }
  std::printf("\n");
  return enough ? EXIT_SUCCESS : EXIT_FAILURE;
}
