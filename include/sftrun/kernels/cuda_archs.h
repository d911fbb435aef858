#pragma once

#include <string_view>

namespace sftrun::kernels {

/// Whether CUDA code built for these architectures runs on a GPU of this compute capability.
/// @param built CMake's CUDA_ARCHITECTURES, such as "80-real;90a-real;120-virtual"; commas may
/// separate entries, too. Rules (CUDA C++ Programming Guide, "Application Compatibility"):
///   -real     machine code: the same major version, the same or a later minor version
///   -virtual  PTX: the same or a later version
///   neither   both of them
///   suffix a  only exactly that version
bool cuda_code_runs_on(std::string_view built, int major, int minor);

}  // namespace sftrun::kernels
