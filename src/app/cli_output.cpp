#include <fmt/format.h>

#include <cctype>
#include <filesystem>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

/// Flags of the commands that write models.
namespace sftrun::app {

/// "5GB", "500MB", "2GiB" or plain bytes: decimal and binary units, as Hugging Face's
/// `max_shard_size`.
int64_t parse_size(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr double kKibi = 1024, kKilo = 1000;
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
    if (number * candidate.bytes >= 1) return static_cast<int64_t>(number * candidate.bytes);
  }
  throw ConfigError(fmt::format("`{}` is not a size", text), "--max-shard-size on the command line",
                    "write, for example, 5GB or 500MB");
}

CLI::Validator stored_dtype() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "fp32" || text == "float32") text = "f32";
        if (text == "fp16" || text == "float16") text = "f16";
        if (text == "bfloat16") text = "bf16";
        return one_of({"auto", "bf16", "f16", "f32"})(text);
      },
      "auto|bf16|f16|f32");
}

void require_new_directory(const std::filesystem::path& output) {
  std::error_code ignored;
  if (std::filesystem::exists(output, ignored) && !std::filesystem::is_empty(output, ignored)) {
    throw ConfigError(fmt::format("{} exists and is not an empty directory", output.string()),
                      "--output on the command line", "name a new directory");
  }
}

}  // namespace sftrun::app
