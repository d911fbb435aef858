# Warnings as errors, sanitizers, ccache and mold.
# The code has no warnings with GCC 12. Other compilers may have other warnings, which must not stop a user's build.
set(werror_default OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12[.]")
  set(werror_default ON)
endif()
option(SFTRUN_WARNINGS_AS_ERRORS "Warnings stop the build" ${werror_default})
add_library(sftrun_compiler INTERFACE)
target_compile_options(sftrun_compiler INTERFACE -Wall -Wextra $<$<BOOL:${SFTRUN_WARNINGS_AS_ERRORS}>:-Werror> -Wno-missing-field-initializers
                                                 -fno-omit-frame-pointer)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports these in the standard library's own headers at -O2 and above.
  target_compile_options(sftrun_compiler INTERFACE -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-stringop-overread
                                                   -Wno-array-bounds -Wno-dangling-pointer)
  # GCC collects its garbage less often, which saves a tenth of the time.
  target_compile_options(sftrun_compiler INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=300>)
endif()
if(SFTRUN_SANITIZE)
  target_compile_options(sftrun_compiler INTERFACE -fsanitize=${SFTRUN_SANITIZE} -fno-sanitize-recover=all -g1)
  target_link_options(sftrun_compiler INTERFACE -fsanitize=${SFTRUN_SANITIZE})
endif()

find_program(SFTRUN_CCACHE ccache)
if(SFTRUN_CCACHE)
  # Paths in the checkout are hashed as relative ones, so that another checkout finds the same objects. Jointly compiled files are not found:
  # their generated source holds absolute paths.
  find_program(SFTRUN_ENV env REQUIRED)
  set(ccache_settings CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT SFTRUN_SANITIZE)
    list(APPEND ccache_settings CCACHE_NOHASHDIR=true)  # debug information would name the other checkout's files
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SFTRUN_ENV} ${ccache_settings} ${SFTRUN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SFTRUN_ENV} ${ccache_settings} ${SFTRUN_CCACHE})
endif()
find_program(SFTRUN_MOLD mold)
if(SFTRUN_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  # Each segment on its own pages. If the code ended in the last bytes of a page and a thread-local variable of one byte followed,
  # mold 1.10 placed the read-only data in a page that no segment maps, and the program did not load ("cannot apply additional memory
  # protection after relocation").
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()

# A library must link everything that it uses; symbols that happen to be loaded by another library are an error.
if(NOT APPLE AND NOT SFTRUN_SANITIZE)
  string(APPEND CMAKE_SHARED_LINKER_FLAGS " -Wl,-z,defs")
  string(APPEND CMAKE_MODULE_LINKER_FLAGS " -Wl,-z,defs")
endif()

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(CURL REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

find_path(ONIG_INCLUDE_DIR oniguruma.h REQUIRED)
find_library(ONIG_LIBRARY onig REQUIRED)
add_library(sftrun_onig INTERFACE)
target_include_directories(sftrun_onig SYSTEM INTERFACE ${ONIG_INCLUDE_DIR})
target_link_libraries(sftrun_onig INTERFACE ${ONIG_LIBRARY})

# The HTTP server of `sftrun serve`.
find_path(MICROHTTPD_INCLUDE_DIR microhttpd.h REQUIRED)
find_library(MICROHTTPD_LIBRARY microhttpd REQUIRED)
add_library(sftrun_microhttpd INTERFACE)
target_include_directories(sftrun_microhttpd SYSTEM INTERFACE ${MICROHTTPD_INCLUDE_DIR})
target_link_libraries(sftrun_microhttpd INTERFACE ${MICROHTTPD_LIBRARY})

# Edits the lines of `sftrun chat`.
find_path(LIBEDIT_INCLUDE_DIR histedit.h REQUIRED)
find_library(LIBEDIT_LIBRARY edit REQUIRED)
add_library(sftrun_libedit INTERFACE)
target_include_directories(sftrun_libedit SYSTEM INTERFACE ${LIBEDIT_INCLUDE_DIR})
target_link_libraries(sftrun_libedit INTERFACE ${LIBEDIT_LIBRARY})
if(LIBEDIT_LIBRARY MATCHES "[.]a$")
  find_library(TINFO_LIBRARY NAMES libtinfo.a REQUIRED)
  target_link_libraries(sftrun_libedit INTERFACE ${TINFO_LIBRARY})
endif()

find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
find_library(XXHASH_LIBRARY xxhash REQUIRED)
add_library(sftrun_xxhash INTERFACE)
target_include_directories(sftrun_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
target_link_libraries(sftrun_xxhash INTERFACE ${XXHASH_LIBRARY})

# What decodes images: target sftrun_image_codecs. libjpeg-turbo, as Pillow has it: other libjpegs give other pixels.
add_library(sftrun_image_codecs INTERFACE)
function(sftrun_image_codec name header package)
  find_path(SFTRUN_${name}_INCLUDE_DIR ${header})
  set(libraries "")
  foreach(library ${ARGN})
    find_library(SFTRUN_${library}_LIBRARY ${library})
    list(APPEND libraries ${SFTRUN_${library}_LIBRARY})
  endforeach()
  if(NOT SFTRUN_${name}_INCLUDE_DIR OR libraries MATCHES "NOTFOUND")
    message(FATAL_ERROR "${name} was not found (${header}; Debian and Ubuntu: ${package}), which reads image files. "
                        "scripts/bootstrap.sh installs it; SFTRUN_${name}_INCLUDE_DIR and SFTRUN_<library>_LIBRARY name it elsewhere")
  endif()
  target_include_directories(sftrun_image_codecs SYSTEM INTERFACE ${SFTRUN_${name}_INCLUDE_DIR})
  target_link_libraries(sftrun_image_codecs INTERFACE ${libraries})
endfunction()
sftrun_image_codec(libjpeg jpeglib.h "libjpeg62-turbo-dev, libjpeg-turbo8-dev" jpeg)
sftrun_image_codec(libpng png.h libpng-dev png)
sftrun_image_codec(libwebp webp/demux.h libwebp-dev webpdemux webp)
sftrun_image_codec(zlib zlib.h zlib1g-dev z)

# dygraphs draws the charts of `sftrun report`. Without it reports have tables only.
set(SFTRUN_DYGRAPHS_ROOT "" CACHE PATH "Folder of dygraphs: holds dygraph.min.js, dygraph.min.css and its licence")
set(dygraphs_folders ${SFTRUN_DYGRAPHS_ROOT} /usr/share/javascript/dygraphs /usr/share/doc/libjs-dygraphs)
find_file(SFTRUN_DYGRAPHS_JS dygraph.min.js PATHS ${dygraphs_folders} NO_DEFAULT_PATH)
find_file(SFTRUN_DYGRAPHS_CSS dygraph.min.css PATHS ${dygraphs_folders} NO_DEFAULT_PATH)
find_file(SFTRUN_DYGRAPHS_LICENSE NAMES LICENSE.txt copyright PATHS ${dygraphs_folders} NO_DEFAULT_PATH)
if(SFTRUN_DYGRAPHS_JS AND SFTRUN_DYGRAPHS_CSS AND SFTRUN_DYGRAPHS_LICENSE)
  message(STATUS "dygraphs: ${SFTRUN_DYGRAPHS_JS}")
else()
  message(STATUS "No dygraphs (Debian: libjs-dygraphs): `sftrun report` writes pages without charts")
  set(SFTRUN_DYGRAPHS_JS "")
  set(SFTRUN_DYGRAPHS_CSS "")
  set(SFTRUN_DYGRAPHS_LICENSE "")
endif()
