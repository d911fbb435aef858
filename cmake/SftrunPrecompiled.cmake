# Headers that most files include, parsed once: a file with LibTorch compiles in a quarter of the time.
#
# A file still includes all that it uses. SFTRUN_PRECOMPILE=OFF, as `make asan` has it, builds without, and finds what is missing.
option(SFTRUN_PRECOMPILE "Precompile the headers of the standard library, nlohmann/json, LibTorch and GoogleTest" ON)
# The date and the macros of a precompiled header are not those of the file, which ccache is to overlook. It takes the files
# that were included from the compiler (-MD), not from a run of the preprocessor of its own.
if(SFTRUN_PRECOMPILE AND SFTRUN_CCACHE)
  find_program(SFTRUN_ENV env REQUIRED)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SFTRUN_ENV} CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=true ${SFTRUN_CCACHE})
endif()

set(sftrun_common_headers
    <algorithm> <chrono> <cstdint> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set> <span> <sstream>
    <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector> <fmt/format.h> <nlohmann/json.hpp>)

# A target of which others take the header: sftrun_precompiled(NAME [OF_EXECUTABLES] HEADERS … LIBS …). Code of executables is
# compiled with -fPIE, of libraries with -fPIC, and a header fits only one of them.
function(sftrun_precompiled name)
  cmake_parse_arguments(P "OF_EXECUTABLES" "" "HEADERS;LIBS" ${ARGN})
  if(NOT SFTRUN_PRECOMPILE)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
  if(P_OF_EXECUTABLES)
    file(CONFIGURE OUTPUT ${source} CONTENT "int main() {}\n")
    add_executable(${name} ${source})
  else()
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(${name} OBJECT ${source})
  endif()
  target_link_libraries(${name} PRIVATE ${P_LIBS} sftrun_compiler)
  target_precompile_headers(${name} PRIVATE ${P_HEADERS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -fpch-preprocess)  # tells ccache that a header is precompiled
  endif()
endfunction()

# Compiles TARGET with the header of HEADER_TARGET, whose macros and options it takes: with others the compiler refuses the header.
function(sftrun_precompile target header_target)
  if(NOT SFTRUN_PRECOMPILE)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${header_target})
  foreach(property COMPILE_DEFINITIONS COMPILE_OPTIONS)
    set_property(TARGET ${target} APPEND PROPERTY ${property} $<TARGET_PROPERTY:${header_target},${property}>)
  endforeach()
endfunction()
