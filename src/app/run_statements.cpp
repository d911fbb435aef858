#include "run_statements.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "run_forecast.h"
#include "sftrun/config/best_metric.h"
#include "sftrun/config/preference_warnings.h"
#include "sftrun/config/setting_differences.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/small_data.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/plan/auto_values.h"
#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/stages.h"
#include "sftrun/reward/outside_program.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;

void list_changes(const Json& before, const Json& after, const std::string& prefix,
                  std::vector<std::string>& changes) {
  for (const auto& [key, value] : after.items()) {
    const std::string name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (value.is_object()) {
      list_changes(old, value, name, changes);
    } else if (value != old) {
      changes.push_back(fmt::format(
          "{} = {}", name, excerpt(value.is_string() ? value.get<std::string>() : value.dump())));
    }
  }
}

std::vector<std::string> override_lines(const Run& run) {
  std::vector<std::string> lines;
  for (const config::Override& override : run.loaded.overrides) {
    lines.push_back(
        fmt::format("{} = {} (from {})", override.key, excerpt(override.value), override.source));
  }
  return lines;
}

/// The resolved values: "train.learning_rate = 0.0002".   @param asked the configuration before
std::vector<std::string> resolved_values(const config::RunConfig& asked,
                                         const config::RunConfig& shown) {
  std::vector<std::string> values;
  list_changes(config::to_json(asked), config::to_json(shown), "", values);
  return values;
}

/// The number of bins per step depends on the data; the workers, which read them, log it.
bool follows_from_data(const Run& run, const std::string& resolved) {
  const config::RunConfig& config = run.loaded.config;
  if (!run.batches.steps_are_auto || config.data.streaming || config.train.max_steps) return false;
  const auto begins = [&](const char* key) { return resolved.starts_with(key); };
  return begins("train.batch_size ") || begins("train.grad_accum ") ||
         begins("train.global_batch_size ") || begins("train.eval_batch_size ");
}

/// "plan: fsdp 2 x tensor 2 on 4 processes", with sizes that follow from others; empty: one process.
std::string plan_line(const config::Axes& axes) {
  const int64_t processes = axes.stages_in_process ? 1 : axes.devices_of_part() * axes.data_parts();
  if (processes == 1) return {};
  return fmt::format("plan: {} on {} processes", config::describe(axes), processes);
}

/// Logs the configuration and the model. The workers read the data.
/// @param asked the configuration before it was resolved
void warn(const config::RunConfig& asked, const Run& run, const ModelHeaders* headers) {
  for (const std::string& warning : run.loaded.warnings) log::warn("{}", warning);
  for (const std::string& warning : config::preference_warnings(asked)) log::warn("{}", warning);
  if (headers == nullptr) return;
  const std::string positions = plan::position_warning(run.loaded.config.model, headers->arch);
  if (!positions.empty()) log::warn("{}", positions);
}

/// @param asked the configuration before it was resolved
void announce(const config::RunConfig& asked, const Run& run, const config::RunConfig& shown) {
  for (const std::string& line : override_lines(run)) log::info("override: {}", line);
  for (const std::string& line : run.loaded.notes) log::info("{}", line);
  std::vector<std::string> resolved = resolved_values(asked, shown);
  std::erase_if(resolved, [&](const std::string& one) { return follows_from_data(run, one); });
  if (!resolved.empty()) log::info("resolved: {}", join(resolved, ", "));
  if (const std::string plan = plan_line(shown.parallel.axes); !plan.empty()) log::info("{}", plan);
}

bool asks_for_batch(const config::TrainConfig& train) {
  return !train.batch_size.is_auto() || !train.grad_accum.is_auto() ||
         !train.global_batch_size.is_auto();
}

/// The settings that a checkpoint was written with. null: a new run, or it cannot be read, which the
/// engine reports.
Json settings_of_checkpoint(const std::filesystem::path& checkpoint) {
  const std::filesystem::path file = checkpoint / "state.json";
  if (checkpoint.empty() || !leads_to_file(file)) return nullptr;
  const Json state = Json::parse(read_text_file(file), nullptr, /*allow_exceptions=*/false);
  return state.is_object() ? state.value(Json::json_pointer("/identity/config"), Json()) : Json();
}

/// The checkpoint from which the run would go on; empty: none.
std::filesystem::path checkpoint_to_resume(const TrainOptions& options,
                                           const std::filesystem::path& run_dir) {
  if (options.overwrite || options.resume == "never") return {};
  return options.resume == "auto" ? observe::newest_checkpoint(run_dir)
                                  : std::filesystem::path(options.resume);
}

