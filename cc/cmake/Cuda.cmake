# The CUDA module, built when a CUDA compiler is there.
#
#   TRANSCONV_CUDA=AUTO  build it when nvcc (12.8 or newer) is found, and say which it was
#   TRANSCONV_CUDA=ON    the same, but a missing or old nvcc stops the configuration
#   TRANSCONV_CUDA=OFF   never

string(TOUPPER "${TRANSCONV_CUDA}" transconv_cuda_mode)
if(transconv_cuda_mode STREQUAL "")
  set(transconv_cuda_mode AUTO)  # the environment variable may be set to nothing
endif()
if(NOT transconv_cuda_mode MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "jax_transconv: TRANSCONV_CUDA must be AUTO, ON or OFF, got '${TRANSCONV_CUDA}'")
endif()
set(TRANSCONV_CUDA_MINIMUM 12.8)

set(transconv_cuda_reason "")
if(transconv_cuda_mode STREQUAL "OFF")
  message(STATUS "jax_transconv: CUDA module off (TRANSCONV_CUDA=OFF)")
  return()
endif()

if(transconv_cuda_mode STREQUAL "AUTO" AND
   NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/cc/ffi/module_cuda.cc")
  message(STATUS "jax_transconv: CUDA module off (cc/ffi/module_cuda.cc is not in this tree)")
  return()
endif()

# Code for 7.5 runs on no later card but those before 8.0, code for 8.0 on 8.6 and 8.9, too. Compute
# capability 9.0 kernels use architecture-specific instructions (90a); PTX for 9.0 covers whatever
# comes later. Must be set before the language is enabled.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "75-real;80-real;90a-real;90-virtual")
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  set(transconv_cuda_reason "no CUDA compiler (nvcc) was found on PATH, in CUDACXX or in CUDA_PATH")
else()
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE transconv_nvcc_version)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${transconv_nvcc_version}")
  if(CMAKE_MATCH_1 AND CMAKE_MATCH_1 VERSION_LESS TRANSCONV_CUDA_MINIMUM)
    set(transconv_cuda_reason
        "${CMAKE_CUDA_COMPILER} is ${CMAKE_MATCH_1}, older than ${TRANSCONV_CUDA_MINIMUM}")
  endif()
endif()
if(transconv_cuda_reason)
  if(transconv_cuda_mode STREQUAL "ON")
    message(FATAL_ERROR "jax_transconv: TRANSCONV_CUDA=ON, but ${transconv_cuda_reason}.\n"
      "Install CUDA toolkit ${TRANSCONV_CUDA_MINIMUM} or newer and set CUDACXX, or build without it "
      "(TRANSCONV_CUDA=AUTO or OFF).")
  endif()
  message(STATUS "jax_transconv: CUDA module off (TRANSCONV_CUDA=AUTO: ${transconv_cuda_reason})")
  return()
endif()

enable_language(CUDA)
find_package(CUDAToolkit ${TRANSCONV_CUDA_MINIMUM} REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
message(STATUS "jax_transconv: CUDA module on (TRANSCONV_CUDA=${transconv_cuda_mode}: "
  "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, "
  "architectures ${CMAKE_CUDA_ARCHITECTURES})")

# -lineinfo lets a profiler show source lines and costs nothing at run time, but doubles the size of
# the device code: a wheel does without, and has that code compressed. What nvcc 12 compresses so
# needs a later driver than its code does; what nvcc 13 does, none.
set(transconv_cuda_size -lineinfo)
if(DEFINED SKBUILD)
  set(transconv_cuda_size "")
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    set(transconv_cuda_size --compress-mode=size)
  endif()
endif()

# A kernel that spills registers fails the build. A launcher that is asked for sees the compiler.
set(transconv_strictly "${CMAKE_COMMAND}" -P
  "${CMAKE_CURRENT_SOURCE_DIR}/cc/cmake/CompileStrictly.cmake" -- ${CMAKE_CUDA_COMPILER_LAUNCHER})

# One object library per set of architectures, because architectures are a property of the target:
#   transconv_cuda_library(<name> ARCHITECTURES <list> SOURCES <files>...)
# Kernels for compute capability 9.0 alone go into one of their own with ARCHITECTURES 90a-real.
# No relocatable device code, so that each file is optimised by itself and no device link is needed.
function(transconv_cuda_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "ARCHITECTURES;SOURCES")
  add_library(${name} OBJECT ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES
    CUDA_ARCHITECTURES "${arg_ARCHITECTURES}"
    CUDA_SEPARABLE_COMPILATION OFF
    CUDA_VISIBILITY_PRESET hidden
    CUDA_COMPILER_LAUNCHER "${transconv_strictly}"
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/cc")
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-spills>
    $<$<COMPILE_LANGUAGE:CUDA>:${transconv_cuda_size}>)
  target_link_libraries(${name} PRIVATE CUDA::cudart_static)
endfunction()

transconv_cuda_library(transconv_cuda_simt
  ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES}
  SOURCES
    cc/cuda/launch/depthwise.cu
    cc/cuda/launch/direct_f32.cu
    cc/cuda/launch/direct_f64.cu
    cc/cuda/launch/direct_16bit.cu
    cc/cuda/launch/direct_wgrad.cu
    cc/cuda/launch/grad_bias.cu
    cc/cuda/launch/simt_f32.cu
    cc/cuda/launch/simt_f64.cu
    cc/cuda/launch/simt_16bit.cu)

