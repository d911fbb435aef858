#include <fmt/format.h>

#include <CLI/Version.hpp>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

/// The directory of the LibTorch that the engine would load.
std::optional<std::filesystem::path> torch_directory(const std::filesystem::path& engine) {
  for (const std::filesystem::path& directory : library_directories(engine)) {
    if (leads_to_file(directory / "libtorch_cpu.so")) return directory.parent_path();
  }
  return std::nullopt;
}

/// Of a file that may not exist.
std::string text_of_file(const std::filesystem::path& path) {
  return leads_to_file(path) ? read_text_file(path) : "";
}

/// The text in single quotes that a line assigns to `name`, which may have a type: "cuda: Optional[str] = '12.6'".
std::string assigned_in(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n')) {
    const size_t begin = line.find("= '"), end = line.find('\'', begin + 3);
    const bool is_named = line.starts_with(name) && line.size() > name.size() &&
                          (line[name.size()] == ' ' || line[name.size()] == ':');
    if (is_named && begin != std::string::npos && end != std::string::npos)
      return line.substr(begin + 3, end - begin - 3);
  }
  return {};
}

/// The version of the wheel (version.py) or of the C++ package (build-version).
std::string torch_version(const std::filesystem::path& torch) {
  const std::string wheel = assigned_in(text_of_file(torch / "version.py"), "__version__");
  if (!wheel.empty()) return wheel;
  return std::string(trim(split(text_of_file(torch / "build-version"), '\n').front()));
}

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
  const auto torch = torch_directory(*engine);
  if (!torch) return text + line("LibTorch", "not found in the engine's search path");
  const std::string version = torch_version(*torch);
  text += line("LibTorch",
               fmt::format("{} ({})", version.empty() ? "unknown" : version, torch->string()));
  if (const std::string cuda = assigned_in(text_of_file(*torch / "version.py"), "cuda");
      !cuda.empty()) {
    text += line("CUDA", cuda);
  }
  if (const std::string nccl = nccl_version(*torch); !nccl.empty()) text += line("NCCL", nccl);
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
