// Element types that cross the language boundary.
#ifndef TRANSCONV_CORE_DTYPES_H_
#define TRANSCONV_CORE_DTYPES_H_

#include <cstddef>
#include <cstdint>

namespace transconv {

enum class DType : int32_t { kF16 = 0, kBF16 = 1, kF32 = 2, kF64 = 3 };

constexpr size_t ByteWidth(DType t) { return t == DType::kF64 ? 8 : (t == DType::kF32 ? 4 : 2); }

}  // namespace transconv

#endif  // TRANSCONV_CORE_DTYPES_H_
