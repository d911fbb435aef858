# Headers that most files include are parsed once: a file with LibTorch compiles in a quarter of the time.
#
# A file still includes everything that it uses. SFTRUN_PRECOMPILE=OFF (as in `make asan`) finds missing includes.
option(SFTRUN_PRECOMPILE "Precompile the headers of the standard library, nlohmann/json, LibTorch and GoogleTest" ON)
# ccache must ignore that the date and the macros of a precompiled header differ from those of the file. It takes the list of included
# files from the compiler (-MD) and does not run the preprocessor.
if(SFTRUN_PRECOMPILE AND SFTRUN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SFTRUN_ENV} ${ccache_settings} CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_DEPEND=true ${SFTRUN_CCACHE})
endif()

set(sftrun_standard_headers
    <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional> <future> <limits> <map>
    <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>)
set(sftrun_common_headers ${sftrun_standard_headers} <fmt/format.h> <nlohmann/json.hpp>)

# A target whose precompiled header others reuse: sftrun_precompiled(NAME [OF_EXECUTABLES] HEADERS … LIBS …). Executables are compiled
# with -fPIE and libraries with -fPIC, and a header fits only one of them.
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

# Compiles TARGET with the header of HEADER_TARGET, and with its macros and options: with others the compiler refuses the header.
function(sftrun_precompile target header_target)
  if(NOT SFTRUN_PRECOMPILE)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${header_target})
  foreach(property COMPILE_DEFINITIONS COMPILE_OPTIONS)
    set_property(TARGET ${target} APPEND PROPERTY ${property} $<TARGET_PROPERTY:${header_target},${property}>)
  endforeach()
endfunction()

# The same for an executable with the header of libraries: LibTorch's takes 25 s and 400 MB.
function(sftrun_precompile_as_library target header_target)
  sftrun_precompile(${target} ${header_target})
  if(SFTRUN_PRECOMPILE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # no -fPIE
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()
