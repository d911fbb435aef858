#include "torch_location.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "engine_location.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_packages.h"
#include "sftrun/core/strings.h"
#include "wheel_version.h"

namespace sftrun::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRootVariable = "SFTRUN_TORCH_ROOT";
constexpr const char* kLibrary = "libtorch_cpu.so";

bool holds_torch(const fs::path& root) {
  return leads_to_file(root / "lib" / kLibrary);
}

/// The version of the wheel (version.py) or of the C++ package (build-version).
std::string version_in(const fs::path& root) {
  const std::string wheel = wheel_variable(root, "__version__");
  if (!wheel.empty()) return wheel;
  const fs::path file = root / "build-version";
  return leads_to_file(file) ? std::string(trim(split(read_text_file(file), '\n').front())) : "";
}

TorchLocation located(const fs::path& root) {
  return {.root = root, .version = version_in(root)};
}

}  // namespace

std::string built_torch_version() {
#ifdef SFTRUN_TORCH_VERSION
  return SFTRUN_TORCH_VERSION;
#else
  return {};
#endif
}

bool fits(const TorchLocation& torch) {
  const std::string built = built_torch_version();
  return built.empty() || torch.version.empty() || torch.version.starts_with(built + ".");
}

std::optional<TorchLocation> chosen_torch() {
  const char* root = std::getenv(kRootVariable);
  if (root == nullptr || *root == '\0') return std::nullopt;
  if (!holds_torch(root))
    throw DeviceError(fmt::format("{} holds no LibTorch", kRootVariable),
                      (fs::path(root) / "lib" / kLibrary).string() + " does not exist",
                      "name the folder of the torch package, or of LibTorch");
  TorchLocation torch = located(root);
  if (!fits(torch))
    throw DeviceError(fmt::format("{} is LibTorch {}", kRootVariable, torch.version), root,
                      fmt::format("this program was built for LibTorch {0}: pip install "
                                  "'torch=={0}.*'",
                                  built_torch_version()));
  return torch;
}

std::optional<TorchLocation> linked_torch(const fs::path& engine) {
  for (const fs::path& directory : library_directories(engine)) {
    if (leads_to_file(directory / kLibrary)) return located(directory.parent_path());
  }
  return std::nullopt;
}

std::vector<TorchLocation> other_torches() {
  std::vector<fs::path> roots =
      python_packages("torch", [](const char* name) { return std::getenv(name); });
  roots.insert(roots.end(), {"/opt/libtorch", "/usr/local/libtorch"});
  std::vector<TorchLocation> found;
  for (const fs::path& root : roots)
    if (holds_torch(root)) found.push_back(located(root));
  return found;
}

std::optional<TorchLocation> find_torch(const fs::path& engine) {
  if (auto chosen = chosen_torch()) return chosen;
  if (auto linked = linked_torch(engine)) return linked;
  std::vector<TorchLocation> others = other_torches();
  const auto fitting = std::find_if(others.begin(), others.end(), fits);
  if (fitting == others.end()) return std::nullopt;
  return std::move(*fitting);
}

}  // namespace sftrun::app
