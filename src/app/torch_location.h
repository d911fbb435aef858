#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Finds the LibTorch that the engine uses, without loading it.
namespace sftrun::app {

struct TorchLocation {
  std::filesystem::path root;  ///< holds lib/libtorch_cpu.so
  std::string version;         ///< "2.11.0+cu130"; empty: it does not say
};

/// "2.11": of the LibTorch that the engine was built with. Another has other functions. Empty: the
/// program was built without an engine.
std::string built_torch_version();

/// Whether the engine can use it; what does not say its version is tried.
bool fits(const TorchLocation& torch);

/// SFTRUN_TORCH_ROOT.   @throws DeviceError if that holds no LibTorch, or one of another version
std::optional<TorchLocation> chosen_torch();

/// What the dynamic linker finds for the engine: in LD_LIBRARY_PATH or in the engine's own path.
std::optional<TorchLocation> linked_torch(const std::filesystem::path& engine);

/// Others of this machine, in the order in which they are tried: of the active Python environment, of
/// the user, of the system, and the C++ package in /opt or /usr/local.
std::vector<TorchLocation> other_torches();

/// The one that the engine would be loaded with: the chosen one, the linked one, or the first other
/// one that fits.   @throws as chosen_torch
std::optional<TorchLocation> find_torch(const std::filesystem::path& engine);

}  // namespace sftrun::app
