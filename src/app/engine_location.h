#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Where the engine and its LibTorch are, found without loading either.
namespace sftrun::app {

/// This program's own file.
std::filesystem::path executable_path();

/// Where the engine is looked for, in order: SFTRUN_ENGINE alone if it is set, else ../lib and then
/// this program's directory.
std::vector<std::filesystem::path> engine_candidates();

/// The first candidate that exists.
std::optional<std::filesystem::path> find_engine();

/// The CUDA kernels are a library of their own, beside the engine.
bool has_cuda_kernels();

/// Directories that the dynamic linker searches for the libraries of `library`: LD_LIBRARY_PATH and
/// its own RPATH/RUNPATH with $ORIGIN replaced. Empty if it is no 64-bit ELF file.
std::vector<std::filesystem::path> library_directories(const std::filesystem::path& library);

}  // namespace sftrun::app
