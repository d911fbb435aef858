#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>

#include "cli.h"
#include "sftrun/core/dtype.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

/// Flags of the commands that write models.
namespace sftrun::app {
namespace fs = std::filesystem;

/// "5GB", "500MB", "2GiB" or plain bytes: decimal and binary units, like Hugging Face's
/// `max_shard_size`.
int64_t parse_size(const std::string& text, const std::string& flag) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr double kKibi = 1024, kKilo = 1000, kMaxBytes = 0x1p62;
  const Unit units[] = {{"gib", kKibi * kKibi * kKibi},
                        {"mib", kKibi * kKibi},
                        {"kib", kKibi},
                        {"gb", kKilo * kKilo * kKilo},
                        {"mb", kKilo * kKilo},
                        {"kb", kKilo},
                        {"", 1}};
  const size_t digits = text.find_first_not_of("0123456789.");
  std::string unit = digits == std::string::npos ? "" : std::string(trim(text.substr(digits)));
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double number = 0;
  for (const Unit& candidate : units) {
    if (unit != candidate.name || !CLI::detail::lexical_cast(text.substr(0, digits), number))
      continue;
    const double bytes = number * candidate.bytes;
    if (bytes >= 1 && bytes < kMaxBytes) return static_cast<int64_t>(bytes);
  }
  throw ConfigError(fmt::format("`{}` is not a size", excerpt(text)), flag + " on the command line",
                    "write, for example, 5GB or 500MB");
}

std::string stored_dtype_word(std::string text) {
  const auto dtype = float_dtype_named(text);
  return dtype ? ascii_lower(std::string(safetensors_name_of(*dtype))) : text;
}

CLI::Validator stored_dtype() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        text = stored_dtype_word(text);
        return one_of({"auto", "bf16", "f16", "f32"})(text);
      },
      "auto|bf16|f16|f32");
}

void add_output_flags(CLI::App& command, OutputFlags& flags, const std::string& description) {
  command.add_option("--output", flags.path, description)->type_name("PATH");
  command.add_flag("--overwrite", flags.overwrite, "Replace --output if it exists");
  command.add_flag("--json", flags.json, "Print a JSON object that describes the result");
}

namespace {

constexpr const char* kOutput = "--output on the command line";

bool holds_model(const fs::path& directory) {
  for (const char* name : {"config.json", "adapter_config.json"})
    if (leads_to_file(directory / name)) return true;
  return std::ranges::any_of(readable_entries_of(directory),
                             [](const fs::path& entry) { return entry.extension() == ".gguf"; });
}

}  // namespace

void check_output(const OutputFlags& output) {
  std::error_code ignored;
  const bool is_directory = is_folder(output.path);
  if (output.is_file() && is_directory) {
    throw ConfigError(fmt::format("{} is a directory", output.path.string()), kOutput,
                      "name a .gguf file, or a directory without that ending");
  }
  if (output.is_file()) require_place_for_file(output.path);
  if (!leads_to_file(output.path) || (is_directory && fs::is_empty(output.path, ignored))) return;
  if (!output.overwrite) {
    const bool is_replaced = is_directory ? holds_model(output.path) : output.is_file();
    throw ConfigError(fmt::format("{} exists{}", output.path.string(),
                                  is_directory ? " and is not an empty directory" : ""),
                      kOutput,
                      fmt::format("name a new {}{}", output.is_file() ? "file" : "directory",
                                  is_replaced ? ", or replace it with --overwrite" : ""));
  }
  if (is_directory ? !holds_model(output.path) : !output.is_file()) {
    throw ConfigError(
        fmt::format("{} is {} and is not replaced", output.path.string(),
                    is_directory ? "a directory without a model or adapter" : "a file"),
        kOutput, "name another directory");
  }
}

void require_apart(const OutputFlags& output, const fs::path& input) {
  if (input.empty() || !output.overwrite) return;
  std::error_code code;  // a path that leads nowhere is apart from others
  const fs::path written = fs::weakly_canonical(output.path, code),
                 read = fs::weakly_canonical(input, code);
  if (written.empty() || read.empty()) return;
  const auto [end, _] = std::mismatch(written.begin(), written.end(), read.begin(), read.end());
  if (end != written.end()) return;
  throw ConfigError(fmt::format("--overwrite would remove the input {}", input.string()), kOutput,
                    "name another output");
}

}  // namespace sftrun::app
