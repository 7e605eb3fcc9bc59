// The im2col kernels on the CPU, thread by thread as on a GPU, against the definition.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/geometry.h"
#include "core/im2col_box.h"
#include "core/im2col_forward_plan.h"
#include "core/im2col_plan.h"
#include "cuda_emulation.h"
#include "im2col_oracle.h"
// After the emulation.
#include "cuda/kernels/im2col_forward.cuh"
#include "cuda/kernels/im2col_grad_input.cuh"
#include "cuda/kernels/im2col_stage.cuh"

namespace {

using namespace transconv::im2col_oracle;
using transconv::BoxForm;
using transconv::BoxShape;
using transconv::Im2colBox;
using transconv::Im2colForwardPlan;
using transconv::Im2colLimits;
using transconv::Im2colPlan;
using transconv::Layout;
using transconv::Problem;
using transconv::im2col_oracle::Describe;  // beside those of plans

// Every element of a box is the image's or zero, wherever its origin is.
void CheckBox(std::mt19937* random) {
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>((*random)() % static_cast<unsigned>(hi - lo + 1));
  };
  Problem q;
  q.batch = 1;
  q.layout = pick(0, 1) == 0 ? Layout::kNCHW : Layout::kNHWC;
  q.groups = pick(1, 2);
  q.in_channels = q.out_channels = q.groups * pick(1, 9);
  q.h.in = q.h.out = pick(1, 9);
  q.w.in = q.w.out = pick(1, 20);
  const int per_group = static_cast<int>(q.in_per_group());
  BoxShape shape;
  shape.rows = pick(1, 9);
  shape.columns = pick(1, 40);
  shape.channels = pick(0, 1) == 0 ? per_group : pick(1, per_group);
  shape.unit_h = pick(1, 3);
  shape.unit_w = std::max(pick(-2, 3), 1);
  shape.most_vector = 1 << pick(0, 2);
  shape.row_pad = pick(0, 2);
  shape.channel_pad = pick(0, 2);
  shape.column_pad = pick(0, 2);
  const Im2colBox box = transconv::MakeIm2colBox(q, true, shape);
  const int group = pick(0, static_cast<int>(q.groups) - 1);
  const int row = pick(-12, 12), column = pick(-30, 30);
  const int channel =
      shape.channels == per_group ? 0 : pick(0, per_group / shape.channels) * shape.channels;
  std::vector<float> image(static_cast<size_t>(q.in_channels * q.h.in * q.w.in));
  for (float& v : image) v = static_cast<float>(pick(-999, 999));
  std::vector<float> got;
  const int shift = box.Shift(column);
  transconv::emulation::Launch(
      1, transconv::kBoxThreads, static_cast<size_t>(box.size) * sizeof(float), [&] {
        float* const to = reinterpret_cast<float*>(transconv::cuda::SharedMemory());
        transconv::cuda::im2col::StageBox<Single>(
            to, image.data() + At(q, true, 0, group * per_group, 0, 0), box, row, column, channel);
        __syncthreads();
        if (threadIdx.x == 0) got.assign(to, to + box.size);
      });
  for (int c = 0; c < shape.channels; ++c) {
    for (int r = 0; r < shape.rows; ++r) {
      for (int x = 0; x < shape.columns; ++x) {
        const int y_at = row + r * shape.unit_h, x_at = column + x * shape.unit_w;
        const bool inside =
            channel + c < per_group && y_at >= 0 && y_at < q.h.in && x_at >= 0 && x_at < q.w.in;
        const float want =
            inside ? image[At(q, true, 0, group * per_group + channel + c, y_at, x_at)] : 0.0f;
        const int place = shift + r * box.row + x * box.column + c * box.channel;
        if (place < box.size && got[static_cast<size_t>(place)] == want) continue;
        std::printf("im2col_test: a box is wrong: form %d vector %d\n", static_cast<int>(box.form),
                    box.vector);
        std::exit(1);
      }
    }
  }
}

void Describe(const Im2colPlan& p) {
  std::printf(
      "fragments %dx%d n_blocks %d tile %dx%d tiles %dx%d pieces %d rounds %d chunks %dx%d k %d "
      "fastest %d form %d vector %d lanes %d box %d (%d %d %d) bytes %d resident %d\n",
      p.m_frags, p.n_frags, p.n_blocks, p.rows, p.columns, p.tiles_h, p.tiles_w, p.pieces, p.rounds,
      p.chunks, p.chunk, p.k, p.channels_fastest, static_cast<int>(p.box.form), p.box.vector,
      1 << p.box.lanes_log2, p.box.size, p.box.row, p.box.column, p.box.channel, p.shared_bytes,
      p.resident);
}

