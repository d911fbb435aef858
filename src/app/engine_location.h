#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Finds the engine and its LibTorch without loading them.
namespace sftrun::app {

/// The file of this program.
std::filesystem::path executable_path();

/// Paths where the engine is searched, in order: only SFTRUN_ENGINE if it is set, else ../lib and
/// then this program's directory.
std::vector<std::filesystem::path> engine_candidates();

/// The first candidate that exists.
std::optional<std::filesystem::path> find_engine();

/// The library with the CUDA kernels, beside the engine.
bool has_cuda_kernels();

/// Directories that the dynamic linker searches for the libraries of `library`: LD_LIBRARY_PATH and
/// its own RPATH/RUNPATH with $ORIGIN replaced. Empty if it is not a 64-bit ELF file.
std::vector<std::filesystem::path> library_directories(const std::filesystem::path& library);

}  // namespace sftrun::app
