// The direct kernel of the weight gradient, emulated, against a plain loop on random problems.
#include "tests/cuda_emulation.h"
// The emulation comes first: it defines what CUDA's compiler does.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "cuda/kernels/direct_wgrad.cuh"

namespace transconv {
namespace {

using cuda::direct_wgrad::MakeParams;
using cuda::direct_wgrad::Params;
using cuda::direct_wgrad::WgradKernel;

template <typename T>
struct Tensors {
  std::vector<T> x, dy;
};

int64_t At(const Problem& q, bool is_x, int64_t n, int64_t c, int64_t row, int64_t column) {
  const int64_t channels = is_x ? q.in_channels : q.out_channels;
  const int64_t height = is_x ? q.h.in : q.h.out, width = is_x ? q.w.in : q.w.out;
  return q.layout == Layout::kNCHW ? ((n * channels + c) * height + row) * width + column
                                   : ((n * height + row) * width + column) * channels + c;
}

template <typename T>
std::vector<double> Expected(const Problem& q, const Tensors<T>& t) {
  const int64_t in = q.in_per_group(), out = q.out_per_group();
  std::vector<double> dw(q.in_channels * out * q.taps());
  for (int64_t ci = 0; ci < q.in_channels; ++ci) {
    for (int64_t co = 0; co < out; ++co) {
      for (int64_t ky = 0; ky < q.h.kernel; ++ky) {
        for (int64_t kx = 0; kx < q.w.kernel; ++kx) {
          double sum = 0;
          for (int64_t n = 0; n < q.batch; ++n) {
            for (int64_t y = 0; y < q.h.in; ++y) {
              const int64_t oy = y * q.h.stride + ky * q.h.dilation - q.h.crop_lo;
              if (oy < 0 || oy >= q.h.out) continue;
              for (int64_t x = 0; x < q.w.in; ++x) {
                const int64_t ox = x * q.w.stride + kx * q.w.dilation - q.w.crop_lo;
                if (ox < 0 || ox >= q.w.out) continue;
                sum += static_cast<double>(t.x[At(q, true, n, ci, y, x)]) *
                       static_cast<double>(t.dy[At(q, false, n, ci / in * out + co, oy, ox)]);
              }
            }
          }
          dw[((ci * out + co) * q.h.kernel + ky) * q.w.kernel + kx] = sum;
        }
      }
    }
  }
  return dw;
}

template <typename T, int RM, int RN>
void Run(const Params& p, const Tensors<T>& t, std::vector<T>* partial) {
  emulation::Launch(static_cast<unsigned>(p.plan.blocks * p.plan.splits), DirectWgradPlan::kThreads,
                    p.plan.shared_values * sizeof(T), [&] {
                      WgradKernel<T, T, RM, RN>(t.x.data(), t.dy.data(), partial->data(), p);
                    });
}

template <typename T>
bool Check(const Problem& q, std::mt19937& random) {
  DirectWgradPlan plan;
  if (const char* reason = MakeDirectWgradPlan(q, sizeof(T), sizeof(T), &plan)) {
    std::printf("declined: %s\n", reason);
    return false;
  }
  Tensors<T> t;
  t.x.resize(q.batch * q.in_channels * q.h.in * q.w.in);
  t.dy.resize(q.batch * q.out_channels * q.h.out * q.w.out);
  std::uniform_real_distribution<double> values(-1, 1);
  for (auto* v : {&t.x, &t.dy}) {
    for (T& e : *v) e = static_cast<T>(values(random));
  }
  const Params p = MakeParams(q, plan);
  std::vector<T> partial(p.size * plan.splits, std::numeric_limits<T>::quiet_NaN());
  if (plan.rm == 4) {
    plan.rn == 4 ? Run<T, 4, 4>(p, t, &partial) : Run<T, 4, 1>(p, t, &partial);
  } else {
    plan.rn == 4 ? Run<T, 1, 4>(p, t, &partial) : Run<T, 1, 1>(p, t, &partial);
  }
  const std::vector<double> expected = Expected(q, t);
  const double terms = static_cast<double>(q.batch * q.h.in * q.w.in);
  const double allowed = 4 * std::numeric_limits<T>::epsilon() * terms;
  for (int64_t i = 0; i < p.size; ++i) {
    double sum = 0;
    for (int64_t s = 0; s < plan.splits; ++s) sum += partial[s * p.size + i];
    if (!(std::abs(sum - expected[i]) <= allowed)) {
      std::printf(
          "dw[%lld]: %g instead of %g; n%lld %lld>%lld groups %lld, in %lldx%lld out %lldx%lld, "
          "kernel %lldx%lld stride %lldx%lld dilation %lldx%lld crop %lld,%lld layout %d\n",
          static_cast<long long>(i), sum, expected[i], static_cast<long long>(q.batch),
          static_cast<long long>(q.in_channels), static_cast<long long>(q.out_channels),
          static_cast<long long>(q.groups), static_cast<long long>(q.h.in),
          static_cast<long long>(q.w.in), static_cast<long long>(q.h.out),
          static_cast<long long>(q.w.out), static_cast<long long>(q.h.kernel),
          static_cast<long long>(q.w.kernel), static_cast<long long>(q.h.stride),
          static_cast<long long>(q.w.stride), static_cast<long long>(q.h.dilation),
          static_cast<long long>(q.w.dilation), static_cast<long long>(q.h.crop_lo),
          static_cast<long long>(q.w.crop_lo), static_cast<int>(q.layout));
      return false;
    }
  }
  return true;
}

Axis RandomAxis(std::mt19937& random, int64_t most) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (;;) {
    Axis a;
    a.in = pick(1, most);
    a.kernel = pick(1, 5);
    a.stride = pick(1, 5);
    a.dilation = pick(1, 3);
    a.crop_lo = pick(-2, 3);
    a.out = (a.in - 1) * a.stride + (a.kernel - 1) * a.dilation + 1 - a.crop_lo - pick(-3, 3);
    if (a.out > 0) return a;
  }
}

Problem RandomProblem(std::mt19937& random) {
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Problem q;
  q.batch = pick(1, 3);
  q.groups = pick(1, 3);
  const bool many = pick(0, 3) == 0;
  q.in_channels = q.groups * (pick(0, 2) == 0 ? 1 : pick(1, many ? 40 : 9));
  q.out_channels = q.groups * (pick(0, 2) == 0 ? 1 : pick(1, many ? 40 : 9));
  q.h = RandomAxis(random, 9);
  q.w = RandomAxis(random, 40);
  if (pick(0, 3) == 0) std::swap(q.h, q.w);
  q.layout = pick(0, 2) == 0 ? Layout::kNHWC : Layout::kNCHW;
  return q;
}

}  // namespace
}  // namespace transconv

int main() {
  using namespace transconv;
  std::mt19937 random(20);
  constexpr int kProblems = 60;
  for (int i = 0; i < kProblems; ++i) {
    const Problem q = RandomProblem(random);
    const bool right = i % 3 == 2 ? Check<double>(q, random) : Check<float>(q, random);
    if (!right) return EXIT_FAILURE;
  }
  // A kernel of more taps than a block has threads.
  Problem q;
  q.batch = 2;
  q.groups = q.in_channels = q.out_channels = 2;
  q.h = {3, 100, 40, 20, 1, 4};
  q.w = {5, 108, 40, 20, 1, 6};
  if (!Check<float>(q, random)) return EXIT_FAILURE;
  std::printf("direct_wgrad: %d problems\n", kProblems + 1);
  return EXIT_SUCCESS;
}