// Counts what ran.
struct Count {
  int checked = 0, refused = 0, chunks = 0, loose = 0, rounds = 0, tiles = 0, fragments[9] = {},
      forms[3] = {}, vectors[5] = {};
};

template <typename E, int MF, int NF>
void RunGradInput(const transconv::cuda::im2col::GradInputParams& p, int64_t each,
                  const typename E::Type* dy, const typename E::Type* w, typename E::Type* dx) {
  transconv::emulation::Launch(static_cast<unsigned>(p.streams * each), transconv::kBoxThreads,
                               static_cast<size_t>(p.plan.shared_bytes), [&] {
                                 transconv::cuda::im2col::GradInputKernel<E, MF, NF>(dy, w, dx, p);
                               });
}

template <typename E>
void CheckGradInput(const Problem& q, const Im2colLimits& limits, Count* count,
                    std::mt19937* random) {
  using T = typename E::Type;
  const Im2colPlan plan = transconv::PlanIm2colGradInput(q, sizeof(T), limits);
  if (plan.reason != nullptr) {
    ++count->refused;
    return;
  }
  ++count->checked;
  count->chunks += plan.chunks > 1;
  count->loose += !plan.held;
  count->rounds += plan.rounds > 1;
  count->tiles += plan.tiles > 1;
  ++count->fragments[plan.n_frags];
  ++count->forms[static_cast<int>(plan.box.form)];
  ++count->vectors[plan.box.vector];
  const auto dy = Draw<E>(Size(q, false), (*random)() % 3, random);
  const auto w = Draw<E>(WeightSize(q), 0, random);
  std::vector<float> want(Size(q, true), 0.0f);
  ForAll(q, [&](size_t x, size_t k, size_t y) { want[x] += E::Load(dy[y]) * E::Load(w[k]); });
  std::vector<T> got(want.size(), E::kPoison);
  const auto p = transconv::cuda::im2col::MakeGradInputParams(q, plan, true, (*random)() % 8 + 1);
  const int64_t each = q.groups * plan.n_blocks;
  switch (plan.n_frags) {
    case 1:
      RunGradInput<E, 4, 1>(p, each, dy.data(), w.data(), got.data());
      break;
    case 2:
      RunGradInput<E, 2, 2>(p, each, dy.data(), w.data(), got.data());
      break;
    case 4:
      RunGradInput<E, 2, 4>(p, each, dy.data(), w.data(), got.data());
      break;
    default:
      RunGradInput<E, 2, 8>(p, each, dy.data(), w.data(), got.data());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != E::kPoison && Same(E::Load(got[i]), want[i])) continue;
    std::printf("im2col_test: grad_input element %d is %g, not %g\n", static_cast<int>(i),
                static_cast<double>(E::Load(got[i])), static_cast<double>(want[i]));
    Describe(q);
    Describe(plan);
    std::exit(1);
  }
}

struct ForwardCount {
  int checked = 0, refused = 0, parts = 0, rounds = 0, tiles = 0, chunks = 0, steps[9] = {},
      collected = 0, all = 0, pairs = 0, loose = 0, wide[5] = {}, rows = 0, turns = 0;
};

template <typename E, int MF, int KS>
void RunForward(const transconv::cuda::im2col::ForwardParams& p, int64_t groups,
                const typename E::Type* x, const typename E::Type* w, const typename E::Type* bias,
                typename E::Type* y) {
  transconv::emulation::Launch(
      static_cast<unsigned>(p.streams * groups), transconv::kBoxThreads,
      static_cast<size_t>(p.plan.shared_bytes),
      [&] { transconv::cuda::im2col::ForwardKernel<E, MF, KS>(x, w, bias, y, p); });
}

template <typename E, int MF>
void RunForwardSteps(const transconv::cuda::im2col::ForwardParams& p, int64_t groups,
                     const typename E::Type* x, const typename E::Type* w,
                     const typename E::Type* bias, typename E::Type* y) {
  switch (p.plan.k_steps) {
    case 1:
      return RunForward<E, MF, 1>(p, groups, x, w, bias, y);
    case 2:
      return RunForward<E, MF, 2>(p, groups, x, w, bias, y);
    case 4:
      return RunForward<E, MF, 4>(p, groups, x, w, bias, y);
    default:
      return RunForward<E, 2, 8>(p, groups, x, w, bias, y);
  }
}

