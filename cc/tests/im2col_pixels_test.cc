// The input gradient of 16-bit pixels, emulated, against the definition on random problems. Values
// are small integers, so that every order of summation gives the same.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/im2col_pixels_plan.h"
#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/im2col_grad_input_pixels.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;
using cuda::pixels_input::GradInputPixelsKernel;
using cuda::pixels_input::MakeParams;
using cuda::pixels_input::Params;

// In place of a GPU's 16-bit type: halves, and an infinity.
struct Halves {
  static constexpr int16_t kInfinity = 0x4000;
  static float Load(int16_t v) {
    if (v == kInfinity || v == -kInfinity) return v * std::numeric_limits<float>::infinity();
    return static_cast<float>(v) / 2;
  }
  // Infinities of either sign, and what is no number.
  static int16_t Round(float v) {
    if (std::isnan(v)) return kInfinity - 1;
    return std::isinf(v) ? (v > 0 ? kInfinity : -kInfinity) : static_cast<int16_t>(v * 2);
  }
};
float Value(uint16_t v) { return Halves::Load(static_cast<int16_t>(v)); }

struct Tensors {
  std::vector<uint16_t> x, w, dy;
};

template <int M, int N>
bool RunIf(const Params& p, Tensors* t) {
  if (p.plan.fragments_m != M || p.plan.fragments_n != N) return false;
  emulation::Launch(
      p.streams * static_cast<unsigned>(p.plan.in_blocks), kBoxThreads,
      static_cast<size_t>(p.plan.shared_bytes),
      [&] { GradInputPixelsKernel<Halves, M, N>(t->dy.data(), t->w.data(), t->x.data(), p); });
  return true;
}

void Describe(const Problem& q, const PixelsInputPlan& p) {
  definition::Describe(q);
  if (p.reason != nullptr) {
    std::printf("%s\n", p.reason);
    return;
  }
  std::printf(
      "fragments %dx%d in %d of %d groups %d words %d steps %d tile %dx%d of %dx%d, halo %dx%d, "
      "units %d, vector %d, row %d, wavefronts %d of %d, bytes %d + %d * 3, %d, tiles %lld, %.1f "
      "us\n",
      p.fragments_m, p.fragments_n, p.in, p.in_blocks, p.groups, p.words, p.steps, p.h.size,
      p.w.size, p.h.tiles, p.w.tiles, p.h.halo, p.w.halo, p.units, p.vector, p.row,
      pixels_input::Wavefronts(p, im2col_wgrad::ColumnAsRow(q)), p.steps, p.dy_at, p.dy_bytes,
      p.shared_bytes, static_cast<long long>(p.tiles), p.cycles / 1750);
}

struct Count {
  int checked = 0, declined = 0, ragged = 0, blocks = 0, vectors[3] = {}, fragments[3][9] = {};
};

enum class Data { kIntegers, kInfinities };

void Check(const Problem& q, const PixelsInputLimits& limits, unsigned blocks, Data data,
           Count* count, std::mt19937* random) {
  const PixelsInputPlan plan = PlanPixelsInput(q, limits);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  ++count->checked;
  count->ragged += q.w.in % 16 != 0;
  count->blocks += plan.in_blocks > 1;
  ++count->vectors[plan.vector == 16 ? 2 : plan.vector == 8 ? 1 : 0];
  ++count->fragments[plan.fragments_m][plan.fragments_n];
  constexpr uint16_t kNever = 0x2ead;
  Tensors t;
  t.x.resize(Size(q, true), kNever);
  t.w.resize(WeightSize(q));
  t.dy.resize(Size(q, false));
  for (auto* v : {&t.w, &t.dy}) {
    for (auto& e : *v) {
      const int drawn = static_cast<int>((*random)() % 8) - 4;
      e = static_cast<uint16_t>(2 * (drawn < 0 ? drawn : drawn + 1));
    }
  }
  if (data == Data::kInfinities) {
    for (int i = 0; i < 3; ++i) {
      t.dy[(*random)() % t.dy.size()] = static_cast<uint16_t>(Halves::kInfinity);
    }
  }
  std::vector<float> expected(t.x.size(), 0);
  ForAll(q, [&](size_t x, size_t w, size_t y) { expected[x] += Value(t.w[w]) * Value(t.dy[y]); });
  const Params p = MakeParams(q, plan, blocks);
  const bool ran =
      RunIf<1, 4>(p, &t) || RunIf<1, 8>(p, &t) || RunIf<2, 4>(p, &t) || RunIf<2, 8>(p, &t);
  for (size_t i = 0; i < t.x.size(); ++i) {
    if (ran && t.x[i] == static_cast<uint16_t>(Halves::Round(expected[i]))) continue;
    std::printf("im2col_pixels_test: dx[%zu] is %g, not %g\n", i,
                static_cast<double>(Value(t.x[i])), static_cast<double>(expected[i]));
    Describe(q, plan);
    std::exit(EXIT_FAILURE);
  }
}

