// A small checker for the buffers of a custom call: the FFI headers of our floor have none.
#ifndef TRANSCONV_FFI_CHECK_H_
#define TRANSCONV_FFI_CHECK_H_

#include <cstdint>
#include <string>
#include <utility>

#include "core/dtypes.h"
#include "xla/ffi/api/ffi.h"

#define TRANSCONV_RETURN_IF_ERROR(expr)                    \
  do {                                                     \
    ::xla::ffi::Error transconv_error = (expr);            \
    if (transconv_error.failure()) return transconv_error; \
  } while (false)

namespace transconv {

// A buffer and the name it has in messages.
struct NamedBuffer {
  const char* name;
  xla::ffi::AnyBuffer buffer;

  int64_t rank() const { return static_cast<int64_t>(buffer.dimensions().size()); }
  int64_t dim(size_t i) const { return buffer.dimensions()[i]; }
};

inline xla::ffi::Error BadArgument(const char* op, std::string what) {
  return xla::ffi::Error::InvalidArgument(std::string("jax_transconv.") + op + ": " +
                                          std::move(what));
}

inline std::string Dims(const NamedBuffer& b) {
  std::string text = "(";
  for (int64_t i = 0; i < b.rank(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(b.dim(static_cast<size_t>(i)));
  }
  return text + (b.rank() == 1 ? ",)" : ")");
}

inline xla::ffi::Error CheckRank(const char* op, const NamedBuffer& b, int64_t rank) {
  if (b.rank() == rank) return xla::ffi::Error::Success();
  return BadArgument(op, std::string(b.name) + " must have rank " + std::to_string(rank) +
                             ", got shape " + Dims(b));
}

// One equality between a number found in `b` and the number that the rest of the call implies.
inline xla::ffi::Error CheckEqual(const char* op, const NamedBuffer& b, const char* what,
                                  int64_t found, int64_t expected) {
  if (found == expected) return xla::ffi::Error::Success();
  return BadArgument(op, std::string(b.name) + " must have " + what + " " +
                             std::to_string(expected) + ", got " + std::to_string(found) +
                             " in shape " + Dims(b));
}

inline xla::ffi::Error CheckAtLeast(const char* op, const char* name, int64_t found,
                                    int64_t least) {
  if (found >= least) return xla::ffi::Error::Success();
  return BadArgument(op, std::string(name) + " must be at least " + std::to_string(least) +
                             ", got " + std::to_string(found));
}

inline xla::ffi::Error CheckFloatType(const char* op, const NamedBuffer& b, DType* dtype) {
  switch (b.buffer.element_type()) {
    case xla::ffi::DataType::F16:
      *dtype = DType::kF16;
      return xla::ffi::Error::Success();
    case xla::ffi::DataType::BF16:
      *dtype = DType::kBF16;
      return xla::ffi::Error::Success();
    case xla::ffi::DataType::F32:
      *dtype = DType::kF32;
      return xla::ffi::Error::Success();
    case xla::ffi::DataType::F64:
      *dtype = DType::kF64;
      return xla::ffi::Error::Success();
    default:
      return BadArgument(op, std::string(b.name) +
                                 " must be float16, bfloat16, float32 or float64, got XLA type " +
                                 std::to_string(static_cast<int>(b.buffer.element_type())));
  }
}

inline xla::ffi::Error CheckSameType(const char* op, const NamedBuffer& b,
                                     const NamedBuffer& like) {
  if (b.buffer.element_type() == like.buffer.element_type()) return xla::ffi::Error::Success();
  return BadArgument(
      op, std::string(b.name) + " must have the type of " + like.name + " (XLA type " +
              std::to_string(static_cast<int>(like.buffer.element_type())) + "), got XLA type " +
              std::to_string(static_cast<int>(b.buffer.element_type())));
}

inline xla::ffi::Error CheckWorkspace(const char* op, const NamedBuffer& workspace,
                                      int64_t needed) {
  if (needed < 0) {
    return BadArgument(op, "the size of the workspace overflows 64 bits");
  }
  if (workspace.buffer.element_type() != xla::ffi::DataType::U8) {
    return BadArgument(op, std::string(workspace.name) + " must be uint8, got XLA type " +
                               std::to_string(static_cast<int>(workspace.buffer.element_type())));
  }
  const int64_t found = static_cast<int64_t>(workspace.buffer.element_count());
  if (found >= needed) return xla::ffi::Error::Success();
  return BadArgument(op, std::string(workspace.name) + " must hold at least " +
                             std::to_string(needed) + " bytes, got " + std::to_string(found));
}

}  // namespace transconv

#endif  // TRANSCONV_FFI_CHECK_H_
