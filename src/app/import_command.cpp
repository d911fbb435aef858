#include <fmt/format.h>

#include <system_error>

#include "commands.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/foreign/import.h"

namespace sftrun::app {
namespace {

void print_notes(std::string_view title, const std::vector<foreign::ImportNote>& notes) {
  for (const foreign::ImportNote& note : notes)
    fmt::print(stderr, "{}: {}: {} ({})\n", title, note.key, note.why, note.place);
}

/// What the user must know, beside the YAML.
void print_summary(const foreign::Import& import) {
  print_notes("left to the run", import.from_run);
  print_notes("not applicable", import.no_meaning);
  print_notes("not translated", import.not_carried);
  if (!import.missing.empty())
    fmt::print(stderr, "still needed: {} (docs/configuration.md)\n", join(import.missing, ", "));
  if (const std::string flags = foreign::launch_flags(import.launch); !flags.empty())
    fmt::print(stderr, "start it with: sftrun train --config FILE {}\n", flags);
  fmt::print(stderr, "{} ({}): {}, {} not applicable, {} not translated\n", import.file.string(),
             foreign::tool_name(import.tool), counted(import.settings.size(), "setting"),
             counted(import.no_meaning.size(), "key"), counted(import.not_carried.size(), "key"));
}

/// @throws ConfigError if the output is the imported file, or if it exists, as a run that the user may
/// have edited, and is not to be replaced
void require_replaceable(const ImportOptions& options) {
  constexpr const char* kOutput = "--output on the command line";
  const std::filesystem::path& output = options.output;
  if (output.empty() || !leads_to_file(output)) return;
  std::error_code code;  // a path that cannot be followed is another file
  if (std::filesystem::equivalent(output, options.file, code))
    throw ConfigError(fmt::format("{} is the file that is imported", output.string()), kOutput,
                      "choose another name with --output");
  if (!options.overwrite)
    throw ConfigError(fmt::format("{} exists already", output.string()), kOutput,
                      "choose another name with --output, or replace it with --overwrite");
}

}  // namespace

int run_import(const ImportOptions& options) {
  require_replaceable(options);
  const std::optional<foreign::Tool> tool = foreign::tool_of(options.from);
  const foreign::Import import = foreign::import_config(options.file, tool);
  const std::string yaml = foreign::to_yaml(import);
  if (!options.output.empty()) write_file_atomically(options.output, yaml, SpecialFile::kAllowed);
  if (options.json) {
    nlohmann::ordered_json answer = foreign::to_json(import);
    if (!options.output.empty()) answer["output"] = options.output.string();
    fmt::print("{}\n", answer.dump(2));
  } else {
    print_summary(import);
    if (options.output.empty()) fmt::print("{}", yaml);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
