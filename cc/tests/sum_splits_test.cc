// The sums of splits, emulated: every number of threads for an entry, and four entries a thread.
// Values are small integers, so that every order of summation gives the same.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "cuda_emulation.h"
#include "vector_types.h"
// After the emulation.
#include "cuda/kernels/sum_splits.cuh"

namespace transconv {
namespace {

template <typename T>
struct Sums {
  using Sum = typename cuda::Accumulator<T>::type;
  static constexpr size_t kGuard = 8;

  int64_t size, splits;
  struct alignas(16) Four {
    Sum value[16 / sizeof(Sum)];
  };
  std::vector<Four> partial;
  std::vector<T> result;
  std::vector<float> expected;

  Sums(int64_t of_size, int64_t of_splits, std::mt19937* random)
      : size(of_size),
        splits(of_splits),
        partial(static_cast<size_t>(size * splits) * sizeof(Sum) / 16 + 1),
        result(static_cast<size_t>(size) + 2 * kGuard, static_cast<T>(77.f)),
        expected(static_cast<size_t>(size), 0.f) {
    for (int64_t i = 0; i < size * splits; ++i) {
      const int value = static_cast<int>((*random)() % 9) - 4;
      sums()[i] = static_cast<Sum>(value);
      expected[static_cast<size_t>(i % size)] += static_cast<float>(value);
    }
  }
  Sum* sums() { return partial[0].value; }
  T* to() { return &result[kGuard]; }

  void Check(const char* what) const {
    for (size_t i = 0; i < result.size(); ++i) {
      const bool inside = i >= kGuard && i < kGuard + expected.size();
      const float want = inside ? expected[i - kGuard] : 77.f;
      if (static_cast<float>(result[i]) == want) continue;
      std::printf("sum_splits_test: %s, %lld entries, %lld splits: [%zu] is %g, not %g\n", what,
                  static_cast<long long>(size), static_cast<long long>(splits), i - kGuard,
                  static_cast<double>(static_cast<float>(result[i])), static_cast<double>(want));
      std::exit(EXIT_FAILURE);
    }
  }
};

template <typename T, int PARTS>
void CheckParts(int64_t size, int64_t splits, std::mt19937* random) {
  Sums<T> sums(size, splits, random);
  // Fewer blocks than there are entries for: blocks go on.
  emulation::Launch(2, cuda::kSumSplitsThreads, 0,
                    [&] { cuda::SumSplitsKernel<T, PARTS>(sums.sums(), sums.to(), size, splits); });
  sums.Check("parts");
}

template <typename T>
void CheckType(std::mt19937* random) {
  for (const int64_t size : {1, 255, 700, 1300}) {
    for (const int64_t splits : {1, 2, 5, 33}) {
      CheckParts<T, 1>(size, splits, random);
      CheckParts<T, 8>(size, splits, random);
      CheckParts<T, 32>(size, splits, random);
    }
  }
  if constexpr (sizeof(T) < sizeof(double)) {
    for (const int64_t fours : {1, 256, 300}) {
      for (const int64_t splits : {1, 3, 4, 9}) {
        Sums<T> sums(4 * fours, splits, random);
        emulation::Launch(
            static_cast<unsigned>((fours + cuda::kSumSplitsThreads - 1) / cuda::kSumSplitsThreads),
            cuda::kSumSplitsThreads, 0, [&] {
              cuda::SumSplitsOfFoursKernel<T>(reinterpret_cast<const float4*>(sums.sums()),
                                              sums.to(), fours, splits);
            });
        sums.Check("fours");
      }
    }
  }
}

}  // namespace
}  // namespace transconv

int main() {
  std::mt19937 random(41);
  transconv::CheckType<float>(&random);
  transconv::CheckType<double>(&random);
  transconv::CheckType<__half>(&random);
  transconv::CheckType<__nv_bfloat16>(&random);
  std::printf("sum_splits_test: four types, one to 33 splits\n");
  return EXIT_SUCCESS;
}
