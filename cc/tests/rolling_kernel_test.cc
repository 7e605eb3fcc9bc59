// The rolling forward pass and gradient of x on the CPU, thread by thread as on a GPU: packing,
// producers, turns, matrix products, stores, against the definition.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <random>
#include <vector>

#include "definition.h"
#include "sm90_emulation.h"
#include "sm90_products.h"
// After the emulation.
#include "cuda/launch/sm90_rolling_programme.cuh"

namespace {

namespace rolling = transconv::cuda::sm90_rolling;
namespace emulation = transconv::emulation;
using transconv::DType;
using transconv::Pass;
using transconv::Precision;
using transconv::Problem;
using transconv::cuda::Call;
using transconv::definition::MakeAxis;

void Fail(const char* what) {
  std::printf("rolling_kernel_test: %s\n", what);
  std::exit(1);
}

std::mt19937 random_bits(5);
int Pick(int lo, int hi) {
  return lo + static_cast<int>(random_bits() % static_cast<unsigned>(hi - lo + 1));
}

// As large as its elements, which start so many past where XLA's buffers do.
template <typename T>
struct Buffer {
  std::vector<T> values;
  T* data;
  explicit Buffer(size_t n, int past = 0) : values(n + 256 + 8), data(values.data()) {
    while (reinterpret_cast<uintptr_t>(data) % 256 != 0) ++data;
    data += past;
  }
};

template <typename T, int N, int HALVES, int PRODUCTS = 1>
void Run(const Call& call, const rolling::Programme& g) {
  const auto pack = PackParamsOf(call, g);
  emulation::LaunchSm90(PackBlocks(g), transconv::cuda::kPackThreads, 64,
                        [&] { transconv::cuda::PackWeightsKernel<T, 1, PRODUCTS == 3>(pack); });
  const auto params = ParamsOf(call, g);
  emulation::LaunchSm90(Blocks(g), rolling::kThreads, static_cast<size_t>(g.shared_bytes),
                        [&] { rolling::RollingTileKernel<T, N, HALVES, PRODUCTS>(params); });
}
template <typename T>
void RunAny(const Call& call, const rolling::Programme& g) {
  if constexpr (sizeof(T) == 4) {
    if (g.products == 3)
      return g.n == 136 ? Run<T, 136, 1, 3>(call, g) : Run<T, 128, 1, 3>(call, g);
    if (g.n == 136) return g.halves == 2 ? Run<T, 136, 2>(call, g) : Run<T, 136, 1>(call, g);
  } else {
    if (g.n == 144) return Run<T, 144, 1>(call, g);
  }
  g.halves == 2 ? Run<T, 128, 2>(call, g) : Run<T, 128, 1>(call, g);
}

// Rows of the source in bands of different magnitudes, and how far from a band's ends its own
// scale is in force.
constexpr int kBand = 18, kBandEdge = 4;
constexpr int kZeros = 100;
constexpr int kMagnitudes[] = {0, kZeros, -45, 30, -60, -78};  // 18: just out of the window
constexpr int kBands = std::size(kMagnitudes);

// Returns whether there is a programme. `past`: of source and target.
template <typename T>
bool Check(const Problem& q, Pass pass, DType dtype, bool bands, int blocks, const int (&past)[2]) {
  rolling::Programme g;
  if (rolling::ChooseFor(q, pass, dtype, blocks, &g) != nullptr) return false;
  const bool forward = pass == Pass::kForward;
  const size_t sources = transconv::definition::Size(q, forward);
  const size_t targets = transconv::definition::Size(q, !forward);
  const size_t weights = transconv::definition::WeightSize(q);
  const int64_t channels = forward ? q.out_channels : q.in_channels;
  const int64_t source_h = forward ? q.h.in : q.h.out, source_w = forward ? q.w.in : q.w.out;
  const int64_t target_h = forward ? q.h.out : q.h.in, target_w = forward ? q.w.out : q.w.in;
  Buffer<T> source(sources, past[0]), target(targets, past[1]);
  Buffer<T> weight(weights), bias(static_cast<size_t>(channels));
  Buffer<uint8_t> workspace(static_cast<size_t>(g.workspace_bytes));
  std::normal_distribution<float> draw;
  for (size_t i = 0; i < sources; ++i) {
    const int64_t row = static_cast<int64_t>(i) / source_w % source_h;
    const int magnitude = bands ? kMagnitudes[row / kBand % kBands] : 0;
    const float v = std::ldexp(draw(random_bits), magnitude);
    source.data[i] = static_cast<T>(magnitude == kZeros ? 0.f : v);
  }
  for (size_t i = 0; i < weights; ++i) weight.data[i] = static_cast<T>(draw(random_bits));
  for (int64_t i = 0; i < channels; ++i) {
    bias.data[i] = static_cast<T>(bands ? 0.f : draw(random_bits));
  }
  std::memset(static_cast<void*>(target.data), 0xff, targets * sizeof(T));
  emulation::readable = emulation::writable = {};
  emulation::readable.Allow(source.data, sources * sizeof(T));
  emulation::readable.Allow(workspace.data, static_cast<size_t>(g.workspace_bytes), true);
  emulation::writable.Allow(target.data, targets * sizeof(T));
  Call call;
  call.pass = pass;
  call.problem = q;
  call.dtype = dtype;
  call.x = forward ? source.data : target.data;
  call.y = forward ? target.data : source.data;
  call.w = weight.data;
  call.vector = bias.data;
  call.workspace = workspace.data;
  RunAny<T>(call, g);

  std::vector<double> want(targets), magnitude(targets);
  transconv::definition::ForAll(q, [&](size_t x, size_t w, size_t y) {
    const double product = static_cast<double>(static_cast<float>(source.data[forward ? x : y])) *
                           static_cast<double>(static_cast<float>(weight.data[w]));
    want[forward ? y : x] += product;
    magnitude[forward ? y : x] += std::fabs(product);
  });
  const double tolerance = g.products == 3 ? 1e-6 : dtype == DType::kBF16 ? 8e-3 : 2e-3;
  const transconv::RollingAxis h(q.h, pass);
  for (size_t i = 0; i < want.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / target_w;
    const int64_t channel = row / target_h % channels, t = row % target_h;
    const double b = static_cast<double>(static_cast<float>(bias.data[channel]));
    const double got = static_cast<double>(static_cast<float>(target.data[i]));
    if (std::isnan(got)) Fail("a target is not stored");
    const int64_t first = t + h.first - kBandEdge, last = t + h.first + h.kernel - 1 + kBandEdge;
    const bool apart = first >= 0 && first / kBand == last / kBand;
    if (bands && !apart) continue;
    if (!(std::fabs(got - want[i] - b) <= tolerance * (magnitude[i] + std::fabs(b)))) {
      std::printf("%zu: got %g, want %g\n", i, got, want[i] + b);
      Fail("a target is wrong");
    }
  }
  return true;
}

}  // namespace

