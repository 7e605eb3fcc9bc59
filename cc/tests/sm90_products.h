// In place of cuda/primitives/wgmma.cuh, as sm90_emulation.h has it: a lane computes its own part
// of a warpgroup's product when it waits for it.
#ifndef TRANSCONV_TESTS_SM90_PRODUCTS_H_
#define TRANSCONV_TESTS_SM90_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "sm90_emulation.h"

namespace transconv::cuda::wgmma {

constexpr int kRows = 64, kDepth = 16;  // of one product's left operand

inline uint64_t Descriptor(uint32_t chunk, uint32_t stride) {
  for (const uint32_t distance : {chunk, stride}) {
    if (distance % 16 != 0 || distance >> 18 != 0) emulation::Fail("a descriptor cannot say this");
  }
  return static_cast<uint64_t>(chunk >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32;
}
inline void Fence() { emulation::SyncWarp(); }
inline void Commit() {
  emulation::SyncWarp();
  emulation::Mine().products.Commit();
}
template <int kPending>
void Wait() {
  emulation::Mine().products.Wait(kPending);
  emulation::SyncWarp();
}
template <int N>
void Pin(float (&)[N]) {}

template <typename Number>
const float* ValuesOfBits() {
  static const std::vector<float> values = [] {
    std::vector<float> all(1 << 16);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<float>(emulation::BitsOf<Number>(static_cast<uint16_t>(i)));
    }
    return all;
  }();
  return values.data();
}

// An operand as its descriptor has it: K-major, where a row's values of k lie side by side, or
// MN-major, where those of a k do.
struct Operand {
  uint32_t start, chunk, stride;
  size_t row_step, k_step;
  Operand(uint64_t descriptor, bool k_major)
      : start(Field(descriptor, 0)),
        chunk(Field(descriptor, 16)),
        stride(Field(descriptor, 32)),
        row_step(k_major ? 16 : 2),
        k_step(k_major ? 2 : 16) {}
  static uint32_t Field(uint64_t descriptor, int shift) {
    const uint32_t field = static_cast<uint32_t>(descriptor >> shift & 0xffff);
    if (field > 0x3fff) emulation::Fail("a descriptor's number is too large");
    return field << 4;
  }
  void Row(int row, uint16_t (&to)[kDepth]) const {
    for (int half = 0; half < 2; ++half) {
      const size_t at = start + row % 8 * row_step + row / 8 * stride + half * chunk;
      const uint8_t* from =
          emulation::Shared(static_cast<uint32_t>(at), 7 * k_step + sizeof(uint16_t), 2);
      for (int k = 0; k < 8; ++k, from += k_step) std::memcpy(&to[8 * half + k], from, 2);
    }
  }
  // This lane's share of `rows`.
  uint64_t Sum(int rows) const {
    uint64_t sum = 0;
    for (int row = threadIdx.x % emulation::kWarp; row < rows; row += emulation::kWarp) {
      uint16_t values[kDepth];
      Row(row, values);
      for (const uint16_t v : values) sum = sum * 0x9e3779b97f4a7c15u + v;
    }
    return sum;
  }
};

// A lane's own part of D[64 x n] = A B, or += where it accumulates.
template <typename Number>
void Product(float* d, int n, const Operand& a, const Operand& b, bool accumulate) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const float* const values = ValuesOfBits<Number>();
  uint16_t bits[kDepth];
  double rows[2][kDepth];
  for (int half = 0; half < 2; ++half) {
    a.Row(first + 8 * half, bits);
    for (int k = 0; k < kDepth; ++k) rows[half][k] = values[bits[k]];
  }
  for (int i = 0; i < n / 4; ++i) {
    b.Row(8 * (i / 2) + 2 * (lane % 4) + i % 2, bits);
    double sums[2] = {};
    for (int k = 0; k < kDepth; ++k) {
      const double v = values[bits[k]];
      for (int half = 0; half < 2; ++half) sums[half] += rows[half][k] * v;
    }
    for (int half = 0; half < 2; ++half) {
      float& to = d[4 * (i / 2) + 2 * half + i % 2];
      to = static_cast<float>(accumulate ? to + sums[half] : sums[half]);
    }
  }
}
template <typename Number, int N>
void Start(float (&d)[N / 2], const Operand& a, const Operand& b, bool accumulate) {
  const uint64_t sums[] = {a.Sum(kRows), b.Sum(N)};
  float* const to = d;
  emulation::Mine().products.open.push_back([=, a_sum = sums[0], b_sum = sums[1]] {
    if (a.Sum(kRows) != a_sum || b.Sum(N) != b_sum) {
      emulation::Fail("an operand changes before its product is waited for");
    }
    Product<Number>(to, N, a, b, accumulate);
  });
}

template <typename Number, int N>
struct Multiply {
  static void Run(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {
    Start<Number, N>(d, Operand(a, true), Operand(b, true), accumulate != 0);
  }
};
template <typename Number, int N>
struct MultiplyRows {
  static void Run(float (&d)[N / 2], uint64_t a, uint64_t b) {
    Start<Number, N>(d, Operand(a, false), Operand(b, false), true);
  }
};
template <typename Number, int TILES>
struct MultiplyPixels {
  static void Run(float (&d)[TILES][32], uint64_t a, uint64_t b) {
    MultiplyRows<Number, 64 * TILES>::Run(reinterpret_cast<float (&)[32 * TILES]>(d), a, b);
  }
};

}  // namespace transconv::cuda::wgmma
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_CUH_

#endif  // TRANSCONV_TESTS_SM90_PRODUCTS_H_