/// Settings in which the run differs from its checkpoint. Sizes that are `auto` are those of the
/// checkpoint, and what the engine resolves is not compared.
void require_settings_of_checkpoint(const TrainOptions& options, const config::RunConfig& asked,
                                    const Run& run, const config::RunConfig& sized) {
  const auto checkpoint = checkpoint_to_resume(options, sized.output.dir);
  Json was = settings_of_checkpoint(checkpoint), is = config::identity_settings(sized);
  if (!was.is_object()) return;
  const auto skip = [&](const char* key) { was.erase(key), is.erase(key); };
  if (run.batches.steps_are_auto) skip("train.global_batch_size");
  if (asked.data.bin_tokens.is_auto()) skip("data.bin_tokens");
  if (is["train.router_aux_loss_coef"].is_null()) skip("train.router_aux_loss_coef");
  if (sized.tuning.quant == config::Quant::kAuto) skip("tuning.quant");
  const auto differences = config::setting_differences(was, is, /*may_change_length=*/true);
  if (differences.empty()) return;
  throw ConfigError("the run differs from the checkpoint: " + join(differences, "; "),
                    checkpoint.string(),
                    fmt::format("to resume, {}; {}", config::restore_settings(differences),
                                config::kStartNewRun));
}

}  // namespace

config::RunConfig shown_config(const Run& run, const ModelHeaders& headers, bool on_gpu) {
  config::RunConfig shown = run.loaded.config;
  resolve_auto(shown, headers, on_gpu);
  return shown;
}

void warn_and_announce(const config::RunConfig& asked, const Run& run,
                       const std::optional<ModelHeaders>& headers, bool on_gpu) {
  const config::RunConfig shown = shown_config(run, headers.value_or(ModelHeaders{}), on_gpu);
  warn(asked, run, headers ? &*headers : nullptr);
  announce(asked, run, shown);
}

void print_dry_run(const TrainOptions& options, const config::RunConfig& asked, const Run& run,
                   const ModelHeaders& headers, bool on_gpu, const std::string& launch) {
  config::RunConfig shown = shown_config(run, headers, on_gpu);
  reward::require_programs(shown.train);
  reward::require_program(shown.callbacks);
  const RunCheck found =
      check_run(shown, run.model_path, headers, sizes_follow_data(shown, run.batches));
  const Forecast steps = forecast(shown, found.train, run.batches);
  config::RunConfig sized = shown;
  sized.train = steps.sizes;  // numbers, also where they are estimates
  apply_sizes(steps, shown);
  warn(asked, run, &headers);
  if (asks_for_batch(asked.train)) {
    const auto large =
        data::large_batch_warning(shown, steps.sizes, steps.bins_in_epoch, steps.is_exact);
    if (large) log::warn("{}", *large);
  }
  require_settings_of_checkpoint(options, asked, run, sized);
  if (steps.bin_tokens > 0) sized.data.bin_tokens.value = steps.bin_tokens;
  const auto few = data::few_steps_warning(sized, steps.steps, sized.train.learning_rate == 0.0);
  if (few && steps.is_exact) log::warn("{}", *few);
  if (const auto waiting = plan::waiting_stages_warning(sized)) log::warn("{}", *waiting);
  if (const auto idle = config::early_stopping_warning(shown.train, steps.steps, steps.evaluations))
    log::warn("{}", *idle);
  for (const std::string& line : override_lines(run)) fmt::print("# override: {}\n", line);
  for (const std::string& line : run.loaded.notes) fmt::print("# {}\n", line);
  std::vector<std::string> resolved = resolved_values(asked, shown);
  if (!steps.is_exact)
    std::erase_if(resolved, [&](const std::string& one) { return follows_from_data(run, one); });
  for (const std::string& line : resolved) fmt::print("# resolved: {}\n", line);
  for (const std::string& line : split(launch, '\n')) fmt::print("# launch: {}\n", line);
  if (const std::string plan = plan_line(shown.parallel.axes); !plan.empty())
    fmt::print("# {}\n", plan);
  if (shown.parallel.axes.has_stages())
    fmt::print("# {}\n", plan::describe_stages(headers.arch, shown));
  for (const std::string& line : found.lines) fmt::print("# {}\n", line);
  for (const std::string& line : lines_of(steps, shown)) fmt::print("# {}\n", line);
  fmt::print("{}", config::to_yaml(shown));
}

}  // namespace sftrun::app
