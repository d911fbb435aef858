#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli.h"
#include "data_source_finder.h"
#include "division_choice.h"
#include "model_source.h"
#include "sftrun/config/reference_model.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"
#include "sftrun/observe/run_report.h"
#include "teacher_source.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

struct EvalOptions {
  fs::path config;
  std::vector<std::string> overrides;
  std::string adapter;  ///< empty: the run's result; "none"
  fs::path predictions, worker_request;
  SamplingFlags sampling;
  ComputeRequest compute;
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
  std::vector<std::string> given;
  for (const char* flag :
       {"--predictions", "--max-records", "--batch-size", "--max-new-tokens", "--temperature",
        "--top-k", "--top-p", "--min-p", "--repetition-penalty", "--stop", "--seed"}) {
    const CLI::Option* option = command.get_option_no_throw(flag);
    if (option != nullptr && option->count() > 0) given.emplace_back(flag);
  }
  if (given.empty()) return;
  const std::string flags = joined(given, " and ");
  throw ConfigError(fmt::format("{} {} generated answers, and --no-generate is given", flags,
                                given.size() == 1 ? "needs" : "need"),
                    "the command line", fmt::format("leave out --no-generate, or {}", flags));
}

/// Whether pairs are compared with another model than what was trained without its adapter.
bool has_other_reference(const config::RunConfig& config) {
  const config::TrainConfig& train = config.train;
  if (!train.objective_info().reads_pairs() || !train.needs_reference()) return false;
  return train.reference_model() == config::ReferenceModel::kStart
             ? !config::starts_as_base(config.tuning)
             : train.reference_model() == config::ReferenceModel::kPath;
}

/// Log-probabilities of answers are what is known of another model.
void require_sums_of_reference(const config::LoadedConfig& loaded) {
  if (!has_other_reference(loaded.config) || loaded.config.train.ld_alpha.value_or(1) == 1) return;
  throw ConfigError(
      "`train.ld_alpha` weighs single tokens, and `sftrun eval` knows whole answers of the "
      "reference model of this run",
      loaded.place_of("train.ld_alpha"),
      "see the run's evaluations while it trained (eval_loss in metrics.jsonl), or evaluate "
      "without the weights: train.ld_alpha=1");
}

/// @param base path of the base model
EvaluatedModel reference_of(const config::LoadedConfig& loaded, const std::string& base) {
  const config::TrainConfig& train = loaded.config.train;
  const bool is_start = train.reference_model() == config::ReferenceModel::kStart;
  const std::string& adapter = is_start ? loaded.config.tuning.lora.init_from : train.reference;
  EvaluatedModel reference{.name = "reference model", .model = base};
  const bool names_adapter =
      is_start ? !adapter.empty()
               : leads_to_file(observe::adapter_at(adapter) / "adapter_config.json");
  if (names_adapter) {
    const char* key = is_start ? "tuning.lora.init_from" : "train.reference";
    reference.adapter =
        find_adapter({.name = adapter, .where = loaded.place_of(key), .names_model = "model.name="})
            .string();
  } else if (!is_start) {
    const fs::path of_run = fs::path(train.reference) / "model";
    reference.model = find_model({.name = leads_to_file(of_run / "config.json") ? of_run.string()
                                                                                : train.reference,
                                  .where = loaded.place_of("train.reference")})
                          .path.string();
  }
  return reference;
}

/// nullopt: the run has none, names scores, or it cannot be found, which a warning says.
std::optional<EvaluatedModel> teacher_of(const config::LoadedConfig& loaded) {
  if (!loaded.config.train.objective_info().needs_teacher) return std::nullopt;
  try {
    const std::optional<TeacherSource> found = find_teacher(loaded, {});
    if (!found) return std::nullopt;
    return EvaluatedModel{
        .name = "teacher", .model = found->model.string(), .adapter = if_given(found->adapter)};
  } catch (const Error& error) {
    log::warn("the divergence from the teacher is not measured: {}{}", error.message(),
              error.where().empty() ? "" : fmt::format(" ({})", error.where()));
    return std::nullopt;
  }
}

std::string words_of_settings(const EvalOptions& options) {
  std::string words = shell_word(options.config.string());
  for (const std::string& change : options.overrides) words += " " + shell_word(change);
  return words;
}

/// What measures a run that `sftrun eval` does not.
std::string instead_of_eval(const config::RunConfig& config) {
  const config::ObjectiveInfo& objective = config.train.objective_info();
  if (objective.embeds())
    return "evaluations of training have eval_loss, eval_accuracy and eval_mrr "
           "(train.eval_on_start, train.eval_strategy); `sftrun score` gives the embeddings";
  if (objective.reads_samples())
    return "answer the prompts with `sftrun generate`, and judge the answers with `sftrun reward` "
           "(docs/rewards.md)";
  const bool is_of_pairs =
      config::is_format(config.data.format, &config::RecordFormatInfo::is_pair);
  return "for answers, add them here: data.val=FILE train.objective=" +
         config::first_objective_for(config::ExampleForm::kAnswer) +
         (is_of_pairs ? " data.format=auto" : "");
}

void check(const config::LoadedConfig& loaded, const fs::path& yaml) {
  const config::RunConfig& config = loaded.config;
  if (config.data.val.empty() && config.data.val_split == 0) {
    throw ConfigError(
        "the run has no validation data", yaml.string(),
        "set data.val or data.val_split in the YAML, or on the command line: data.val=FILE");
  }
  const config::ObjectiveInfo& objective = config.train.objective_info();
  if (!objective.reads_answers() && !objective.has_scores() && !objective.reads_pairs()) {
    throw ConfigError(
        fmt::format("`sftrun eval` measures answers, pairs, rewards and classes, and "
                    "train.objective {} {}",
                    objective.name,
                    objective.embeds()          ? "compares embeddings of texts"
                    : objective.reads_samples() ? "learns from rewards of its own answers"
                                                : "learns from judgements"),
        loaded.place_of("train.objective"), instead_of_eval(config));
  }
  require_sums_of_reference(loaded);
}

