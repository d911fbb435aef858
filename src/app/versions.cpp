#include <fmt/format.h>

#include <CLI/Version.hpp>
#include <regex>

#include "commands.h"
#include "engine_location.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

/// The directory of the LibTorch that the engine would load.
std::optional<std::filesystem::path> torch_directory(const std::filesystem::path& engine) {
  for (const std::filesystem::path& directory : library_directories(engine)) {
    std::error_code ignored;
    if (std::filesystem::exists(directory / "libtorch_cpu.so", ignored))
      return directory.parent_path();
  }
  return std::nullopt;
}

/// The first group of `pattern` in a file that may not exist.
std::string match_in_file(const std::filesystem::path& path, const std::string& pattern) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const std::string text = read_text_file(path);
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "";
}

/// The version of the wheel (version.py) or of the C++ package (build-version).
std::string torch_version(const std::filesystem::path& torch) {
  const std::string wheel = match_in_file(torch / "version.py", "__version__ = '([^']+)'");
  return wheel.empty() ? match_in_file(torch / "build-version", "(\\S+)") : wheel;
}

/// The version of the wheel's dependency, from its installation record.
std::string nccl_version(const std::filesystem::path& torch) {
  static const std::regex kRecord("nvidia_nccl_cu[0-9]+-([0-9.]+)\\.dist-info");
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(torch.parent_path(), ignored)) {
    std::smatch match;
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, match, kRecord)) return match[1].str();
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
  if (const std::string cuda = match_in_file(*torch / "version.py", "cuda[^=\n]*= '([^']+)'");
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
