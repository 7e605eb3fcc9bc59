# transconv_cpu: plan, launch and kernels of the CPU backend. No XLA and no Python in here.
#
# The kernels are one templated source compiled once per instruction set (cc/cpu/launch/isa_*.cc) and
# picked at run time, so one wheel serves every x86-64 machine. Other processors get the generic one,
# which the compiler vectorises for the target's baseline.

set(TRANSCONV_ISA_SOURCES cc/cpu/launch/isa_generic.cc)
set(TRANSCONV_ISA_DEFINITIONS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND TRANSCONV_ISA_SOURCES cc/cpu/launch/isa_avx2.cc cc/cpu/launch/isa_avx512.cc)
  list(APPEND TRANSCONV_ISA_DEFINITIONS TRANSCONV_HAVE_AVX2=1 TRANSCONV_HAVE_AVX512=1)
  set_source_files_properties(cc/cpu/launch/isa_avx2.cc PROPERTIES
    COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
  set_source_files_properties(cc/cpu/launch/isa_avx512.cc PROPERTIES
    COMPILE_OPTIONS
    "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;-mprefer-vector-width=512")
endif()

# The plans apart from the kernels, which are slow to compile: the C++ tests need plans alone.
add_library(transconv_cpu_plan STATIC
  cc/cpu/plan.cc
  cc/cpu/plan_depthwise.cc
  cc/cpu/plan_grad.cc)
add_library(transconv_cpu STATIC
  cc/cpu/dispatch.cc
  cc/cpu/launch/job.cc
  ${TRANSCONV_ISA_SOURCES})
foreach(name transconv_cpu_plan transconv_cpu)
  target_include_directories(${name} PUBLIC "${CMAKE_CURRENT_SOURCE_DIR}/cc")
  # Contraction to FMA is what the kernels are for; -std=c++17 would turn it off in GCC.
  target_compile_options(${name} PRIVATE -ffp-contract=fast $<$<CONFIG:Release>:-O3>)
  target_link_libraries(${name} PRIVATE transconv::warnings)
endforeach()
target_compile_definitions(transconv_cpu PRIVATE ${TRANSCONV_ISA_DEFINITIONS})
target_link_libraries(transconv_cpu PUBLIC transconv_cpu_plan)