# mma.sync of 16 x 8 x 16 exists from compute capability 8.0 on.
set(transconv_mma_architectures ${CMAKE_CUDA_ARCHITECTURES})
list(FILTER transconv_mma_architectures EXCLUDE REGEX "^(5|6|7)[0-9]")
if(NOT transconv_mma_architectures)
  set(transconv_mma_architectures 80-real)
endif()
transconv_cuda_library(transconv_cuda_mma
  ARCHITECTURES ${transconv_mma_architectures}
  SOURCES
    cc/cuda/launch/mma_f64.cu
    cc/cuda/launch/mma_im2col.cu
    cc/cuda/launch/mma_im2col_forward.cu
    cc/cuda/launch/mma_im2col_forward_pixels.cu
    cc/cuda/launch/mma_im2col_grad_input.cu
    cc/cuda/launch/mma_im2col_grad_input_pixels.cu
    cc/cuda/launch/mma_im2col_wgrad.cu
    cc/cuda/launch/mma_im2col_wgrad_pixels.cu
    cc/cuda/launch/mma_tile.cu
    cc/cuda/launch/mma_wgrad.cu)

# wgmma and setmaxnreg exist for compute capability 9.0 alone.
transconv_cuda_library(transconv_cuda_sm90
  ARCHITECTURES 90a-real
  SOURCES
    cc/cuda/launch/sm90_gemm.cu
    cc/cuda/launch/sm90_gemm_16bit.cu
    cc/cuda/launch/sm90_gemm_f32.cu
    cc/cuda/launch/sm90_gemm_wgrad.cu
    cc/cuda/launch/sm90_gemm_wgrad_16bit.cu
    cc/cuda/launch/sm90_gemm_wgrad_f32.cu
    cc/cuda/launch/sm90_lines.cu
    cc/cuda/launch/sm90_lines_wgrad.cu
    cc/cuda/launch/sm90_rolling_16bit.cu
    cc/cuda/launch/sm90_rolling_f32.cu
    cc/cuda/launch/sm90_rolling_f32x3.cu
    cc/cuda/launch/sm90_tile.cu
    cc/cuda/launch/sm90_tile_f32.cu
    cc/cuda/launch/sm90_tile_f32x3.cu
    cc/cuda/launch/sm90_tile_f16.cu
    cc/cuda/launch/sm90_tile_bf16.cu
    cc/cuda/launch/sm90_wgrad_cells_f32.cu
    cc/cuda/launch/sm90_wgrad_cells_16bit.cu
    cc/cuda/launch/sm90_wgrad.cu
    cc/cuda/launch/sm90_wgrad_f32.cu
    cc/cuda/launch/sm90_wgrad_rolling_16bit.cu
    cc/cuda/launch/sm90_wgrad_rolling_f32.cu
    cc/cuda/launch/sm90_wgrad_rolling_f32x3.cu
    cc/cuda/launch/sm90_wgrad_16bit.cu)

nanobind_add_module(_cuda STABLE_ABI NB_STATIC NOMINSIZE
  cc/ffi/module_cuda.cc
  cc/ffi/cuda_handlers.cc
  $<TARGET_OBJECTS:transconv_cuda_simt>
  $<TARGET_OBJECTS:transconv_cuda_mma>
  $<TARGET_OBJECTS:transconv_cuda_sm90>)
# The static runtime: the module imports on a machine with neither a driver nor a toolkit.
target_link_libraries(_cuda PRIVATE transconv::xla_ffi transconv::warnings CUDA::cudart_static)
list(JOIN CMAKE_CUDA_ARCHITECTURES " " transconv_architectures)
target_compile_definitions(_cuda PRIVATE
  "TRANSCONV_CUDA_ARCHITECTURES=\"${transconv_architectures}\"")
set_target_properties(_cuda PROPERTIES CUDA_SEPARABLE_COMPILATION OFF)
install(TARGETS _cuda LIBRARY DESTINATION "${TRANSCONV_INSTALL_DIR}" COMPONENT python)
