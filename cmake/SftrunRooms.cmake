# Joint compilation: several files of a module are compiled as one, so that the templates that they share (nlohmann/json, fmt, CLI11)
# are compiled once. A full build takes a seventh less time. The names in the files of a module must therefore differ, also in
# anonymous namespaces; `make lint` compiles every module as one file to check that. SFTRUN_TOGETHER=OFF compiles each file separately,
# which is faster where one file is changed again and again.
option(SFTRUN_TOGETHER "Compile several files of a module, of the front end and of the tests as one" ON)
set(SFTRUN_TOGETHER_FILES 24 CACHE STRING "Files that are compiled as one; 0: all files of a module")
function(sftrun_together target)
  if(SFTRUN_TOGETHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${SFTRUN_TOGETHER_FILES})
    # GCC takes an included .cpp file for a header, in which a member whose type is in an anonymous namespace would be a mistake.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# Code without numeric loops is compiled with -O1, which takes a third less time. Steps of tiny models are as fast, and the tokenizers 7%
# faster. Kernels and models (sampling) have such loops, and the files of a module that are named as HOT.
set(sftrun_hot_options "")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(sftrun_hot_options -O3)
endif()
function(sftrun_cold target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

# A module (room) is a static library from src/<room>/, with its headers in include/sftrun/<room>/.
#
# Each module exports its own include directory (a link to its headers in the build folder), so a module finds only the headers of the
# modules in its DEPS: including a higher module is a compile error.
function(sftrun_room name)
  cmake_parse_arguments(ROOM "TORCH;COLD" "" "DEPS;LIBS;PRIVATE_LIBS;EXCLUDE;HOT" ${ARGN})
  set(view ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${view}/sftrun)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/sftrun/${name} ${view}/sftrun/${name} SYMBOLIC)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  if(ROOM_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ROOM_EXCLUDE}")
  endif()
  if(NOT sources)
    message(STATUS "room ${name} is empty")
    add_library(sftrun_${name} INTERFACE)
    target_include_directories(sftrun_${name} INTERFACE ${view})
    return()
  endif()
  add_library(sftrun_${name} STATIC ${sources})
  if(NOT ROOM_TORCH)
    sftrun_precompile(sftrun_${name} sftrun_precompiled_common)
    sftrun_together(sftrun_${name})
  endif()
  if(ROOM_COLD)
    sftrun_cold(sftrun_${name})
  endif()
  list(TRANSFORM ROOM_HOT PREPEND ${PROJECT_SOURCE_DIR}/src/${name}/)
  set_property(SOURCE ${ROOM_HOT} APPEND PROPERTY COMPILE_OPTIONS ${sftrun_hot_options})
  set_target_properties(sftrun_${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(sftrun_${name} PUBLIC ${view} PRIVATE ${PROJECT_SOURCE_DIR}/src/${name})
  list(TRANSFORM ROOM_DEPS PREPEND sftrun_ OUTPUT_VARIABLE deps)
  target_link_libraries(sftrun_${name} PUBLIC ${deps} ${ROOM_LIBS} PRIVATE ${ROOM_PRIVATE_LIBS} sftrun_compiler)
endfunction()

# One GoogleTest binary per module, from tests/<room>/*_test.cpp; each case is a ctest case.
# Fixtures are found under SFTRUN_TEST_DATA (tests/data).
function(sftrun_room_tests name)
  cmake_parse_arguments(T "" "" "LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(${name}_tests ${sources})
  sftrun_precompile(${name}_tests sftrun_precompiled_tests)
  sftrun_together(${name}_tests)
  target_compile_options(${name}_tests PRIVATE ${sftrun_test_options})
  target_link_libraries(${name}_tests PRIVATE sftrun_${name} ${T_LIBS} sftrun_compiler GTest::gtest GTest::gtest_main)
  target_include_directories(${name}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src/${name})
  target_compile_definitions(${name}_tests PRIVATE SFTRUN_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  gtest_discover_tests(${name}_tests DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT 600 LABELS unit)
endfunction()
