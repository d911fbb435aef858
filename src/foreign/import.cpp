#include "sftrun/foreign/import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "settle.h"
#include "sftrun/config/assignment.h"
#include "sftrun/config/problem.h"
#include "sftrun/config/yaml_text.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::foreign {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kEveryKey = "docs/configuration.md lists every key";

bool lacks_trainable(const config::RunConfig& config) {
  return config.tuning.mode == config::TuningMode::kPartial && config.tuning.trainable.empty();
}
bool lacks_max_steps(const config::RunConfig& config) {
  return config.data.streaming && !config.train.max_steps;
}

/// Whether a run is to write answers, and nothing judges them.
bool lacks_reward(const config::RunConfig& config, const std::vector<ImportedSetting>& settings) {
  return config.train.objective_info().takes_rollouts && !config.train.rollouts.are_judged() &&
         std::any_of(settings.begin(), settings.end(), [](const ImportedSetting& setting) {
           return setting.key.starts_with("train.rollouts.");
         });
}

/// Whether `text` names the key, and not one that it begins.
bool names_key(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  if (at == std::string::npos) return false;
  const char next = at + key.size() < text.size() ? text[at + key.size()] : ' ';
  return std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_' && next != '.';
}

/// Adds to the settings that a fix names what they are in the file: an import reads no others.
void name_lines_of_file(const Conversion& conversion, Problems& problems) {
  const std::string_view adapter = table_of(conversion.tool()).adapter_line;
  for (Problem& problem : problems) {
    const std::string fix = problem.fix;
    for (const Given& one : conversion.given) {
      if (!names_key(fix, one.assignment.key)) continue;
      const bool is_mode = one.assignment.key == "tuning.mode" && !adapter.empty();
      const std::string theirs = is_mode ? std::string(adapter) : one.from;
      if (!theirs.empty())
        problem.fix += fmt::format("; in {} that is `{}`", conversion.file().string(), theirs);
    }
  }
}

/// A configuration of the imported fields alone, for its values as the fields hold them.
struct Applied {
  config::LoadedConfig loaded;
  Problems problems;
};

Applied applied(const Conversion& conversion) {
  Applied result;
  config::Binding fields = config::bind(result.loaded.config);
  std::vector<Assignment> assignments;
  for (const Given& one : conversion.given) assignments.push_back(one.assignment);
  apply(assignments, fields, result.loaded, result.problems);
  std::vector<std::string> warnings;
  config::LoadedConfig judged = result.loaded;
  config::RunConfig& config = judged.config;
  // What is listed as still needed is no error.
  if (lacks_trainable(config)) config.tuning.trainable = {"."};
  if (lacks_max_steps(config)) config.train.max_steps = 1;
  validate(judged, config::ConfigUse::kNoRun, result.problems, warnings);
  name_lines_of_file(conversion, result.problems);
  return result;
}

/// The parts of a section's fields, in the order of docs/configuration.md.
std::string section_text(const Import& import, const std::string& name,
                         const config::Binding& fields) {
  const std::string indent(2 * static_cast<size_t>(std::count(name.begin(), name.end(), '.')), ' ');
  constexpr size_t kCommentColumn = 44;
  std::string text;
  for (const config::Field& field : fields.fields) {
    if (field.section() != name) continue;
    for (const ImportedSetting& setting : import.settings) {
      if (setting.key != field.key) continue;
      const std::string line =
          fmt::format("{}  {}: {}", indent, field.leaf(), config::yaml_text(setting.value));
      text += fmt::format("{:<{}}  # {}\n", line, kCommentColumn,
                          setting.from.empty() ? setting.place : setting.from);
    }
  }
  return text;
}

std::string leaf_name(const std::string& section) {
  return section.substr(section.rfind('.') + 1);
}

/// Keys with the same reason share a line.
std::string notes_text(std::string_view title, const std::vector<ImportNote>& notes) {
  if (notes.empty()) return {};
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // why, keys
  for (const ImportNote& note : notes) {
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == note.why; });
    if (same == groups.end())
      groups.push_back({note.why, {note.key}});
    else
      same->second.push_back(note.key);
  }
  std::string text = fmt::format("# {}\n", title);
  for (const auto& [why, keys] : groups) text += fmt::format("#   {}: {}\n", join(keys, ", "), why);
  return text;
}

Json notes_json(const std::vector<ImportNote>& notes) {
  Json list = Json::array();
  for (const ImportNote& note : notes)
    list.push_back({{"key", note.key}, {"why", note.why}, {"at", note.place}});
  return list;
}

}  // namespace

