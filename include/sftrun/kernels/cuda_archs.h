#pragma once

#include <string_view>

namespace sftrun::kernels {

/// Whether CUDA code built for these architectures runs on a card of this compute capability.
/// @param built as CMake's CUDA_ARCHITECTURES: "80-real;90a-real;120-virtual", commas do as well.
/// Machine code (real) runs on its own major version from its own minor version on, PTX (virtual)
/// on everything from its version on, an entry without a suffix is both; with an `a` only the very
/// version. (CUDA C++ Programming Guide, "Application Compatibility".)
bool cuda_code_runs_on(std::string_view built, int major, int minor);

}  // namespace sftrun::kernels
