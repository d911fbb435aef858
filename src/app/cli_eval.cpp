#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli.h"
#include "data_source_finder.h"
#include "model_source.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/user_path.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"
#include "sftrun/observe/run_report.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

struct EvalOptions {
  fs::path config;
  std::vector<std::string> overrides;
  std::string adapter;  ///< empty: the run's result; "none"
  fs::path predictions, worker_request;
  SamplingFlags sampling;
  ComputeFlags compute;
  LaunchFlags launch;
  DivisionFlags division;
  std::optional<int64_t> batch_size, max_records;
  bool base = false, no_generate = false, as_stored = false, overwrite = false, json = false;
};

void check(const EvalOptions& options, const CLI::App& command) {
  std::vector<std::string> words = options.overrides;
  words.push_back(options.adapter);
  require_config(command, options.config, words);
  check_sampling_flags(options.sampling);
  check_launch_flags(options.launch);
  if (!options.predictions.empty()) {
    require_writable_file("--predictions", options.predictions);
    if (leads_to_file(options.predictions) && !options.overwrite) {
      throw ConfigError(fmt::format("{} exists", options.predictions.string()),
                        "--predictions on the command line",
                        "name another file, or add --overwrite to replace it");
    }
  }
  if (!options.no_generate) return;
  for (const char* flag :
       {"--predictions", "--max-records", "--batch-size", "--max-new-tokens", "--temperature",
        "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop", "--seed"}) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option == nullptr || option->count() == 0) continue;
    throw ConfigError(fmt::format("{} needs generated answers, and --no-generate is given", flag),
                      "the command line", "leave one of them out");
  }
}

void check(const config::LoadedConfig& loaded, const fs::path& yaml) {
  const config::RunConfig& config = loaded.config;
  if (config.data.val.empty() && config.data.val_split == 0) {
    throw ConfigError("the run has no validation data", yaml.string(),
                      "set data.val or data.val_split, there or here: data.val=FILE");
  }
  if (config.train.objective_info().reads_pairs()) {
    const bool is_of_pairs =
        config::is_format(config.data.format, &config::RecordFormatInfo::is_pair);
    throw ConfigError("`sftrun eval` measures answers, and train.objective compares pairs of them",
                      loaded.place_of("train.objective"),
                      "for answers, add them here: data.val=FILE train.objective=" +
                          config::objectives_for(config::ExampleForm::kAnswer) +
                          (is_of_pairs ? " data.format=auto" : ""));
  }
}

/// A model to evaluate, as the engine reads it.
nlohmann::ordered_json entry(const char* name, const std::string& model,
                             const std::string& adapter = {}) {
  return {{"name", name}, {"model", model}, {"adapter", or_null(adapter)}};
}

/// What the run has trained: its model, or the adapter that --adapter or its directory names.
nlohmann::ordered_json trained_entry(const EvalOptions& options, const config::RunConfig& config,
                                     const std::string& base) {
  const fs::path run = config.output.dir;
  if (options.adapter.empty() && has_optional_file(run / "model" / "config.json"))
    return entry("model", (run / "model").string());
  if (options.adapter.empty() &&
      !has_optional_file(observe::adapter_at(run) / "adapter_config.json")) {
    throw DataError("the run has no result", run.string(),
                    "train it, name an adapter with --adapter, or evaluate its base model with "
                    "--adapter none");
  }
  std::string adapter = options.adapter.empty() ? run.string() : options.adapter;
  adapter = find_adapter({.name = adapter,
                          .where = "--adapter on the command line",
                          .names_model = "--adapter none model.name="})
                .string();
  require_exists("--adapter", adapter);
  return entry("adapter", base, adapter);
}

nlohmann::ordered_json models_of(const EvalOptions& options, const config::RunConfig& config,
                                 const std::string& base) {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  const bool only_base = is_none_word(options.adapter);
  if (only_base || options.base) models.push_back(entry("base", base));
  if (!only_base) models.push_back(trained_entry(options, config, base));
  return models;
}

