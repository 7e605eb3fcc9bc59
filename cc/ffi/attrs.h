// Attributes of our custom calls: the one place where their names are spelled in C++.
// `ConvTransposeSpec.to_attrs()` in jax_transconv/spec.py is the Python side.
#ifndef TRANSCONV_FFI_ATTRS_H_
#define TRANSCONV_FFI_ATTRS_H_

#include <cstdint>

#include "core/algorithms.h"
#include "xla/ffi/api/ffi.h"

namespace transconv {

// Sizes are not repeated here: every handler reads them off its buffers, so that a lowered program
// stays right for a symbolic or sharded batch.
struct GeometryAttrs {
  int64_t stride_h, stride_w;
  int64_t dilation_h, dilation_w;
  int64_t crop_lo_h, crop_hi_h, crop_lo_w, crop_hi_w;
  int64_t groups;
  int32_t layout;     // transconv::Layout
  int32_t precision;  // transconv::Precision
};

}  // namespace transconv

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    transconv::GeometryAttrs, xla::ffi::StructMember<int64_t>("stride_h"),
    xla::ffi::StructMember<int64_t>("stride_w"), xla::ffi::StructMember<int64_t>("dilation_h"),
    xla::ffi::StructMember<int64_t>("dilation_w"), xla::ffi::StructMember<int64_t>("crop_lo_h"),
    xla::ffi::StructMember<int64_t>("crop_hi_h"), xla::ffi::StructMember<int64_t>("crop_lo_w"),
    xla::ffi::StructMember<int64_t>("crop_hi_w"), xla::ffi::StructMember<int64_t>("groups"),
    xla::ffi::StructMember<int32_t>("layout"), xla::ffi::StructMember<int32_t>("precision"));

XLA_FFI_REGISTER_ENUM_ATTR_DECODING(transconv::Algorithm);

#endif  // TRANSCONV_FFI_ATTRS_H_
