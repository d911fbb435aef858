#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "commands.h"
#include "data_source_finder.h"
#include "engine_location.h"
#include "gpu_view.h"
#include "model_source.h"
#include "run_check.h"
#include "run_forecast.h"
#include "run_resolution.h"
#include "sftrun/config/problem.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/data_problems.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/launch/launch_plan.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/reward/outside_program.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

/// As find_adapter takes its name.
bool has_adapter_on_hub(const config::RunConfig& config) {
  const std::string& adapter = config.tuning.lora.init_from;
  if (leads_to_file(adapter)) return false;
  const auto name = hub::parse_model_name(adapter);
  return name && !is_path_here(adapter, *name);
}

/// @throws Error for files and programs that do not exist. Names on a hub are not looked up.
void require_local_files(const config::LoadedConfig& loaded) {
  config::LoadedConfig here = loaded;
  for (auto* sources : {&here.config.data.train, &here.config.data.val})
    std::erase_if(*sources, [](const config::DataSource& s) { return may_be_on_hub(s.path); });
  if (has_adapter_on_hub(here.config)) here.config.tuning.lora.init_from.clear();
  config::require_files(here);
  data::require_chat_template(here);
  reward::require_programs(here.config.train);
  reward::require_program(here.config.callbacks);
}

/// For `config show`, which may be called before the data exist.
std::vector<std::string> all_warnings(const config::LoadedConfig& loaded) {
  std::vector<std::string> warnings = loaded.warnings;
  try {
    require_local_files(loaded);
  } catch (const Error& error) {
    warnings.push_back(error.where().empty()
                           ? error.message()
                           : fmt::format("{} ({})", error.message(), error.where()));
  }
  return warnings;
}

/// Reads the first records of the run's data.
std::vector<data::SourceLook> look_at_data(const config::RunConfig& config,
                                           std::vector<std::string>& warnings) {
  std::vector<data::SourceLook> looks;
  data::ProblemCollector problems;
  const auto look = [&](const config::DataSource& source, bool is_validation) {
    if (!exists_or_matches(source.path)) return;  // on a hub
    looks.push_back(data::look_at_source(config, source, is_validation));
    const std::vector<std::string>& more = looks.back().warnings;
    warnings.insert(warnings.end(), more.begin(), more.end());
  };
  for (const config::DataSource& source : config.data.train)
    problems.run([&] { look(source, false); });
  for (const config::DataSource& source : config.data.val)
    problems.run([&] { look(source, true); });
  problems.throw_if_any();
  return looks;
}

/// Names that are not local files.
std::vector<std::string> names_on_hub(const config::RunConfig& config) {
  std::vector<std::string> names;
  for (const auto* sources : {&config.data.train, &config.data.val}) {
    for (const config::DataSource& source : *sources) {
      if (may_be_on_hub(source.path)) names.push_back(source.path);
    }
  }
  return names;
}

