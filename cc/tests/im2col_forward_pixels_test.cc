// The forward pass of 16-bit pixels, emulated, against the definition on random problems. Values
// are small integers, so that every order of summation gives the same.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/im2col_forward_pixels_plan.h"
#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/im2col_forward_pixels.cuh"

namespace transconv {
namespace {

using namespace im2col_oracle;
using cuda::pixels_forward::ForwardPixelsKernel;
using cuda::pixels_forward::MakeParams;
using cuda::pixels_forward::Params;

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
  std::vector<uint16_t> x, w, bias, y;
};

template <int K, int S, int NC>
bool RunIf(const Problem& q, const Params& p, Tensors* t) {
  if (q.h.kernel != K || q.h.stride != S || p.plan.chunks != NC) return false;
  emulation::Launch(
      static_cast<unsigned>(p.streams), kBoxThreads, static_cast<size_t>(p.plan.shared_bytes), [&] {
        ForwardPixelsKernel<Halves, K, S, NC>(
            t->x.data(), t->w.data(), t->bias.empty() ? nullptr : t->bias.data(), t->y.data(), p);
      });
  return true;
}
template <int K, int S>
bool RunChunks(const Problem& q, const Params& p, Tensors* t) {
  return RunIf<K, S, 1>(q, p, t) || RunIf<K, S, 2>(q, p, t) || RunIf<K, S, 3>(q, p, t) ||
         RunIf<K, S, 4>(q, p, t);
}

void Describe(const Problem& q, const PixelsForwardPlan& p) {
  definition::Describe(q);
  std::printf("chunks %d warps %d walkers %d rows from %d on %d, columns from %d on %d, bytes %d\n",
              p.chunks, p.warps, p.walkers, p.first_row, p.turns, p.first_v, p.count_v,
              p.shared_bytes);
}

struct Count {
  int checked = 0, declined = 0, ragged = 0, kinds[6][3] = {}, chunks[5] = {};
};

enum class Data { kIntegers, kWeights, kImage };

void Check(const Problem& q, unsigned blocks, Data data, Count* count, std::mt19937* random) {
  const PixelsForwardPlan plan = PlanPixelsForward(q);
  if (plan.reason != nullptr) {
    ++count->declined;
    return;
  }
  ++count->checked;
  count->ragged += q.w.in % 16 != 0;
  ++count->kinds[q.h.kernel][q.h.stride];
  ++count->chunks[plan.chunks];
  constexpr uint16_t kNever = 0x2ead;
  Tensors t;
  t.x.resize(Size(q, true));
  t.w.resize(WeightSize(q));
  t.y.resize(Size(q, false), kNever);
  if ((*random)() % 2 == 0) t.bias.resize(q.out_channels);
  for (auto* v : {&t.x, &t.w, &t.bias}) {
    for (auto& e : *v) {
      const int drawn = static_cast<int>((*random)() % 8) - 4;
      e = static_cast<uint16_t>(2 * (drawn < 0 ? drawn : drawn + 1));
    }
  }
  // Zeros beside the image must not meet infinities of weights.
  auto* const infinite = data == Data::kWeights ? &t.w : data == Data::kImage ? &t.x : nullptr;
  if (infinite != nullptr) {
    (*infinite)[(*random)() % infinite->size()] = static_cast<uint16_t>(Halves::kInfinity);
  }
  std::vector<float> expected(t.y.size(), 0);
  if (!t.bias.empty()) {
    ForAllOfY(q, [&](size_t y, size_t c) { expected[y] = Value(t.bias[c]); });
  }
  ForAll(q, [&](size_t x, size_t w, size_t y) { expected[y] += Value(t.w[w]) * Value(t.x[x]); });
  const Params p = MakeParams(q, plan, blocks);
  const bool ran =
      RunChunks<4, 2>(q, p, &t) || RunChunks<5, 1>(q, p, &t) || RunChunks<5, 2>(q, p, &t);
  for (size_t i = 0; i < t.y.size(); ++i) {
    if (ran && t.y[i] == static_cast<uint16_t>(Halves::Round(expected[i]))) continue;
    std::printf("im2col_forward_pixels_test: y[%zu] is %g, not %g\n", i,
                static_cast<double>(Value(t.y[i])), static_cast<double>(expected[i]));
    Describe(q, plan);
    std::exit(EXIT_FAILURE);
  }
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(31);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Count count;
  constexpr int kChannels[][2] = {{8, 1}, {64, 3}, {96, 3}, {32, 2}, {40, 3}, {128, 3}, {16, 4}};
  for (int i = 0; i < 84; ++i) {
    const auto& kind = pixels_forward::kKinds[i % 3];
    const auto& channels = kChannels[i % 7];
    const auto axis = [&](int in, int kernel) {
      Axis a = MakeAxis(in, kernel, kind.stride, 1, pick(-3, 5), pick(-4, 5));
      return a;
    };
    const int kernel_w = std::min(16 / channels[1], pick(1, 6));
    const Problem q =
        MakeProblem(pick(1, 6), 1, channels[0], channels[1], axis(pick(1, 9), kind.kernel),
                    axis(i % 4 == 0 ? pick(9, 16) : pick(9, 70), kernel_w), Layout::kNHWC);
    Check(q, static_cast<unsigned>(pick(1, 3)),
          i % 3 == 1   ? Data::kWeights
          : i % 3 == 2 ? Data::kImage
                       : Data::kIntegers,
          &count, &random);
  }
  // DreamerV3's heads, smaller, and the longest rows.
  const auto small = [&](int64_t in, const Axis& h, const Axis& w) {
    Check(MakeProblem(3, 1, in, 3, h, w, Layout::kNHWC), 2, Data::kIntegers, &count, &random);
  };
  small(64, MakeAxis(6, 5, 1, 1, 2, 2), MakeAxis(64, 5, 1, 1, 2, 2));
  small(128, MakeAxis(5, 5, 2, 1, 1, 2), MakeAxis(32, 5, 2, 1, 1, 2));
  small(96, MakeAxis(5, 4, 2, 1, 1, 1), MakeAxis(32, 4, 2, 1, 1, 1));
  small(16, MakeAxis(3, 5, 1, 1, 2, 2), MakeAxis(128, 5, 1, 1, 2, 2));
  std::printf(
      "im2col_forward_pixels_test: %d problems, %d with ragged rows, kinds %d %d %d, chunks %d %d "
      "%d %d, %d declined\n",
      count.checked, count.ragged, count.kinds[4][2], count.kinds[5][1], count.kinds[5][2],
      count.chunks[1], count.chunks[2], count.chunks[3], count.chunks[4], count.declined);
  return count.checked >= 80 && count.ragged >= 20 ? EXIT_SUCCESS : EXIT_FAILURE;
}
