#include <fmt/format.h>

#include <tuple>

#include "commands.h"
#include "data_source_finder.h"
#include "sftrun/config/problem.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/dataset.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

/// Files that a run would miss are told, but a configuration may be written before its data.
std::vector<std::string> all_warnings(const config::LoadedConfig& loaded) {
  std::vector<std::string> warnings = loaded.warnings;
  try {
    config::LoadedConfig here = loaded;  // what a hub has is not looked for
    for (auto* sources : {&here.config.data.train, &here.config.data.val})
      std::erase_if(*sources, [](const config::DataSource& s) { return may_be_on_hub(s.path); });
    config::require_files(here);
  } catch (const DataError& error) {
    warnings.push_back(error.where().empty()
                           ? error.message()
                           : fmt::format("{} ({})", error.message(), error.where()));
  }
  return warnings;
}

/// What the first records of the run's data look like; data that are not there were warned of.
std::vector<data::SourceLook> look_at_data(const config::RunConfig& config) {
  std::vector<data::SourceLook> looks;
  const auto look = [&](const std::vector<config::DataSource>& sources, bool is_validation) {
    for (const config::DataSource& source : sources) {
      if (exists_or_matches(source.path))
        looks.push_back(data::look_at_source(config.data, source, is_validation));
    }
  };
  look(config.data.train, false);
  look(config.data.val, true);
  return looks;
}

std::string text_of(const data::SourceLook& look) {
  return fmt::format("{}{}: {} records ({}); the first {} can be read", look.name,
                     look.num_files == 1 ? "" : fmt::format(" ({} files)", look.num_files),
                     data::name_of(look.format), look.format_reason, look.num_records);
}

Json overrides_json(const config::LoadedConfig& loaded) {
  Json overrides = Json::array();
  for (const config::Override& override : loaded.overrides) {
    overrides.push_back(
        {{"key", override.key}, {"value", override.value}, {"source", override.source}});
  }
  return overrides;
}

/// The number of devices asked about: batch_size, grad_accum and global_batch_size together say it
/// too.
int world_size_of(const ConfigOptions& options, const config::RunConfig& config) {
  const auto& [batch, accum, global] =
      std::tie(config.train.batch_size.value, config.train.grad_accum.value,
               config.train.global_batch_size.value);
  if (options.world_size > 0) return options.world_size;
  if (!batch || !accum || !global || *global % (*batch * *accum) != 0) return 1;
  return static_cast<int>(*global / (*batch * *accum));
}

config::LoadedConfig load_resolved(const ConfigOptions& options) {
  config::LoadedConfig loaded = config::load_config(options.config, options.overrides);
  config::resolve(loaded, options.config, world_size_of(options, loaded.config));
  return loaded;
}

std::string overrides_text(const config::LoadedConfig& loaded, std::string_view prefix) {
  std::string text;
  for (const config::Override& override : loaded.overrides) {
    text += fmt::format("{}{}={} from {}\n", prefix, override.key, override.value, override.source);
  }
  return text;
}

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
}

int check_as_json(const ConfigOptions& options) {
  Json answer = {{"ok", true}};
  Json problems = Json::array();
  try {
    const config::LoadedConfig loaded = load_resolved(options);
    answer["warnings"] = all_warnings(loaded);
    answer["overrides"] = overrides_json(loaded);
    Json data = Json::array();
    for (const data::SourceLook& look : look_at_data(loaded.config)) {
      data.push_back({{"path", look.name},
                      {"files", look.num_files},
                      {"format", data::name_of(look.format)},
                      {"records_looked_at", look.num_records}});
    }
    answer["data"] = data;
  } catch (const config::ConfigProblems& found) {
    for (const config::Problem& problem : found.problems) {
      problems.push_back(
          {{"message", problem.message}, {"at", problem.where}, {"fix", problem.fix}});
    }
  } catch (const Error& error) {
    problems.push_back({{"message", error.message()}, {"at", error.where()}, {"fix", error.fix()}});
  }
  answer["ok"] = problems.empty();
  answer["problems"] = problems;
  fmt::print("{}\n", answer.dump(2));
  return static_cast<int>(problems.empty() ? ExitCode::kDone : ExitCode::kUsage);
}

int check(const ConfigOptions& options) {
  const config::LoadedConfig loaded = load_resolved(options);
  const std::vector<std::string> warnings = all_warnings(loaded);
  warn(warnings);
  for (const data::SourceLook& look : look_at_data(loaded.config))
    fmt::print("{}\n", text_of(look));
  fmt::print("{}{}: good{} (the model is not looked at here: train --dry-run does that)\n",
             overrides_text(loaded, ""), options.config.string(),
             warnings.empty() ? ""
                              : fmt::format(", but for the {} warned of",
                                            warnings.size() == 1 ? "one thing" : "things"));
  return static_cast<int>(ExitCode::kDone);
}

int show(const ConfigOptions& options) {
  const config::LoadedConfig loaded = load_resolved(options);
  warn(all_warnings(loaded));
  if (options.json) {
    fmt::print("{}\n", config::to_json(loaded.config).dump(2));
  } else {
    const int world_size = world_size_of(options, loaded.config);
    fmt::print("# {} on {} device{}\n{}{}", options.config.string(), world_size,
               world_size == 1 ? "" : "s", overrides_text(loaded, "# "),
               config::to_yaml(loaded.config));
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace

int run_config(const ConfigOptions& options) {
  if (options.action == "check") return options.json ? check_as_json(options) : check(options);
  if (options.action == "show") return show(options);
  fmt::print("{}",
             options.action == "schema" ? config::json_schema() : config::reference_markdown());
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