int main() {
  int checked = 0, exact = 0;
  for (int i = 0; checked < 14 || exact < 4; ++i) {
    const int type = i % 4;  // float32, three products, and two of 16 bits
    Problem q;
    q.batch = Pick(1, 2);
    q.groups = Pick(1, 2);
    const bool forward = Pick(0, 1) == 0, bands = type < 2 && i % 8 < 2;
    const int source = 8 * Pick(1, Pick(0, 3) == 0 ? 8 : 4);
    const int target = Pick(1, Pick(0, 3) == 0 ? 70 : 32);
    q.in_channels = q.groups * (forward ? source : target);
    q.out_channels = q.groups * (forward ? target : source);
    q.h = MakeAxis(bands ? kBands * kBand : Pick(2, 14), Pick(1, 3), Pick(-1, 1), Pick(-1, 0));
    q.w = MakeAxis(Pick(100, 128), Pick(1, 4), Pick(-1, 2), Pick(-2, 1));
    if (Pick(0, 1) == 0) q.w.in = q.w.out = 128;
    if (Pick(0, 3) == 0) q.w = MakeAxis(Pick(230, 260), 3, 1, 1);
    q.precision = type == 1 ? Precision::kHighest : Precision::kDefault;
    const Pass pass = forward ? Pass::kForward : Pass::kGradInput;
    const int blocks = Pick(1, 6);
    // Odd ones of 16 bits leave no words to load.
    const int past[] = {i / 4 % 2 == 0 ? 0 : 2 * Pick(0, 3) + 1, i / 8 % 2 == 0 ? 0 : Pick(1, 7)};
    const bool ran = type < 2    ? Check<float>(q, pass, DType::kF32, bands, blocks, past)
                     : type == 2 ? Check<__nv_bfloat16>(q, pass, DType::kBF16, false, blocks, past)
                                 : Check<__half>(q, pass, DType::kF16, false, blocks, past);
    checked += ran;
    exact += ran && type == 1;
  }
  std::printf("rolling_kernel_test: %d problems, %d of them with three products\n", checked, exact);
  return 0;
}
