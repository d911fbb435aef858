# Finds LibTorch without find_package(Torch), so that CPU and Gloo code needs neither nvcc nor CUDA headers. The engine links only
# libtorch_cpu (libtorch.so would load CUDA, cuDNN and NCCL at every start).
#
# Searched in: SFTRUN_TORCH_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, .venv of this checkout, the Python on PATH.
set(SFTRUN_TORCH_ROOT "" CACHE PATH "Folder of LibTorch: holds include/ and lib/libtorch_cpu.so")

set(candidates ${SFTRUN_TORCH_ROOT})
if(Torch_DIR)
  list(APPEND candidates ${Torch_DIR}/../../..)
endif()
foreach(prefix ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
  list(APPEND candidates ${prefix} ${prefix}/../..)
endforeach()
file(GLOB venv_torch ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
list(APPEND candidates ${venv_torch})
set(torch_root "")
foreach(candidate ${candidates})
  if(NOT torch_root AND EXISTS ${candidate}/lib/libtorch_cpu.so AND EXISTS ${candidate}/include/ATen/ATen.h)
    get_filename_component(torch_root ${candidate} REALPATH)
  endif()
endforeach()
if(NOT torch_root)
  execute_process(COMMAND python3 -c "import torch,os;print(os.path.dirname(torch.__file__))"
                  OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT torch_root OR NOT EXISTS ${torch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found. Run scripts/bootstrap.sh, or set SFTRUN_TORCH_ROOT to a torch folder "
                      "that holds include/ and lib/libtorch_cpu.so (2.11 or newer).")
endif()
file(STRINGS ${torch_root}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" torch_version "${version_lines}")
message(STATUS "LibTorch ${torch_version} in ${torch_root}")
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${torch_version} in ${torch_root} is too old; 2.11 or newer is needed.")
endif()

find_path(SFTRUN_GLOO_INCLUDE gloo/rendezvous/store.h)
if(NOT SFTRUN_GLOO_INCLUDE)
  message(FATAL_ERROR "Gloo's headers not found (Debian: libgloo-dev). They are needed to compile against c10d.")
endif()
# The wheel's include folder has another version of fmt; the one that is linked must be found first.
get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
set(fmt_view ${CMAKE_BINARY_DIR}/rooms/fmt)
file(MAKE_DIRECTORY ${fmt_view})
file(CREATE_LINK ${fmt_include}/fmt ${fmt_view}/fmt SYMBOLIC)

add_library(sftrun_torch INTERFACE)
target_include_directories(sftrun_torch BEFORE INTERFACE ${fmt_view})
target_include_directories(sftrun_torch SYSTEM INTERFACE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include ${SFTRUN_GLOO_INCLUDE})
target_compile_definitions(sftrun_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_compile_options(sftrun_torch INTERFACE -fopenmp -Wno-unused-parameter -Wno-deprecated-declarations)
target_link_libraries(sftrun_torch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
target_link_options(sftrun_torch INTERFACE -fopenmp)
if(SFTRUN_PACKAGE)
  target_compile_options(sftrun_torch INTERFACE -ffile-prefix-map=${torch_root}/=)
else()
  target_link_options(sftrun_torch INTERFACE -Wl,-rpath,${torch_root}/lib)
endif()
set(SFTRUN_TORCH_FOUND_ROOT ${torch_root})
set(SFTRUN_TORCH_VERSION ${torch_version})

# Headers of CUDA and NCCL, of the packages that LibTorch's wheel depends on; empty for a LibTorch without CUDA.
get_filename_component(SFTRUN_TORCH_PACKAGES ${torch_root}/.. REALPATH)
set(SFTRUN_CUDA_INCLUDES "")
foreach(folder ${SFTRUN_TORCH_PACKAGES}/nvidia/cu13/include ${SFTRUN_TORCH_PACKAGES}/nvidia/nccl/include)
  if(EXISTS ${folder})
    list(APPEND SFTRUN_CUDA_INCLUDES ${folder})
  endif()
endforeach()

# NVTX has headers only, which come with CUDA.
find_path(SFTRUN_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${SFTRUN_CUDA_INCLUDES})

# CUDA kernels that are bit-equal to a reference that rounds after every operation: no fused multiply-adds, in tests on the host either.
set(SFTRUN_EXACT_CUDA_KERNELS quant/dequantize.cu quant/eight_bits.cu matmul/thin_product.cu experts/grouped_tiles.cu)
list(TRANSFORM SFTRUN_EXACT_CUDA_KERNELS PREPEND ${PROJECT_SOURCE_DIR}/src/kernels/)
