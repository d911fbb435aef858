# A build for packages (`make package`): it runs on other machines than this one, also on older systems.
#
# SFTRUN_PACKAGE names the folder of scripts/package/build.sh: older/ (scripts/package/older_system.py: what is linked from in place of
# this machine's C and C++ libraries) and prefix/ (scripts/package/dependencies.sh: static libraries). The files of such a build hold no
# path of this machine, and two builds have the same bytes.
set(SFTRUN_PACKAGE "" CACHE PATH "Build for packages, with the libraries of this folder (scripts/package/build.sh)")
if(NOT SFTRUN_PACKAGE)
  return()
endif()
foreach(part older/libc.so prefix/lib)
  if(NOT EXISTS ${SFTRUN_PACKAGE}/${part})
    message(FATAL_ERROR "SFTRUN_PACKAGE: ${SFTRUN_PACKAGE}/${part} does not exist; `make package` makes it")
  endif()
endforeach()

list(PREPEND CMAKE_PREFIX_PATH ${SFTRUN_PACKAGE}/prefix)
set(OPENSSL_USE_STATIC_LIBS ON)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_BINARY_DIR}/=> $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
                    $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${SFTRUN_PACKAGE}/=>)
# Nothing of the static libraries is visible to others in the process: LibTorch has libraries of its own.
set(linked_from "-B${SFTRUN_PACKAGE}/older/ -L${SFTRUN_PACKAGE}/older -Wl,--gc-sections -Wl,--exclude-libs,ALL -Wl,--build-id=none -s")
string(APPEND CMAKE_EXE_LINKER_FLAGS " ${linked_from}")
string(APPEND CMAKE_SHARED_LINKER_FLAGS " ${linked_from}")
# Libraries of their own before glibc 2.34; named, so that an older dynamic linker loads them.
set(CMAKE_DL_LIBS "")
string(APPEND CMAKE_CXX_STANDARD_LIBRARIES " -Wl,--push-state,--no-as-needed -lpthread -ldl -Wl,--pop-state")

# The files lie in site-packages/sftrun/{bin,lib}, beside the packages torch and pyarrow. Elsewhere the program finds LibTorch by its own
# rules (src/app/torch_location.h).
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../../torch/lib;$ORIGIN/../../nvidia/cu13/lib;$ORIGIN/../../pyarrow")
