// The plan of one matrix product for kernels as large as their stride: what it refuses and with
// what words, its copies, splits and workspace, and in which order a slab's elements and a tile's
// columns are put.
#include "core/gemm_plan.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "definition.h"

namespace transconv {
namespace {

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("gemm_plan_test: %s\n", what);
  std::exit(1);
}

Axis AxisOf(int64_t in, int64_t stride) { return {in, in * stride, stride, stride, 1, 0}; }

// How elements and columns are put, for every size and number of values.
void CheckOrders() {
  const Problem none;
  constexpr int kElements = kGemmSlabBytes / 4;
  for (const int values : {1, 2, 4}) {
    std::vector<bool> met(kElements, false);
    for (int k = 0; k < kElements; ++k) {
      const GemmElement e(k, values);
      const int at = e.line * values + e.value;
      if (e.value < 0 || e.value >= values || at < 0 || at >= kElements ||
          met[static_cast<size_t>(at)]) {
        Fail(none, "elements of a slab are no permutation");
      }
      met[static_cast<size_t>(at)] = true;
      // What a load of a pixel brings: the operand's element four further on, too.
      const GemmElement far(k + 4, values);
      if (values > 1 && k % 8 < 4 && (far.line != e.line || far.value != e.value + 1)) {
        Fail(none, "an operand's elements are no neighbours");
      }
    }
  }
  for (const bool fours : {false, true}) {
    std::vector<bool> met(256, false);
    for (int at = 0; at < 256; ++at) {
      const int column = GemmColumn(at, fours);
      if (column < 0 || column >= 256 || met[static_cast<size_t>(column)]) {
        Fail(none, "columns of a tile are no permutation");
      }
      met[static_cast<size_t>(column)] = true;
      const int thread = at % 8 / 2;
      if (fours ? column / 4 != at / 16 * 4 + thread : column != at) {
        Fail(none, "a thread's columns are no neighbours");
      }
    }
  }
}

void CheckPlans() {
  const auto expect = [](const Problem& q, Pass pass, DType dtype, const char* words) {
    GemmPlan plan;
    const char* const reason = PlanGemm(q, pass, dtype, 132, &plan);
    const bool right =
        words == nullptr ? reason == nullptr : reason != nullptr && std::strstr(reason, words);
    if (!right) {
      std::printf("%s, not %s\n", reason == nullptr ? "a plan" : reason,
                  words == nullptr ? "a plan" : words);
      Fail(q, "a plan is another");
    }
    return plan;
  };
  constexpr Pass kForward = Pass::kForward, kBack = Pass::kGradInput;
  constexpr DType kFloat = DType::kF32, kHalf = DType::kF16;
  const Problem good = definition::MakeProblem(2, 1, 8, 8, AxisOf(4, 2), AxisOf(6, 2));
  for (const DType dtype : {kFloat, kHalf, DType::kBF16}) {
    expect(good, kForward, dtype, nullptr);
    expect(good, kBack, dtype, nullptr);
    expect(good, Pass::kGradWeight, dtype, "no weight gradient");
  }
  expect(good, kForward, DType::kF64, "float64");
  const auto without = [&](const char* words, const auto& change) {
    Problem q = good;
    change(&q);
    expect(q, kForward, kFloat, words);
    expect(q, kBack, kFloat, words);
  };
  without("precision DEFAULT", [](Problem* q) { q->precision = Precision::kHighest; });
  without("NCHW", [](Problem* q) { q->layout = Layout::kNHWC; });
  without("groups", [](Problem* q) { q->groups = 2; });
  for (Axis Problem::* axis : {&Problem::h, &Problem::w}) {
    constexpr const char* kWords = "as large as their stride";
    without(kWords, [&](Problem* q) { ++(q->*axis).kernel; });
    without(kWords, [&](Problem* q) { (q->*axis).dilation = 2; });
    without(kWords, [&](Problem* q) { (q->*axis).crop_lo = 1; });
    without(kWords, [&](Problem* q) { ++(q->*axis).out; });
    without(nullptr, [&](Problem* q) { q->*axis = {5, 5, 1, 1, 3, 0}; });  // a dilation of nothing
  }
  without("32-bit", [](Problem* q) { q->batch = int64_t{1} << 28; });
  without("32-bit", [](Problem* q) { q->out_channels = int64_t{1} << 26; });
  without("32-bit", [](Problem* q) { q->in_channels = int64_t{1} << 27; });
  Problem q = good;
  q.w = AxisOf(6, 3);
  expect(q, kForward, kFloat, nullptr);
  expect(q, kBack, kFloat, "one, two or four values");
  q.h = AxisOf(5, 3);
  expect(q, kBack, kHalf, "one, two or four values");

  // Copies: of x whole images follow each other, of dy rows do where the kernel has one.
  const auto vector = [&](int64_t h, int64_t w, int64_t kh, int64_t kw, Pass pass, DType dtype) {
    return expect(definition::MakeProblem(2, 1, 8, 8, AxisOf(h, kh), AxisOf(w, kw)), pass, dtype,
                  nullptr)
        .vector;
  };
  const bool vectors =
      vector(2, 6, 2, 2, kForward, kFloat) == 16 && vector(1, 6, 2, 2, kForward, kFloat) == 8 &&
      vector(3, 5, 2, 2, kForward, kFloat) == 4 && vector(2, 5, 2, 2, kForward, kHalf) == 4 &&
      vector(2, 6, 2, 2, kBack, kFloat) == 16 && vector(2, 5, 2, 2, kBack, kFloat) == 8 &&
      vector(2, 5, 2, 1, kBack, kFloat) == 4 && vector(2, 5, 1, 2, kBack, kFloat) == 16 &&
      vector(3, 5, 1, 2, kBack, kHalf) == 4 && vector(3, 5, 2, 4, kBack, kHalf) == 8 &&
      vector(3, 5, 2, 4, kBack, kFloat) == 16;
  if (!vectors) Fail(good, "copies have another size");
  q = good;
  q.h = AxisOf(3, 2);
  q.w = AxisOf(5, 2);
  expect(q, kForward, kHalf, "even size");
  expect(q, kBack, kFloat, nullptr);

  // 16-bit weights of a channel of x are whole pieces of 16 bytes.
  q = definition::MakeProblem(2, 1, 8, 7, AxisOf(4, 2), AxisOf(6, 2));
  for (const Pass pass : {kForward, kBack}) {
    expect(q, pass, kHalf, "in eights");
    expect(q, pass, kFloat, nullptr);
  }

  std::mt19937 random(7);
  int plans = 0, split = 0;
  for (int i = 0; i < 2000; ++i) {
    const auto pick = [&](int most) { return 1 + static_cast<int64_t>(random() % most); };
    const int64_t kw = int64_t{1} << (random() % 3);
    const Problem any = definition::MakeProblem(
        pick(8), 1, pick(2000), pick(500), AxisOf(2 * pick(32), pick(4)), AxisOf(pick(64), kw));
    const DType dtype = i % 2 == 0 ? kFloat : kHalf;
    const Pass pass = i % 4 < 2 ? kForward : kBack;
    GemmPlan plan;
    if (PlanGemm(any, pass, dtype, 132, &plan) != nullptr) continue;
    ++plans;
    split += plan.splits > 1;
    const int element = static_cast<int>(ByteWidth(dtype));
    const int64_t pixels = any.batch * any.h.in * any.w.in,
                  sums = int64_t{plan.lines} * plan.values;
    const bool fits =
        plan.splits == 1 || (plan.splits <= plan.slabs && plan.tiles() * plan.splits <= 132);
    if (!fits) Fail(any, "splits have no blocks, or no slabs");
    const bool covers = int64_t{plan.row_tiles} * kGemmRows >= pixels &&
                        int64_t{plan.column_tiles} * plan.tile_columns >= plan.columns &&
                        int64_t{plan.slabs} * plan.slab_lines(element) >= plan.lines &&
                        sums * plan.columns == any.in_channels * any.out_channels * any.taps();
    if (!covers) Fail(any, "tiles leave something out");
    const int64_t packed = int64_t{plan.column_tiles} * plan.tile_columns * plan.slabs * 128;
    if (plan.workspace_bytes != (element == 4 ? packed : plan.weight_bytes)) {
      Fail(any, "the workspace has another size");
    }
  }
  if (split == 0) Fail(good, "nothing is split");
  std::printf("gemm_plan_test: %d plans, %d with splits\n", plans, split);
}

}  // namespace
}  // namespace transconv

int main() {
  transconv::CheckOrders();
  transconv::CheckPlans();
  return 0;
}
