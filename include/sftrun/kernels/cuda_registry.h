#pragma once

#include <string>

#include "sftrun/kernels/cuda_function.h"

/// libsftrun_cuda.so gives the engine the functions that its `CudaEntry` variables name. It is loaded
/// only on machines with a GPU.
namespace sftrun::kernels {

/// @param first chain of the library's functions
void register_cuda_functions(const CudaFunction* first);
/// Looks for every entry of this program in a library.
/// @return the first that the library lacks or has with another signature, so that the two are of
/// different builds; empty: none
std::string cuda_difference(const CudaFunction* first);
bool has_cuda_kernels();

}  // namespace sftrun::kernels
