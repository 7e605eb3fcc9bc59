// Packed cells on the CPU: every channel of every pixel in the cell where the kernels that copy
// them look for it, and the columns that one of them reads together side by side.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "definition.h"
#include "guarded_tensor.h"
#include "sm90_emulation.h"

// After the emulation.
#include "cuda/kernels/pack_cells.cuh"
#include "cuda/launch/pack_cells_call.cuh"

namespace transconv {
namespace {

[[noreturn]] void Fail(const Problem& q, const char* what) {
  definition::Describe(q);
  std::printf("pack_cells_test: %s\n", what);
  std::exit(1);
}

struct Count {
  int problems = 0, ordered = 0, unequal = 0, ragged = 0, narrow = 0, again = 0;
};

// The columns of a row that are read together are neighbours, in their order, each remainder in a
// run of its own.
void CheckOrder(const Problem& q, const cuda::ColumnOrder& order, int width, int step) {
  for (int x = 0; x < width; ++x) {
    if (order.PlaceOf(x) != x % step * order.run + x / step) Fail(q, "a column is out of place");
    if (x / step >= order.run) Fail(q, "a column leaves its run");
  }
}

// An image of T: small integers, none of them zero, which cells have exactly. The guess of the
// scale is one from all values, or from none.
template <typename T>
void Check(const Problem& q, bool is_x, bool sampled, Count* count) {
  constexpr bool kFloat = sizeof(T) == 4;
  const cuda::CellsOf of(q, kFloat ? DType::kF32 : DType::kF16, is_x, is_x ? 1 : q.w.stride);
  if (of.direct) Fail(q, "such an image is packed");
  const size_t size = definition::Size(q, is_x);
  Tensor<T> image(size, 0, 7.f);
  for (size_t i = 0; i < size; ++i) {
    image.data()[i] = static_cast<T>(static_cast<float>(i % 2039 + 1));
  }
  Tensor<__half> cells(static_cast<size_t>(of.bytes()) / 2, 0, 9.f);
  std::fill_n(cells.data(), cells.size(), __half(-1.f));

  cuda::Magnitudes magnitudes{};
  const cuda::PackBothParams both{
      {cuda::PackParamsOf(of, q.layout, image.data(), cells.data(), &magnitudes), {}}};
  const cuda::PackCellsParams& p = both.image[0];
  const int64_t width = is_x ? q.w.in : q.w.out, height = is_x ? q.h.in : q.h.out;
  CheckOrder(q, p.order, static_cast<int>(width), static_cast<int>(of.step));
  const auto launch = [](int blocks, auto kernel) {
    emulation::Launch(static_cast<unsigned>(blocks), cuda::kPackCellsThreads, 0, kernel);
  };
  if (kFloat && sampled) launch(2, [&] { cuda::SampleKernel(both); });
  launch(p.parts, [&] { cuda::PackCellsKernel<T, 1>(both); });
  float scale = 1.f;
  if constexpr (kFloat) {
    launch(1, [&] { cuda::PackAgainKernel(both); });
    const int exponent = cuda::PackedExponent<1>(magnitudes);
    count->again += exponent != cuda::GuessedExponent<1>(magnitudes);
    scale = cuda::ScaleOf(exponent);
  }
  if (!cells.Kept()) Fail(q, "something is written outside of the cells");

  for (int64_t n = 0; n < q.batch; ++n) {
    for (int64_t c = 0; c < of.channels; ++c) {
      const int64_t group = c / of.channels_per_group, own = c % of.channels_per_group;
      const int64_t chunk = n * of.image() + group * of.group() + own / 8 * of.chunk();
      for (int y = 0; y < height; ++y) {
        for (int x = 0; x < width; ++x) {
          const int64_t place = x % of.step * p.order.run + x / of.step;
          const int64_t offset = (y * of.row_cells() + place) * of.pixel();
          const float got = static_cast<float>(cells.data()[(chunk + offset) / 2 + own % 8]);
          if (got !=
              scale * static_cast<float>(image.data()[definition::At(q, is_x, n, c, y, x)])) {
            Fail(q, "a cell has another pixel's channel");
          }
        }
      }
    }
  }
  const auto zeros = std::count_if(cells.data(), cells.data() + cells.size(),
                                   [](__half v) { return static_cast<float>(v) == 0.f; });
  if (static_cast<size_t>(zeros) != cells.size() - size)
    Fail(q, "a missing channel or column is no zero");
  ++count->problems;
  count->ordered += of.step > 1;
  count->unequal += of.step > 1 && width % of.step != 0;
  count->ragged += of.channels_per_group % 8 != 0;
  count->narrow += !is_x && q.w.stride > width;
}

void CheckProblems(int most) {
  std::mt19937 random(3);
  const auto pick = [&](int lo, int hi) {
    return lo + static_cast<int>(random() % static_cast<unsigned>(hi - lo + 1));
  };
  Count count;
  for (int i = 0; i < most; ++i) {
    const auto axis = [&] {
      Axis a{pick(1, 9), 0, pick(1, 3), pick(1, 5), 1, pick(-1, 1)};
      const int64_t full = a.stride * (a.in - 1) + a.kernel;
      a.out = pick(0, 4) == 0 ? pick(1, 3) : std::max<int64_t>(1, full - a.crop_lo + pick(-2, 2));
      return a;
    };
    const Axis h = axis(), w = axis();
    const int groups = pick(1, 3), in = pick(1, 19), out = pick(1, 19);
    Problem q = definition::MakeProblem(pick(1, 2), groups, in, out, h, w);
    const bool is_x = pick(0, 3) == 0;
    // Channels last, cells of whole eights are the image itself.
    const int64_t channels = is_x ? q.in_per_group() : q.out_per_group();
    if (channels % 8 != 0 && pick(0, 1) == 0) q.layout = Layout::kNHWC;
    pick(0, 1) == 0 ? Check<float>(q, is_x, pick(0, 1) == 0, &count)
                    : Check<__half>(q, is_x, false, &count);
  }
  std::printf(
      "pack_cells_test: %d problems, %d in another order, %d of them with runs of two lengths, %d "
      "with missing channels, %d narrower than the stride, %d packed again\n",
      count.problems, count.ordered, count.unequal, count.ragged, count.narrow, count.again);
  const int cases[] = {count.ordered, count.unequal, count.ragged, count.narrow, count.again};
  if (*std::min_element(std::begin(cases), std::end(cases)) == 0) Fail({}, "a case is not met");
}

}  // namespace
}  // namespace transconv

int main() {
  transconv::CheckProblems(200);
  return 0;
}