/// The run's configuration without what concerns training only.
config::LoadedConfig load_evaluated(const EvalOptions& options) {
  config::LoadedConfig loaded = foreign::load_config_for_eval(options.config, options.overrides);
  check(loaded, options.config);
  find_data(loaded, /*quiet=*/false);
  config::require_files(loaded);
  data::require_chat_template(loaded);
  // Batch sizes and strategies are for another number of processes.
  loaded.config.train.batch_size = loaded.config.train.grad_accum =
      loaded.config.train.global_batch_size = config::AutoInt{};
  loaded.config.parallel = {};
  config::resolve(loaded, options.config, /*world_size=*/1);
  return loaded;
}

nlohmann::ordered_json request(const EvalOptions& options) {
  const config::LoadedConfig loaded = load_evaluated(options);
  const config::RunConfig& config = loaded.config;
  const std::string base = find_model({.name = config.model.name,
                                       .revision = config.model.revision,
                                       .where = loaded.place_of("model.name"),
                                       .adapter_way = AdapterWay::kSetting})
                               .path.string();
  const nlohmann::ordered_json settings = config::to_json(config);
  const std::string& dtype = options.compute.dtype;
  nlohmann::ordered_json request = {
      {"config", settings},
      {"places", loaded.places},
      {"models", models_of(options, config, base)},
      {"generate", !options.no_generate},
      {"max_records", or_null(options.max_records)},
      {"batch_size", or_null(options.batch_size)},
      {"predictions", or_null(options.predictions.string())},
      {"device", options.compute.device},
      {"dtype", dtype == "auto" ? settings.at("model").at("dtype").get<std::string>() : dtype},
      {"threads", or_null(options.compute.threads)},
      {"as_stored", options.as_stored},
      {"json", options.json}};
  put_sampling_flags(options.sampling, request);
  put_division(options.division, options.launch, request);
  return request;
}

void add_eval_flags(CLI::App& command, EvalOptions& options) {
  command.add_option("-c,--config", options.config, "The run's YAML (docs/configuration.md)")
      ->type_name("FILE");
  add_overrides(command, options.overrides);
  command
      .add_option(
          "--adapter", options.adapter,
          "Adapter to evaluate: its directory, a run's, or a name on the hub; none: the base "
          "model [the run's result]")
      ->type_name("ADAPTER");
  command.add_flag("--base", options.base, "Evaluate the base model too, for comparison");
  command.add_flag("--no-generate", options.no_generate,
                   "Only loss, perplexity and token accuracy: generate no answers");
  command
      .add_option("--max-records", options.max_records,
                  "Generate answers for the first validation examples only [all]")
      ->check(at_least(1))
      ->type_name("N");
  command
      .add_option("--predictions", options.predictions,
                  "Write the answers beside their references here, as JSON lines")
      ->type_name("FILE");
  command.add_flag("--overwrite", options.overwrite, "Replace --predictions if it exists");
}

}  // namespace

Command add_eval(CLI::App& sftrun) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = add_command(
      sftrun, "eval",
      "Evaluate a run's result on its validation data: loss, perplexity, token accuracy, and of "
      "generated answers ROUGE and exact match",
      "sftrun eval --config configs/run_lora.yaml --base\n"
      "  sftrun eval --config configs/run_lora.yaml --adapter none --no-generate --json");
  add_eval_flags(*command, *options);
  add_sampling_flags(*command, options->sampling);
  add_batch_size_flag(*command, options->batch_size);
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object instead of a table");
  add_launch_flags(*command, options->launch);
  add_division_flags(*command, options->division);
  add_worker_request(*command, options->worker_request);
  return {command, [options, command] {
            if (!options->worker_request.empty()) {
              return run_as_worker(
                  "eval", nlohmann::ordered_json::parse(read_text_file(options->worker_request)));
            }
            check(*options, *command);
            options->launch.device = options->compute.device;
            return run_on_devices({.name = "eval",
                                   .request = request(*options),
                                   .launch = options->launch,
                                   .has_temporary_folder = true});
          }};
}

}  // namespace sftrun::app
