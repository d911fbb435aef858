#include "named_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "settle.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"

namespace sftrun::foreign {
namespace {

constexpr const char* kAccelerateKey = "parallel.accelerate";
constexpr const char* kDeepSpeedKey = "parallel.deepspeed";

/// The run's tuning.mode.
std::string mode_of(const AssignmentLayers& layers) {
  if (const Assignment* const mode = last_of(layers, "tuning.mode")) return mode->value.text;
  config::RunConfig defaults;
  return config::bind(defaults).find("tuning.mode")->get().get<std::string>();
}

/// One line with the keys that have no meaning here.
std::string line_of_keys(const std::filesystem::path& file, const std::vector<ImportNote>& notes) {
  std::vector<std::string> keys;
  keys.reserve(notes.size());
  for (const ImportNote& note : notes) keys.push_back(note.key);
  return fmt::format("{}: not applicable: {} (`sftrun config import {}` says why)", file.string(),
                     join(keys, ", "), shell_word(file.string()));
}

void take(NamedFiles& named, const std::filesystem::path& file, const Conversion& conversion) {
  if (!conversion.no_meaning.empty())
    named.notes.push_back(line_of_keys(file, conversion.no_meaning));
  for (const ImportNote& note : conversion.not_carried)
    named.warnings.push_back(
        fmt::format("{} of {}: {} ({})", note.key, file.string(), note.why, note.place));
}

}  // namespace

NamedFiles read_named_files(const AssignmentLayers& layers,
                            const std::function<std::filesystem::path(const std::string&)>& located,
                            Problems& problems) {
  NamedFiles named;
  std::optional<Conversion> all;
  for (const auto& [key, tool] :
       {std::pair(kAccelerateKey, Tool::kAccelerate), std::pair(kDeepSpeedKey, Tool::kDeepSpeed)}) {
    const Assignment* const assignment = last_of(layers, key);
    if (assignment == nullptr) continue;
    const std::filesystem::path file = located(assignment->value.text);
    if (!leads_to_file(file)) {
      throw DataError(fmt::format("{}: no such file: {}", key, shown_path(assignment->value.text)),
                      assignment->value_place,
                      "paths are relative to the current directory, or to the directory of the "
                      "YAML file");
    }
    Conversion conversion = read_foreign_file(file, tool);
    settle_weights_on_host(conversion, mode_of(layers));
    take(named, file, conversion);
    if (all)
      all->include(std::move(conversion));
    else
      all.emplace(std::move(conversion));
  }
  if (!all) return named;
  problems.insert(problems.end(), all->problems.begin(), all->problems.end());
  named.given = std::move(all->given);
  named.launch = std::move(all->launch);
  return named;
}

}  // namespace sftrun::foreign