Import import_config(const std::filesystem::path& file, std::optional<Tool> tool) {
  Conversion conversion = read_foreign_file(file, tool);
  settle(conversion);
  const Applied result = applied(conversion);
  if (conversion.problems.empty())
    conversion.problems.insert(conversion.problems.end(), result.problems.begin(),
                               result.problems.end());
  config::throw_if_any(conversion.problems);
  Import import{.tool = conversion.tool(),
                .file = file,
                .settings = {},
                .launch = std::move(conversion.launch),
                .from_run = std::move(conversion.from_run),
                .no_meaning = std::move(conversion.no_meaning),
                .not_carried = std::move(conversion.not_carried),
                .missing = {}};
  config::RunConfig values = result.loaded.config;
  config::Binding fields = config::bind(values);
  for (const Given& one : conversion.given)
    import.settings.push_back({one.assignment.key, fields.find(one.assignment.key)->get(), one.from,
                               one.assignment.place});
  if (values.model.name.empty()) import.missing.emplace_back("model.name");
  if (values.data.train.empty()) import.missing.emplace_back("data.train");
  if (lacks_trainable(values)) import.missing.emplace_back("tuning.trainable");
  if (lacks_max_steps(values))
    import.missing.emplace_back("train.max_steps (streamed data have no known end)");
  if (lacks_reward(values, import.settings))
    import.missing.emplace_back(
        "train.rollouts.reward, which names what judges the answers: functions, programs or "
        "servers (docs/grpo.md)");
  if (config::lacks_validation_data(values))
    import.missing.emplace_back("validation data (data.val or data.val_split)");
  if (const std::string& path = values.parallel.deepspeed; !path.empty() && !leads_to_file(path))
    import.missing.push_back(fmt::format("the file {} of parallel.deepspeed", path));
  return import;
}

std::string launch_flags(const MachineSettings& launch) {
  std::vector<std::string> flags;
  const auto add = [&](const char* flag, const std::string& value) {
    flags.push_back(fmt::format("{} {}", flag, value));
  };
  if (launch.devices == "cpu")
    add("--device", "cpu");
  else if (launch.devices)
    add("--gpus", *launch.devices);
  if (launch.processes) add("--nproc-per-node", std::to_string(*launch.processes));
  if (launch.nodes) add("--nnodes", std::to_string(*launch.nodes));
  if (launch.nodes) add("--node-rank", std::to_string(launch.node_rank.value_or(0)));
  if (launch.master) {
    const size_t colon = launch.master->rfind(':');
    if (colon != 0) add("--master-addr", launch.master->substr(0, colon));
    if (colon != std::string::npos) add("--master-port", launch.master->substr(colon + 1));
  }
  return join(flags, " ");
}

std::string to_yaml(const Import& import) {
  config::RunConfig defaults;
  const config::Binding fields = config::bind(defaults);
  std::string text = fmt::format("# From {} ({}), by `sftrun config import`.\n",
                                 import.file.filename().string(), tool_name(import.tool));
  if (!import.missing.empty())
    text += fmt::format("# A run still needs: {} ({}).\n", join(import.missing, ", "), kEveryKey);
  const std::string flags = launch_flags(import.launch);
  if (!flags.empty()) text += fmt::format("# Start: sftrun train --config FILE {}\n", flags);
  std::string body;
  for (const config::Section& section : fields.sections) {
    const std::string own = section_text(import, section.name, fields);
    const bool has_inner = std::any_of(
        import.settings.begin(), import.settings.end(),
        [&](const auto& setting) { return setting.key.starts_with(section.name + "."); });
    if (!has_inner) continue;
    const bool is_inside = section.name.find('.') != std::string::npos;
    body += fmt::format("{}{}{}:\n", is_inside ? "" : "\n", is_inside ? "  " : "",
                        leaf_name(section.name));
    body += own;
  }
  text += body;
  const std::string notes = notes_text("Not applicable:", import.no_meaning) +
                            notes_text("Not translated:", import.not_carried);
  return notes.empty() ? text : text + "\n" + notes;
}

Json to_json(const Import& import) {
  Json settings = Json::array();
  for (const ImportedSetting& setting : import.settings)
    settings.push_back({{"key", setting.key},
                        {"value", setting.value},
                        {"from", setting.from},
                        {"at", setting.place}});
  return {{"tool", tool_word(import.tool)},
          {"file", import.file.string()},
          {"settings", settings},
          {"launch", launch_flags(import.launch)},
          {"from_run", notes_json(import.from_run)},
          {"no_meaning", notes_json(import.no_meaning)},
          {"not_carried", notes_json(import.not_carried)},
          {"missing", import.missing},
          {"yaml", to_yaml(import)}};
}

}  // namespace sftrun::foreign
