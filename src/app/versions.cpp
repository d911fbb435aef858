#include <fmt/format.h>

#include <CLI/Version.hpp>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "torch_location.h"
#include "wheel_version.h"

namespace sftrun::app {
namespace {

/// The version of the wheel's dependency, from its installation record.
std::string nccl_version(const std::filesystem::path& torch) {
  constexpr std::string_view kBegin = "nvidia_nccl_cu", kEnd = ".dist-info";
  for (const std::filesystem::path& entry : readable_entries_of(torch.parent_path())) {
    const std::string name = entry.filename().string();
    const size_t dash = name.find('-');
    if (name.starts_with(kBegin) && name.ends_with(kEnd) && dash != std::string::npos)
      return name.substr(dash + 1, name.size() - kEnd.size() - dash - 1);
  }
  return {};
}

std::string line(std::string_view name, const std::string& version) {
  return fmt::format("{:<14} {}\n", name, version);
}

std::string triple(int packed, int major_unit, int minor_unit) {
  return fmt::format("{}.{}.{}", packed / major_unit, packed % major_unit / minor_unit,
                     packed % minor_unit);
}

std::string engine_lines() {
  const auto engine = find_engine();
  if (!engine) return line("engine", "not installed (build it: make build)");
  std::string text = line("engine", engine->lexically_normal().string());
  std::optional<TorchLocation> torch;
  try {
    torch = find_torch(*engine);
  } catch (const DeviceError& error) {
    return text + line("LibTorch", fmt::format("not found: {}", error.message()));
  }
  if (!torch) return text + line("LibTorch", "not found");
  text +=
      line("LibTorch", fmt::format("{} ({})", torch->version.empty() ? "unknown" : torch->version,
                                   torch->root.string()));
  if (const std::string cuda = wheel_variable(torch->root, "cuda"); !cuda.empty())
    text += line("CUDA", cuda);
  if (const std::string nccl = nccl_version(torch->root); !nccl.empty()) text += line("NCCL", nccl);
  return text;
}

}  // namespace

std::string version_text() {
  constexpr int kFmtMajor = 10000, kFmtMinor = 100;
  return line("sftrun", SFTRUN_VERSION) + engine_lines() +
         line("yaml-cpp", SFTRUN_YAML_CPP_VERSION) + line("CLI11", CLI11_VERSION) +
         line("spdlog", SFTRUN_SPDLOG_VERSION) +
         line("fmt", triple(FMT_VERSION, kFmtMajor, kFmtMinor)) +
         line("nlohmann-json",
              fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                          NLOHMANN_JSON_VERSION_PATCH));
}

std::string version_of(const std::string& versions, std::string_view name) {
  for (const std::string& line : split(versions, '\n')) {
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ')
      return std::string(trim(std::string_view(line).substr(name.size())));
  }
  return {};
}

}  // namespace sftrun::app