void Describe(const Im2colForwardPlan& p) {
  std::printf(
      "fragments %dx%d k_chunks %d tile %dx%d window %dx%d (%d %d) tiles %dx%d pieces %d rounds %d "
      "parts %dx%d n_frags %d pitch %d held %d collected %d %d bytes %d resident %d\n",
      p.m_frags, p.k_steps, p.k_chunks, p.rows, p.columns, p.x_rows, p.x_columns, p.first_row,
      p.first_column, p.tiles_h, p.tiles_w, p.pieces, p.rounds, p.parts, p.chunk, p.n_frags,
      p.pitch, p.held, p.collected, p.collects_all, p.shared_bytes, p.resident);
}

template <typename E>
void CheckForward(const Problem& q, const Im2colLimits& limits, ForwardCount* count,
                  std::mt19937* random) {
  using T = typename E::Type;
  const Im2colForwardPlan plan = transconv::PlanIm2colForward(q, sizeof(T), limits);
  if (plan.reason != nullptr) {
    ++count->refused;
    return;
  }
  ++count->checked;
  count->parts += plan.parts > 1;
  count->rounds += plan.rounds > 1;
  count->tiles += plan.tiles > 1;
  count->chunks += plan.k_chunks > 1;
  ++count->steps[plan.k_steps];
  count->collected += plan.collected;
  count->all += plan.collects_all;
  count->loose += !plan.held;
  count->turns += plan.turns() > 1;
  const auto x = Draw<E>(Size(q, true), (*random)() % 3, random);
  const auto w = Draw<E>(WeightSize(q), 0, random);
  const auto bias = Draw<E>(static_cast<size_t>(q.out_channels), 0, random);
  const bool with_bias = (*random)() % 3 != 0;
  std::vector<float> want(Size(q, false), 0.0f);
  if (with_bias) ForAllOfY(q, [&](size_t y, size_t c) { want[y] = E::Widen(bias[c]); });
  ForAll(q, [&](size_t i, size_t k, size_t y) { want[y] += E::Load(x[i]) * E::Load(w[k]); });
  std::vector<T> got(want.size(), E::kPoison);
  const auto p = transconv::cuda::im2col::MakeForwardParams(
      q, plan, (*random)() % 2 == 0 ? 4 : 1 << (*random)() % 2,
      (*random)() % 2 == 0 ? 4 : 1 << (*random)() % 2, (*random)() % 8 + 1);
  count->pairs += p.pairs;
  ++count->wide[p.wide];
  count->rows += p.whole_rows;
  const T* const added = with_bias ? bias.data() : nullptr;
  if (plan.m_frags == 2) {
    RunForwardSteps<E, 2>(p, q.groups, x.data(), w.data(), added, got.data());
  } else {
    RunForwardSteps<E, 4>(p, q.groups, x.data(), w.data(), added, got.data());
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != E::kPoison && Same(E::Load(got[i]), want[i])) continue;
    std::printf("im2col_test: forward element %d is %g, not %g\n", static_cast<int>(i),
                static_cast<double>(E::Load(got[i])), static_cast<double>(want[i]));
    Describe(q);
    Describe(plan);
    std::exit(1);
  }
}

