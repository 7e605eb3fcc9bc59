// A tensor as a kernel that is emulated has it.
#ifndef TRANSCONV_TESTS_GUARDED_TENSOR_H_
#define TRANSCONV_TESTS_GUARDED_TENSOR_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <vector>

namespace transconv {

// A tensor between what must be neither read nor written; it starts `shift` elements behind a
// multiple of 16 bytes.
template <typename T>
class Tensor {
 public:
  Tensor(size_t size, size_t shift, float outside)
      : outside_(static_cast<T>(outside)), size_(size), begin_(kGuard + shift) {
    Block block;
    std::fill(std::begin(block.v), std::end(block.v), outside_);
    memory_.resize((size + shift + 2 * kGuard) * sizeof(T) / 16 + 1, block);
  }
  T* data() { return memory_[0].v + begin_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  bool Kept() {
    const size_t all = memory_.size() * 16 / sizeof(T);
    for (size_t i = 0; i < all; ++i) {
      const bool inside = i >= begin_ && i < begin_ + size_;
      if (!inside && std::memcmp(memory_[0].v + i, &outside_, sizeof(T)) != 0) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  struct alignas(16) Block {
    T v[16 / sizeof(T)];
  };
  T outside_;
  size_t size_, begin_;
  std::vector<Block> memory_;
};

}  // namespace transconv

#endif  // TRANSCONV_TESTS_GUARDED_TENSOR_H_
