# transconv::xla_ffi: the header-only XLA FFI API that ships inside jaxlib.
#
# A handler built against FFI 0.x is rejected by every runtime older than 0.x, and the rejection takes
# the whole JAX backend down. Hence the ceiling: a build against newer headers must be asked for.

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import jax.ffi; print(jax.ffi.include_dir())"
  OUTPUT_STRIP_TRAILING_WHITESPACE
  OUTPUT_VARIABLE TRANSCONV_XLA_INCLUDE_DIR
  RESULT_VARIABLE transconv_jax_status
  ERROR_VARIABLE transconv_jax_stderr)
if(NOT transconv_jax_status EQUAL 0)
  message(FATAL_ERROR
    "jax_transconv: ${Python_EXECUTABLE} cannot import jax, whose wheel carries the FFI headers.\n"
    "${transconv_jax_stderr}")
endif()

set(transconv_c_api "${TRANSCONV_XLA_INCLUDE_DIR}/xla/ffi/api/c_api.h")
file(STRINGS "${transconv_c_api}" transconv_minor_line REGEX "#define XLA_FFI_API_MINOR ")
string(REGEX MATCH "[0-9]+$" TRANSCONV_FFI_MINOR "${transconv_minor_line}")
if(TRANSCONV_FFI_MINOR STREQUAL "")
  message(FATAL_ERROR "jax_transconv: no XLA_FFI_API_MINOR in ${transconv_c_api}")
endif()
if(TRANSCONV_FFI_MINOR GREATER TRANSCONV_FFI_MAX_MINOR)
  message(FATAL_ERROR
    "jax_transconv: the FFI headers of the build's jaxlib have minor version "
    "${TRANSCONV_FFI_MINOR}, above the ceiling ${TRANSCONV_FFI_MAX_MINOR}: the module would be "
    "rejected by every older jaxlib.\n"
    "Build in isolation (`pip install .`), or, to use it with this jaxlib only, pass "
    "-DTRANSCONV_FFI_MAX_MINOR=${TRANSCONV_FFI_MINOR}.")
endif()
message(STATUS
  "jax_transconv: XLA FFI 0.${TRANSCONV_FFI_MINOR} headers in ${TRANSCONV_XLA_INCLUDE_DIR}")

# SYSTEM, because the headers themselves warn under -Wall.
add_library(transconv_xla_ffi INTERFACE)
target_include_directories(transconv_xla_ffi SYSTEM INTERFACE "${TRANSCONV_XLA_INCLUDE_DIR}")
target_include_directories(transconv_xla_ffi INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/cc")
add_library(transconv::xla_ffi ALIAS transconv_xla_ffi)
