# transconv::warnings: what our own C++ sources must compile cleanly with. nvcc passes host flags
# itself, so the flags are limited to the C++ language.
add_library(transconv_warnings INTERFACE)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(transconv_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror>)
  if(TRANSCONV_SANITIZE)
    target_compile_options(transconv_warnings INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-omit-frame-pointer>)
    target_link_options(transconv_warnings INTERFACE -fsanitize=address,undefined)
  endif()
endif()
add_library(transconv::warnings ALIAS transconv_warnings)
