// Size arithmetic that reports overflow instead of wrapping.
#ifndef TRANSCONV_CORE_CHECKED_MATH_H_
#define TRANSCONV_CORE_CHECKED_MATH_H_

#include <cstdint>
#include <initializer_list>
#include <limits>

namespace transconv {

// A non-negative size. Once it has overflowed, or met a negative factor, it stays invalid.
class CheckedSize {
 public:
  constexpr CheckedSize(int64_t value) : value_(value), valid_(value >= 0) {}  // NOLINT: implicit

  constexpr bool valid() const { return valid_; }
  // The size, or -1.
  constexpr int64_t value() const { return valid_ ? value_ : -1; }

  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    if (!a.valid_ || !b.valid_) return Invalid();
    if (a.value_ != 0 && b.value_ > std::numeric_limits<int64_t>::max() / a.value_) {
      return Invalid();
    }
    return CheckedSize(a.value_ * b.value_);
  }
  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    if (!a.valid_ || !b.valid_) return Invalid();
    if (b.value_ > std::numeric_limits<int64_t>::max() - a.value_) return Invalid();
    return CheckedSize(a.value_ + b.value_);
  }

 private:
  static constexpr CheckedSize Invalid() { return CheckedSize(-1); }

  int64_t value_;
  bool valid_;
};

constexpr CheckedSize CheckedProduct(std::initializer_list<int64_t> factors) {
  CheckedSize product = 1;
  for (int64_t factor : factors) product = product * CheckedSize(factor);
  return product;
}

// Rounds up to a multiple of 64 bytes, the alignment we want of every part of a workspace.
constexpr CheckedSize AlignUp64(CheckedSize size) {
  const CheckedSize padded = size + CheckedSize(63);
  return padded.valid() ? CheckedSize(padded.value() / 64 * 64) : padded;
}

}  // namespace transconv

#endif  // TRANSCONV_CORE_CHECKED_MATH_H_