// Prints how problems of well-known networks are cut, and how long that takes.
void Print() {
  const auto show = [](const char* name, int64_t n, int64_t in, int64_t out, const Axis& axis) {
    const Problem q = MakeProblem(n, 1, in, out, axis, axis, Layout::kNHWC);
    const auto start = std::chrono::steady_clock::now();
    PixelsInputPlan plan;
    for (int i = 0; i < 100; ++i) plan = PlanPixelsInput(q);
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
  const auto check = [&](const Problem& q, const PixelsInputLimits& limits) {
    Check(q, limits, static_cast<unsigned>(pick(1, 9)),
          turn++ % 3 == 2 ? Data::kInfinities : Data::kIntegers, &count, &random);
  };
  constexpr int kChannels[][2] = {{8, 1},  {16, 3}, {64, 3},  {96, 3}, {32, 2},  {40, 5},
                                  {72, 1}, {24, 7}, {136, 2}, {8, 8},  {128, 3}, {48, 4}};
  for (int i = 0; i < 96; ++i) {
    const auto axis = [&](int most_in, int most_kernel) {
      const int stride = pick(1, 4), dilation = most_in > 9 ? 1 : pick(1, 3);
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
    if (i % 11 == 0 && q.h.dilation == 1) std::swap(q.h, q.w);
    // Small tiles are many.
    PixelsInputLimits limits;
    if (i % 2 == 0) limits.columns = i % 4 == 0 ? 16 : 32;
    if (i % 3 == 1) limits.rows = pick(1, 3);
    check(q, limits);
  }
  // DreamerV3's heads, smaller; a column; kernel = stride; rows without taps; most weights.
  const auto small = [&](int64_t in, int64_t out, const Axis& h, const Axis& w) {
    check(MakeProblem(2, 1, in, out, h, w, Layout::kNHWC), {});
  };
  small(64, 3, MakeAxis(6, 5, 1, 1, 2, 2), MakeAxis(64, 5, 1, 1, 2, 2));
  small(128, 3, MakeAxis(5, 5, 2, 1, 1, 2), MakeAxis(32, 5, 2, 1, 1, 2));
  small(96, 3, MakeAxis(5, 4, 2, 1, 1, 1), MakeAxis(32, 4, 2, 1, 1, 1));
  small(32, 16, MakeAxis(3, 5, 2, 1, 1, 2), MakeAxis(32, 5, 2, 1, 1, 2));
  small(16, 2, MakeAxis(40, 5, 2, 1, 1, 1), MakeAxis(1, 1, 1, 1, 0, 0));
  small(8, 4, MakeAxis(4, 4, 4, 1, 0, 0), MakeAxis(20, 4, 4, 1, 0, 0));
  small(24, 2, MakeAxis(3, 2, 5, 1, -2, 0), MakeAxis(17, 3, 7, 1, 0, -3));
  small(264, 8, MakeAxis(3, 5, 1, 1, 2, 2), MakeAxis(16, 5, 1, 1, 2, 2));

  std::printf(
      "im2col_pixels_test: %d problems, %d with ragged rows, %d in blocks of channels, vectors of "
      "dy "
      "%d %d %d, fragments %d %d %d %d, %d declined\n",
      count.checked, count.ragged, count.blocks, count.vectors[0], count.vectors[1],
      count.vectors[2], count.fragments[1][4], count.fragments[1][8], count.fragments[2][4],
      count.fragments[2][8], count.declined);
  return count.checked >= 80 && count.ragged >= 20 ? EXIT_SUCCESS : EXIT_FAILURE;
}
