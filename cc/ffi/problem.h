// From the attributes and buffers of a custom call to a checked transconv::Problem.
// The handlers of every backend start here; Python has checked the same facts, but a lowered
// program may come from anywhere.
#ifndef TRANSCONV_FFI_PROBLEM_H_
#define TRANSCONV_FFI_PROBLEM_H_

#include <cstdint>
#include <limits>
#include <string>

#include "core/checked_math.h"
#include "core/dtypes.h"
#include "core/geometry.h"
#include "ffi/attrs.h"
#include "ffi/check.h"

namespace transconv {

// The four tensors that each pass has in some role: `x` is x or dx, `w` is w or dw, `y` is y or dy,
// and `vector` is bias or db (null in grad_input, which has neither).
struct PassBuffers {
  Pass pass;
  NamedBuffer x;
  NamedBuffer w;
  NamedBuffer y;
  const NamedBuffer* vector = nullptr;
};

constexpr const char* OpName(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kGradInput:
      return "grad_input";
    case Pass::kGradWeight:
      return "grad_weight";
  }
  return "unknown pass";
}

namespace internal {

// in, out, kernel, stride, dilation and both crops of one axis must agree.
inline xla::ffi::Error CheckAxis(const char* op, const char* axis_name, const Axis& axis,
                                 int64_t crop_hi, const NamedBuffer& y) {
  const std::string suffix = std::string("_") + axis_name;
  TRANSCONV_RETURN_IF_ERROR(CheckAtLeast(op, ("stride" + suffix).c_str(), axis.stride, 1));
  TRANSCONV_RETURN_IF_ERROR(CheckAtLeast(op, ("dilation" + suffix).c_str(), axis.dilation, 1));
  TRANSCONV_RETURN_IF_ERROR(CheckAtLeast(op, ("input size" + suffix).c_str(), axis.in, 1));
  TRANSCONV_RETURN_IF_ERROR(CheckAtLeast(op, ("kernel size" + suffix).c_str(), axis.kernel, 1));
  const CheckedSize full = CheckedProduct({axis.in - 1, axis.stride}) +
                           CheckedProduct({axis.dilation, axis.kernel - 1}) + CheckedSize(1);
  // A quarter of the range leaves room for every sum that the kernels form from these.
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 4;
  if (!full.valid() || full.value() > kLimit || axis.crop_lo > kLimit || axis.crop_lo < -kLimit ||
      crop_hi > kLimit || crop_hi < -kLimit) {
    return BadArgument(op, "sizes along axis " + std::string(axis_name) + " overflow 64 bits");
  }
  return CheckEqual(op, y, axis_name[0] == 'h' ? "height" : "width", axis.out,
                    full.value() - axis.crop_lo - crop_hi);
}

}  // namespace internal

// Fills `problem` and `dtype`, or says which argument is wrong, what was expected and what was
// found.
inline xla::ffi::Error MakeProblem(const PassBuffers& buffers, const GeometryAttrs& attrs,
                                   Problem* problem, DType* dtype) {
  const char* op = OpName(buffers.pass);
  const NamedBuffer& x = buffers.x;
  const NamedBuffer& w = buffers.w;
  const NamedBuffer& y = buffers.y;
  TRANSCONV_RETURN_IF_ERROR(CheckRank(op, x, 4));
  TRANSCONV_RETURN_IF_ERROR(CheckRank(op, w, 4));
  TRANSCONV_RETURN_IF_ERROR(CheckRank(op, y, 4));
  TRANSCONV_RETURN_IF_ERROR(CheckFloatType(op, x, dtype));
  TRANSCONV_RETURN_IF_ERROR(CheckSameType(op, w, x));
  TRANSCONV_RETURN_IF_ERROR(CheckSameType(op, y, x));

  if (attrs.layout != static_cast<int32_t>(Layout::kNCHW) &&
      attrs.layout != static_cast<int32_t>(Layout::kNHWC)) {
    return BadArgument(op,
                       "layout must be 0 (NCHW) or 1 (NHWC), got " + std::to_string(attrs.layout));
  }
  if (attrs.precision < static_cast<int32_t>(Precision::kDefault) ||
      attrs.precision > static_cast<int32_t>(Precision::kHighest)) {
    return BadArgument(op, "precision must be 0, 1 or 2, got " + std::to_string(attrs.precision));
  }
  TRANSCONV_RETURN_IF_ERROR(CheckAtLeast(op, "groups", attrs.groups, 1));

  Problem p;
  p.layout = static_cast<Layout>(attrs.layout);
  p.precision = static_cast<Precision>(attrs.precision);
  p.groups = attrs.groups;
  const bool channels_last = p.layout == Layout::kNHWC;
  const size_t c = channels_last ? 3 : 1, h = channels_last ? 1 : 2, v = channels_last ? 2 : 3;
  p.batch = x.dim(0);
  p.in_channels = x.dim(c);
  p.out_channels = y.dim(c);
  p.h = {x.dim(h), y.dim(h), w.dim(2), attrs.stride_h, attrs.dilation_h, attrs.crop_lo_h};
  p.w = {x.dim(v), y.dim(v), w.dim(3), attrs.stride_w, attrs.dilation_w, attrs.crop_lo_w};

  TRANSCONV_RETURN_IF_ERROR(CheckEqual(op, y, "batch", y.dim(0), p.batch));
  TRANSCONV_RETURN_IF_ERROR(CheckEqual(op, w, "input channels", w.dim(0), p.in_channels));
  if (p.in_channels % p.groups != 0 || p.out_channels % p.groups != 0) {
    return BadArgument(op, "groups must divide the channels of " + std::string(x.name) + " and " +
                               y.name + ", got groups " + std::to_string(p.groups) + ", channels " +
                               std::to_string(p.in_channels) + " and " +
                               std::to_string(p.out_channels));
  }
  TRANSCONV_RETURN_IF_ERROR(
      CheckEqual(op, w, "output channels per group", w.dim(1), p.out_per_group()));
  TRANSCONV_RETURN_IF_ERROR(internal::CheckAxis(op, "h", p.h, attrs.crop_hi_h, y));
  TRANSCONV_RETURN_IF_ERROR(internal::CheckAxis(op, "w", p.w, attrs.crop_hi_w, y));

  if (buffers.vector != nullptr) {
    const NamedBuffer& b = *buffers.vector;
    TRANSCONV_RETURN_IF_ERROR(CheckRank(op, b, 1));
    TRANSCONV_RETURN_IF_ERROR(CheckSameType(op, b, x));
    if (b.dim(0) != 0) {  // absent otherwise
      TRANSCONV_RETURN_IF_ERROR(CheckEqual(op, b, "length", b.dim(0), p.out_channels));
    }
  }
  *problem = p;
  return xla::ffi::Error::Success();
}

}  // namespace transconv

#endif  // TRANSCONV_FFI_PROBLEM_H_