std::string text_of(const data::SourceLook& look) {
  return fmt::format("{}{}{}: {} records ({}); the first {} can be read", look.name, look.subset,
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

/// The number of devices: --world-size, or the number that batch_size, grad_accum and
/// global_batch_size together imply.
int world_size_of(const ConfigOptions& options, const config::RunConfig& config) {
  const auto& [batch, accum, global] =
      std::tie(config.train.batch_size.value, config.train.grad_accum.value,
               config.train.global_batch_size.value);
  if (options.world_size > 0) return options.world_size;
  if (!batch || !accum || !global || *global % (*batch * *accum) != 0) return 1;
  return static_cast<int>(*global / (*batch * *accum));
}

config::LoadedConfig load_resolved(const ConfigOptions& options) {
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  config::resolve(loaded, options.config, world_size_of(options, loaded.config));
  return loaded;
}

/// Whether a run on this machine would compute on GPUs.
bool trains_on_gpu(const config::MachineSettings& machine) {
  const std::vector<launch::GpuInfo> gpus = view_of(launch::query_gpus()).shown.gpus;
  return machine.devices != "cpu" &&
         std::any_of(gpus.begin(), gpus.end(),
                     [](const launch::GpuInfo& gpu) { return !gpu.is_too_old(); });
}

bool is_here(const std::vector<config::DataSource>& sources) {
  return std::all_of(sources.begin(), sources.end(), [](const config::DataSource& source) {
    return exists_or_matches(source.path);
  });
}

/// Fills in values of `config` from the model's files and this machine, if the model is local, and
/// the number of steps from the first records, if the data are local.
/// @return lines to print
std::vector<std::string> look_at_model(config::RunConfig& config, const BatchRequest& batches,
                                       bool on_gpu) {
  const std::filesystem::path model = config.model.name;
  resolve_auto(config, {}, on_gpu);
  if (!leads_to_file(model)) {
    return {fmt::format("{} is not a local file or directory: quant and steps are unknown",
                        config.model.name)};
  }
  const ModelHeaders headers = read_headers(model, config);
  resolve_auto(config, headers, on_gpu);
  const std::string positions = plan::position_warning(config.model, headers.arch);
  if (!positions.empty()) log::warn("{}", positions);
  if (!headers.has_weights)
    log::warn("{} has no weights: a run would end with an error", model.string());
  if (!is_here(config.data.train) || !is_here(config.data.val))
    return {"the data are not local: the number of steps is unknown"};
  RunCheck check = check_run(config, model, headers, sizes_follow_data(config, batches));
  const Forecast steps = forecast(config, check.train, batches);
  apply_sizes(steps, config);
  for (std::string& line : lines_of(steps, config)) check.lines.push_back(std::move(line));
  return std::move(check.lines);
}

/// Like look_at_model, but problems of the model or the data are warnings: the configuration is
/// still shown.
std::vector<std::string> try_model(config::RunConfig& config, const BatchRequest& batches,
                                   bool on_gpu) {
  try {
    return look_at_model(config, batches, on_gpu);
  } catch (const Error& error) {
    log::warn("{}{}", error.message(),
              error.where().empty() ? "" : fmt::format(" ({})", error.where()));
    return {};
  }
}

std::string overrides_text(const config::LoadedConfig& loaded, std::string_view prefix) {
  std::string text;
  for (const config::Override& override : loaded.overrides) {
    text += fmt::format("{}{}={} from {}\n", prefix, override.key, override.value, override.source);
  }
  return text;
}

std::string lines_text(const std::vector<std::string>& lines, std::string_view prefix) {
  std::string text;
  for (const std::string& line : lines) text += fmt::format("{}{}\n", prefix, line);
  return text;
}

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
}

void add(Json& problems, const config::Problems& found) {
  for (const config::Problem& problem : found)
    problems.push_back({{"message", problem.message}, {"at", problem.where}, {"fix", problem.fix}});
}

int check_as_json(const ConfigOptions& options) {
  Json answer = {{"ok", true}};
  Json problems = Json::array();
  ExitCode code = ExitCode::kDone;
  try {
    const config::LoadedConfig loaded = load_resolved(options);
    std::vector<std::string> warnings = loaded.warnings;
    answer["overrides"] = overrides_json(loaded);
    answer["notes"] = loaded.notes;
    answer["data_on_hub"] = names_on_hub(loaded.config);
    require_local_files(loaded);
    Json data = Json::array();
    const auto looks = look_at_data(loaded.config, warnings);
    answer["warnings"] = warnings;
    for (const data::SourceLook& look : looks) {
      data.push_back({{"path", look.name},
                      {"files", look.num_files},
                      {"format", data::name_of(look.format)},
                      {"records_looked_at", look.num_records}});
    }
    answer["data"] = data;
  } catch (const config::ConfigProblems& found) {
    code = found.code();
    add(problems, found.problems);
  } catch (const data::DataProblems& found) {
    code = found.code();
    add(problems, found.problems);
  } catch (const Error& error) {
    code = error.code();
    problems.push_back({{"message", error.message()}, {"at", error.where()}, {"fix", error.fix()}});
  }
  answer["ok"] = problems.empty();
  answer["problems"] = problems;
  fmt::print("{}\n", answer.dump(2));
  return static_cast<int>(code);
}

int check(const ConfigOptions& options) {
  const config::LoadedConfig loaded = load_resolved(options);
  warn(loaded.warnings);  // also if an error follows
  require_local_files(loaded);
  std::vector<std::string> warnings;
  const std::vector<data::SourceLook> looks = look_at_data(loaded.config, warnings);
  warn(warnings);
  warnings.insert(warnings.end(), loaded.warnings.begin(), loaded.warnings.end());
  for (const data::SourceLook& look : looks) fmt::print("{}\n", text_of(look));
  std::vector<std::string> not_here = names_on_hub(loaded.config);
  if (has_adapter_on_hub(loaded.config)) not_here.push_back(loaded.config.tuning.lora.init_from);
  for (const std::string& name : not_here) {
    fmt::print("{}: {}on the hub, not checked\n", name,
               hub::begins_as_hub_name(name) ? "" : "no file or folder of that name; ");
  }
  fmt::print("{}{}{}: valid{} (the model was not checked; train --dry-run checks it)\n",
             overrides_text(loaded, ""), lines_text(loaded.notes, ""), options.config.string(),
             warnings.empty() ? "" : ", " + counted(warnings.size(), "warning"));
  return static_cast<int>(ExitCode::kDone);
}

/// Resolves `loaded` as a run on so many devices of this machine would, if the model is here.
BatchRequest resolve_shown(config::LoadedConfig& loaded, const ConfigOptions& options,
                           int world_size) {
  const std::filesystem::path model = loaded.config.model.name;
  if (leads_to_file(model)) {
    const char* device = trains_on_gpu(loaded.machine) ? "auto" : "cpu";
    try {
      const ModelHeaders headers = read_headers(model, loaded.config);
      Run run = resolve_run(loaded, model, &headers, options.config,
                            place_here(loaded.config, world_size, world_size, device));
      loaded = std::move(run.loaded);
      return run.batches;
    } catch (const Error&) {  // try_model warns of the model, and the configuration is still shown
    }
  }
  BatchRequest batches = batch_request(loaded.config.train);
  config::resolve(loaded, options.config, world_size);
  batches.dp_size = static_cast<int>(loaded.config.parallel.axes.data_parts());
  return batches;
}

int show(const ConfigOptions& options) {
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  const int world_size = world_size_of(options, loaded.config);
  const BatchRequest batches = resolve_shown(loaded, options, world_size);
  warn(all_warnings(loaded));
  const std::vector<std::string> found =
      try_model(loaded.config, batches, trains_on_gpu(loaded.machine));
  if (options.json) {
    fmt::print("{}\n", config::to_json(loaded.config).dump(2));
    return static_cast<int>(ExitCode::kDone);
  }
  fmt::print("# {} on {}\n{}", options.config.string(), counted(world_size, "device"),
             overrides_text(loaded, "# "));
  fmt::print("{}", lines_text(loaded.notes, "# "));
  for (const std::string& line : found) fmt::print("# {}\n", line);
  fmt::print("{}", config::to_yaml(loaded.config));
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