// Prints how problems of well-known networks are cut.
void Print() {
  const auto show = [](const char* name, Problem q, Layout layout) {
    q.layout = layout;
    const Im2colForwardPlan forward = transconv::PlanIm2colForward(q, 4);
    std::printf("%s forward: %s\n", name, forward.reason == nullptr ? "" : forward.reason);
    if (forward.reason == nullptr) {
      Describe(forward);
      std::printf("  predicted ms %.4f\n",
                  transconv::im2col::ForwardCost(forward, q, Im2colLimits(), 4) / 1.755e6);
    }
    const Im2colPlan plan = transconv::PlanIm2colGradInput(q, 4);
    std::printf("%s grad_input: %s\n", name, plan.reason == nullptr ? "" : plan.reason);
    if (plan.reason != nullptr) return;
    Describe(plan);
    std::printf("  conflicts %.2f predicted ms %.4f\n",
                transconv::im2col::SampleConflicts(plan, q) / 6.0,
                transconv::im2col::Cost(plan, q, Im2colLimits(), 4) / 1.755e6);
  };
  const auto same = [](int64_t in, int64_t kernel, int64_t stride, int64_t crop) {
    return MakeAxis(in, kernel, stride, 1, crop, crop);
  };
  constexpr Layout kFirst = Layout::kNCHW, kLast = Layout::kNHWC;
  show("KernelBench 75",
       MakeProblem(16, 4, 8, 16, MakeAxis(128, 3, 2, 2, 1, 1), MakeAxis(256, 5, 3, 1, 2, 2)),
       kFirst);
  show("PlaNet", MakeProblem(2500, 1, 32, 3, same(30, 6, 2, 0), same(30, 6, 2, 0)), kLast);
  show("DreamerV3", MakeProblem(1024, 1, 48, 3, same(32, 5, 2, 2), same(32, 5, 2, 2)), kLast);
  show("dcgan-4", MakeProblem(128, 1, 64, 3, same(32, 4, 2, 1), same(32, 4, 2, 1)), kFirst);
  show("fsrcnn", MakeProblem(16, 1, 56, 1, same(64, 9, 3, 4), same(64, 9, 3, 4)), kFirst);
  show("pix2pix", MakeProblem(1, 1, 128, 3, same(128, 4, 2, 1), same(128, 4, 2, 1)), kFirst);
}

}  // namespace

