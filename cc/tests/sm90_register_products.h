// In place of cuda/primitives/wgmma_registers.cuh, as sm90_products.h has the others: products
// whose left operand lies in registers, which must stay as they are until the product is waited
// for.
#ifndef TRANSCONV_TESTS_SM90_REGISTER_PRODUCTS_H_
#define TRANSCONV_TESTS_SM90_REGISTER_PRODUCTS_H_

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "sm90_emulation.h"
#include "sm90_products.h"

namespace transconv::cuda::tf32 {

// In place of cuda/primitives/tf32.cuh: an element type's bits, and how they become an operand.
template <typename T>
struct Element {
  using Type = uint16_t;
};
template <>
struct Element<float> {
  using Type = float;
  // To the nearest, ties to even, as cvt.rn.
  static float Load(float v) {
    const uint32_t bits = __float_as_uint(v);
    if (!std::isfinite(v)) return v;
    return __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
  }
};

}  // namespace transconv::cuda::tf32

namespace transconv::cuda::wgmma {

// The values of one 32-bit word: two of 16 bits, or one in TF32.
template <typename Number>
struct WordOf {
  static constexpr int kValues = 2;
  static void Values(uint32_t word, double* to) {
    const float* const values = ValuesOfBits<Number>();
    to[0] = values[word & 0xffff];
    to[1] = values[word >> 16];
  }
};
template <>
struct WordOf<float> {
  static constexpr int kValues = 1;
  static void Values(uint32_t word, double* to) {
    const bool finite = (word >> 23 & 0xff) != 0xff;
    if (finite && (word & 0x1fff) != 0) emulation::Fail("an operand is not rounded to TF32");
    to[0] = static_cast<double>(emulation::BitsOf<float>(word));
  }
};

// Where the quads of a warp meet; two, in turns, as a lane may be one product ahead.
struct RegisterOperands {
  uint32_t words[2][emulation::kMostThreads][4];
  unsigned products[emulation::kMostThreads];
};
inline RegisterOperands register_operands[emulation::kMostBlocks];

inline uint64_t SwizzledDescriptor() {
  return uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16;
}
inline uint64_t SwizzledRowsDescriptor(uint32_t chunk) {
  return Descriptor(chunk, 1024) | uint64_t{1} << 62;
}
constexpr int kSwizzledRow = 128;
struct Columns : Operand {
  bool swizzled, rows;
  Columns(uint64_t descriptor, bool of_rows)
      : Operand(descriptor, !of_rows), swizzled(descriptor >> 62 == 1), rows(of_rows) {
    if (descriptor >> 62 > 1) emulation::Fail("no such swizzle");
    if (rows && !swizzled) emulation::Fail("rows are swizzled");
  }
  // Of rows, where one value is.
  size_t At(int column, int k) const {
    const size_t c = static_cast<size_t>(column), d = static_cast<size_t>(k);
    const size_t at = start + c / 64 * chunk + c % 64 * 2 + d % 8 * 128 + d / 8 * stride;
    return at ^ (at >> 7 & 7) << 4;
  }
  size_t ChunkAt(int column, uint32_t half) const {
    const size_t row = static_cast<size_t>(column) % 8, rows = static_cast<size_t>(column) / 8;
    if (!swizzled) return start + 16 * row + rows * stride + half * chunk;
    const size_t at = start + 128 * row + rows * stride + 16 * half;
    return at ^ (at >> 7 & 7) << 4;
  }
};

// The eight words of a column's step.
inline std::array<uint32_t, 8> WordsOfColumn(const Columns& b, int column) {
  std::array<uint32_t, 8> words;
  if (b.rows) {
    for (int k = 0; k < 16; ++k) {
      const uint32_t at = static_cast<uint32_t>(b.At(column, k));
      std::memcpy(reinterpret_cast<uint8_t*>(words.data()) + 2 * k, emulation::Shared(at, 2, 2), 2);
    }
    return words;
  }
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    const size_t at = b.ChunkAt(column, chunk);
    std::memcpy(&words[4 * chunk], emulation::Shared(static_cast<uint32_t>(at), 16, 16), 16);
  }
  return words;
}

template <typename Number, int N, bool ROWS = false>
struct MultiplyRegisters {
  static void Run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t descriptor, int accumulate) {
    auto& all = register_operands[emulation::rank];
    const unsigned thread = threadIdx.x, turn = all.products[thread]++ % 2;
    std::memcpy(all.words[turn][thread], a, sizeof(a));
    emulation::SyncWarp();
    // This lane's two rows: of lane t of its quad, words t and t + 4.
    std::array<std::array<uint32_t, 8>, 2> rows;
    for (unsigned half = 0; half < 2; ++half) {
      for (unsigned word = 0; word < 8; ++word) {
        rows[half][word] = all.words[turn][thread / 4 * 4 + word % 4][half + word / 4 * 2];
      }
    }
    const Columns b(descriptor, ROWS);
    float* const to = d;
    const uint32_t* const registers = a;
    const std::array<uint32_t, 4> own = {a[0], a[1], a[2], a[3]};
    emulation::Mine().products.open.push_back([=, b_sum = Sum(b)] {
      const bool kept = std::memcmp(registers, own.data(), sizeof(own)) == 0;
      if (!kept || Sum(b) != b_sum) {
        emulation::Fail("an operand changes before its product is waited for");
      }
      Product(to, rows, b, accumulate != 0);
    });
  }

  // This lane's share of the columns.
  static uint64_t Sum(const Columns& b) {
    uint64_t sum = 0;
    for (int column = threadIdx.x % emulation::kWarp; column < N; column += emulation::kWarp) {
      for (const uint32_t word : WordsOfColumn(b, column)) sum = sum * 0x9e3779b97f4a7c15u + word;
    }
    return sum;
  }

  static void Product(float* d, const std::array<std::array<uint32_t, 8>, 2>& rows,
                      const Columns& b, bool accumulate) {
    using Word = WordOf<Number>;
    constexpr int kDepth = 8 * Word::kValues;
    double left[2][kDepth], right[kDepth];
    for (size_t half = 0; half < 2; ++half) {
      for (size_t word = 0; word < 8; ++word) {
        Word::Values(rows[half][word], &left[half][word * Word::kValues]);
      }
    }
    for (int i = 0; i < N / 4; ++i) {
      const int lane = threadIdx.x % emulation::kWarp;
      const auto words = WordsOfColumn(b, 8 * (i / 2) + 2 * (lane % 4) + i % 2);
      for (size_t word = 0; word < 8; ++word) {
        Word::Values(words[word], &right[word * Word::kValues]);
      }
      for (int half = 0; half < 2; ++half) {
        double sum = 0;
        for (int k = 0; k < kDepth; ++k) sum += left[half][k] * right[k];
        float& to = d[4 * (i / 2) + 2 * half + i % 2];
        to = static_cast<float>(accumulate ? to + sum : sum);
      }
    }
  }
};

}  // namespace transconv::cuda::wgmma
#define TRANSCONV_CUDA_PRIMITIVES_WGMMA_REGISTERS_CUH_

#endif  // TRANSCONV_TESTS_SM90_REGISTER_PRODUCTS_H_
