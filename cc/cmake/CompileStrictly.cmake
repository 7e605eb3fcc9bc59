# A compiler's launcher, `cmake -P CompileStrictly.cmake -- nvcc ...`: runs it, prints what it says,
# and fails where the assembler spills registers to memory or gives up that matrix instructions
# overlap. Either costs a kernel its speed, and is no error for the compiler.

math(EXPR last "${CMAKE_ARGC} - 1")
set(command "")
set(found FALSE)
set(previous "")
foreach(i RANGE ${last})
  if(found)
    string(REPLACE ";" "\\;" argument "${CMAKE_ARGV${i}}")
    list(APPEND command "${argument}")
    if(previous STREQUAL "-o")
      set(object "${CMAKE_ARGV${i}}")
    endif()
    set(previous "${CMAKE_ARGV${i}}")
  elseif("${CMAKE_ARGV${i}}" STREQUAL "--")
    set(found TRUE)
  endif()
endforeach()

execute_process(COMMAND ${command} RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(NOT said STREQUAL "")
  message("${said}")
endif()
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the compiler failed: ${status}")
endif()
if(said MATCHES "Registers are spilled|Potential Performance Loss")
  if(DEFINED object)
    file(REMOVE "${object}")  # or the next build would take it
  endif()
  message(FATAL_ERROR "a kernel spills registers, or its matrix instructions are serialised")
endif()