// With a number: so many random problems and another seed; with 0, how problems are cut.
int main(int argc, char** argv) {
  const int problems = argc > 1 ? std::atoi(argv[1]) : 36;
  if (problems == 0) {
    Print();
    return 0;
  }
  std::mt19937 random(static_cast<unsigned>(argc > 1 ? problems : 5));
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  for (int i = 0; i < 200; ++i) CheckBox(&random);

  constexpr int kChannels[][2] = {{1, 1}, {4, 5},  {3, 16}, {8, 16}, {8, 4}, {17, 2},
                                  {9, 3}, {32, 3}, {33, 1}, {70, 2}, {5, 6}, {2, 12}};
  Count count;
  ForwardCount forward;
  const auto check = [&](const Problem& q, const Im2colLimits& limits, bool narrow) {
    if (narrow) {
      CheckGradInput<Narrow>(q, limits, &count, &random);
      CheckForward<Narrow>(q, limits, &forward, &random);
    } else {
      CheckGradInput<Single>(q, limits, &count, &random);
      CheckForward<Single>(q, limits, &forward, &random);
    }
  };
  for (int i = 0; i < problems; ++i) {
    const auto axis = [&](int most_in, int most_kernel) {
      return MakeAxis(pick(1, most_in), pick(1, most_kernel), pick(1, 4), pick(1, 3), pick(-3, 3),
                      pick(-3, 3));
    };
    const auto& channels = kChannels[i % 12];
    Problem q = MakeProblem(pick(1, 2), pick(1, 3), channels[0], channels[1],
                            axis(i % 5 == 0 ? 1 : 8, 4), axis(i % 7 == 0 ? 40 : 10, 5));
    q.layout = i % 2 == 0 ? Layout::kNHWC : Layout::kNCHW;
    if (i % 3 == 0) q.groups = 1, q.in_channels = channels[0], q.out_channels = channels[1];
    Im2colLimits limits;
    // Little room makes many tiles, parts and chunks; one multiprocessor makes large tiles.
    if (i % 3 == 1) limits.shared_bytes = (3 + i % 8) << 10;
    if (i % 3 == 2) limits.most_pixels = 40;
    if (i % 3 == 0) limits.multiprocessors = 1;
    if (i % 11 == 0) limits.most_vector = 1;
    check(q, limits, i % 4 == 0);
  }
  // Images of several rounds, kernels without an overlap, taps without pixels, a column, many
  // channels in chunks.
  const auto square = [](int64_t in, int64_t kernel, int64_t stride, int64_t dilation,
                         int64_t crop) {
    return MakeAxis(in, kernel, stride, dilation, crop, crop);
  };
  Im2colLimits large;
  large.multiprocessors = 1;
  large.shared_bytes = 200 << 10;
  large.least_pixels = 400;
  for (const Layout layout : {Layout::kNCHW, Layout::kNHWC}) {
    const auto special = [&](Problem q, const Im2colLimits& limits) {
      q.layout = layout;
      check(q, limits, false);
    };
    special(MakeProblem(1, 1, 10, 3, square(24, 3, 2, 1, 1), square(28, 3, 2, 1, 1)), large);
    special(MakeProblem(1, 2, 3, 4, square(25, 3, 1, 1, 1), square(30, 3, 2, 1, 1)), large);
    special(MakeProblem(1, 1, 32, 3, square(5, 4, 2, 1, 1), square(7, 6, 2, 1, 2)), {});
    special(MakeProblem(2, 1, 12, 3, square(6, 4, 2, 1, 1), square(8, 4, 2, 1, 1)), {});
    special(MakeProblem(1, 1, 9, 4, square(5, 3, 2, 1, 0), square(15, 3, 1, 1, 1)), {});
    special(MakeProblem(1, 1, 64, 3, square(4, 5, 2, 1, 2), square(6, 5, 2, 1, 2)), {});
    special(MakeProblem(1, 2, 16, 4, square(4, 3, 1, 2, 2), square(9, 5, 3, 1, 2)), {});
    special(MakeProblem(1, 2, 4, 4, square(5, 2, 4, 1, 0), square(6, 3, 3, 1, 0)), {});
    special(MakeProblem(1, 1, 8, 2, square(4, 2, 5, 5, -2), square(5, 2, 7, 1, 3)), {});
    special(MakeProblem(2, 1, 16, 1, square(30, 8, 4, 1, 2), square(1, 1, 1, 1, 0)), {});
    Im2colLimits little;
    little.shared_bytes = 9 << 10;
    little.multiprocessors = 1;
    special(MakeProblem(1, 1, 6, 40, square(6, 2, 2, 1, 0), square(8, 2, 2, 1, 0)), little);
    special(MakeProblem(1, 2, 5, 12, square(6, 3, 2, 2, 1), square(9, 5, 3, 1, 2)), little);
    special(MakeProblem(1, 1, 80, 2, square(4, 2, 2, 1, 0), square(7, 2, 2, 1, 0)), little);
    little.least_pixels = 80;
    special(MakeProblem(1, 1, 2, 16, square(9, 2, 2, 1, 0), square(10, 2, 2, 1, 1)), little);
    special(MakeProblem(1, 2, 3, 18, square(9, 2, 1, 2, 1), square(10, 1, 3, 1, 0)), little);
  }
  // Warps in turns.
  for (const Layout layout : {Layout::kNCHW, Layout::kNHWC}) {
    Problem q = MakeProblem(3, 1, 150, 2, square(5, 4, 2, 1, 1), square(7, 4, 2, 1, 1));
    q.layout = layout;
    check(q, {}, false);
  }
  std::printf(
      "im2col_test: %d checked, %d refused, %d in chunks, %d weights by chunk, %d in rounds, %d of "
      "many tiles, "
      "fragments "
      "%d %d %d %d, forms %d %d %d, vectors %d %d %d\n",
      count.checked, count.refused, count.chunks, count.loose, count.rounds, count.tiles,
      count.fragments[1], count.fragments[2], count.fragments[4], count.fragments[8],
      count.forms[0], count.forms[1], count.forms[2], count.vectors[1], count.vectors[2],
      count.vectors[4]);
  std::printf(
      "im2col_test: forward %d checked, %d refused, %d in parts, %d in rounds, %d of many tiles, "
      "%d in chunks, steps %d %d %d %d, %d collected, %d of all, %d pairs, %d weights by part, "
      "loads of %d %d %d, %d whole rows, %d in turns\n",
      forward.checked, forward.refused, forward.parts, forward.rounds, forward.tiles,
      forward.chunks, forward.steps[1], forward.steps[2], forward.steps[4], forward.steps[8],
      forward.collected, forward.all, forward.pairs, forward.loose, forward.wide[1],
      forward.wide[2], forward.wide[4], forward.rows, forward.turns);
  const bool enough = count.chunks - count.loose >= 2 && count.loose >= 2 && count.rounds >= 2 &&
                      count.forms[1] >= 8 && count.vectors[4] >= 8 && forward.parts >= 8 &&
                      forward.rounds >= 2 && forward.chunks >= 4 && forward.all >= 4 &&
                      forward.loose >= 4 && forward.rows >= 2 && forward.turns >= 2;
  return enough ? 0 : 1;
}