/// What the run has trained: its model, or the adapter that --adapter or its directory names.
EvaluatedModel trained_model(const EvalOptions& options, const config::RunConfig& config,
                             const std::string& base) {
  const fs::path run = config.output.dir;
  if (options.adapter.empty() && has_optional_file(run / "model" / "config.json"))
    return {.name = "model", .model = run / "model"};
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
  return {.name = "adapter", .model = base, .adapter = adapter};
}

std::vector<EvaluatedModel> models_of(const EvalOptions& options, const config::RunConfig& config,
                                      const std::string& base) {
  std::vector<EvaluatedModel> models;
  const bool only_base = is_none_word(options.adapter);
  if (only_base || options.base) models.push_back({.name = "base", .model = base});
  if (!only_base) models.push_back(trained_model(options, config, base));
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

/// Models are loaded one after the other: the largest is the base with its adapter.
UsedModel use_of(const EvalOptions& options, const EvalRequest& request) {
  constexpr int64_t kUsualBatch = 8;
  const EvaluatedModel& trained = request.models.back();
  const int64_t longest = request.config.model.max_seq_len;
  return {.model = trained.model,
          .adapters = adapter_paths({trained.adapter.value_or("")}),
          .dtype = request.ranks.compute.dtype,
          .as_stored = options.as_stored,
          .sequences = {.rows = options.batch_size.value_or(kUsualBatch),
                        .tokens = longest + options.sampling.max_new_tokens,
                        .prompt_tokens = longest,
                        .keeps = !options.no_generate},
          .command = "eval"};
}

EvalRequest request_of(EvalOptions& options) {
  const config::LoadedConfig loaded = load_evaluated(options);
  const config::RunConfig& config = loaded.config;
  const std::string base = find_model({.name = config.model.name,
                                       .revision = config.model.revision,
                                       .where = loaded.place_of("model.name"),
                                       .adapter_way = AdapterWay::kSetting})
                               .path.string();
  EvalRequest request{.config = config,
                      .models = models_of(options, config, base),
                      .ranks = {.compute = options.compute, .places = loaded.places},
                      .teacher = teacher_of(loaded),
                      .settings = words_of_settings(options),
                      .as_stored = options.as_stored,
                      .generate = !options.no_generate,
                      .max_records = options.max_records,
                      .predictions = if_given(options.predictions.string()),
                      .sampling = options.sampling,
                      .batch_size = options.batch_size,
                      .json = options.json};
  if (has_other_reference(config)) request.reference = reference_of(loaded, base);
  if (request.ranks.compute.dtype == "auto")
    request.ranks.compute.dtype = config::to_json(config).at("model").at("dtype");
  choose_division(use_of(options, request), options.launch, options.division);
  put_division(options.division, options.launch, request.ranks);
  return request;
}

void add_eval_flags(CLI::App& command, EvalOptions& options) {
  command.add_option("-c,--config", options.config, "The run's YAML (docs/configuration.md)")
      ->type_name("FILE");
  add_overrides(command, options.overrides);
  command
      .add_option("--adapter", options.adapter,
                  "Adapter to evaluate: its directory, a run directory, or a name on the hub; "
                  "none: the base model [the run's result]")
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
                  "Write the answers and their references to this file as JSON lines")
      ->type_name("FILE");
  command.add_flag("--overwrite", options.overwrite, "Replace --predictions if it exists");
}

std::string why_base_alone(const CLI::App& command) {
  return is_none_word(idle::value_of(command, "--adapter"))
             ? " with --adapter none, which is the base model alone"
             : "";
}

std::vector<IdleRule> idle_rules() {
  return {
      {{"--overwrite"}, idle::without("--predictions")},
      idle::sampling_of_greedy(),
      {{"--base", "--as-stored"}, why_base_alone},
      idle::launch_flags_of_rank(),
      {{"data.shuffle", "data.shuffle_buffer"},
       idle::always(" in `sftrun eval`, which reads validation data in their order")},
      {{"train.batch_size", "train.grad_accum", "train.global_batch_size"},
       idle::always(" in `sftrun eval`; train.eval_batch_size is the size of its batches")},
      {{"parallel.strategy", "parallel.device_map", "parallel.pp", "parallel.cp", "parallel.tp",
        "parallel.dp_shard", "parallel.offload.", "parallel.fetch"},
       idle::always(
           " in `sftrun eval`, which divides a model by its own flags: --strategy, --tp, --pp")}};
}

}  // namespace

Command add_eval(CLI::App& sftrun) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = add_command(
      sftrun, "eval",
      "Evaluate a run's result on its validation data: loss, perplexity and token accuracy; for "
      "generated answers ROUGE and exact match",
      "sftrun eval --config configs/run_lora.yaml --base\n"
      "  sftrun eval --config configs/run_lora.yaml --adapter none --no-generate --json");
  add_eval_flags(*command, *options);
  add_sampling_flags(*command, options->sampling);
  add_batch_size_flag(*command, options->batch_size);
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object instead of a table");
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {command,
          [options, command] {
            if (!options->worker_request.empty())
              return run_as_worker(read_json_file<EvalRequest>(options->worker_request));
            check(*options, *command);
            return run_on_devices(request_of(*options),
                                  {.launch = options->launch, .has_temporary_folder = true});
          },
          /*other_words=*/{"evaluate", "test"},
          /*idle_rules=*/idle_rules()};
}

}  // namespace sftrun::app
