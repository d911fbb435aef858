#include <memory>

#include "cli.h"
#include "data_source_finder.h"
#include "division_choice.h"
#include "model_source.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/data/text_model.h"
#include "sftrun/foreign/load.h"

namespace sftrun::app {
namespace {

struct ScoreOptions {
  std::string model, adapter, template_variables;
  std::filesystem::path config;
  std::vector<std::string> overrides;
  std::optional<int64_t> topk;                  ///< for students; nullopt: scores of records
  std::optional<double> temperature;            ///< nullopt: the run's, else 1
  RecordFlags records{.replaces_jsonl = true};  // the same input always gives the same scores
  ComputeRequest compute;
  LaunchFlags launch;
  DivisionFlags division;
  std::filesystem::path worker_request;  ///< of a worker: the launcher's request
  bool as_stored = false, json = false;
};

/// The run whose examples are scored: that of --config, or one of the records of --input.
config::LoadedConfig load_taught(const ScoreOptions& options) {
  if (options.config.empty()) {
    config::LoadedConfig loaded = foreign::config_from_overrides(options.overrides);
    loaded.config.data.train = {input_of(options.records)};
    find_data(loaded, /*quiet=*/false);
    config::require_files(loaded);
    return loaded;
  }
  config::LoadedConfig loaded = foreign::load_config(options.config, options.overrides);
  find_data(loaded, /*quiet=*/false);
  config::require_files(loaded);
  data::require_chat_template(loaded);
  return loaded;
}

void require_answers(const config::LoadedConfig& loaded) {
  if (!loaded.config.train.objective_info().reads_answers())
    throw ConfigError(fmt::format("a teacher scores the label tokens of answers, and "
                                  "train.objective {} reads other examples",
                                  loaded.config.train.objective_info().name),
                      loaded.place_of("train.objective"), "set train.objective to distill");
  if (loaded.config.data.streaming)
    throw ConfigError("with `data.streaming` examples are not known before the first step",
                      loaded.place_of("data.streaming"), "remove data.streaming");
}

TeacherRequest teacher_request(const ScoreOptions& options, const std::string& model,
                               config::Places& places) {
  config::LoadedConfig loaded = load_taught(options);
  require_answers(loaded);
  loaded.config.parallel = {};  // of the students
  config::RunConfig& config = loaded.config;
  places = loaded.places;
  TeacherRequest request{.topk = *options.topk,
                         .temperature = options.temperature.value_or(config.train.kd_temperature),
                         .student = model,
                         .overwrite = options.records.overwrite};
  if (!options.config.empty())
    request.student = find_model({.name = config.model.name,
                                  .revision = config.model.revision,
                                  .where = loaded.place_of("model.name"),
                                  .adapter_way = AdapterWay::kSetting})
                          .path.string();
  request.config = config;
  return request;
}

/// @throws ConfigError for flags of the other way to score
void check_teacher_flags(ScoreOptions& options, const CLI::App& command) {
  require(!options.records.output.empty(), command, "--output");
  require(!options.config.empty() || !options.records.input.empty(), command,
          "--config or --input");
  require_at_most_one(command, {"--config", "--input"});
  if (!options.config.empty()) require_config(command, options.config, options.overrides);
  const std::filesystem::path folder = options.records.output;
  if (folder == "-" || is_plain_file(folder))
    throw ConfigError(fmt::format("{} is not a folder, and --topk writes one", folder.string()),
                      "--output on the command line", "name a folder");
  if (options.records.input == "-")
    throw ConfigError("--topk reads files, and --input is standard input",
                      "--input on the command line", "name a file");
  check_launch_flags(options.launch);
}

void check(ScoreOptions& options, const CLI::App& command) {
  if (options.topk) return check_teacher_flags(options, command);
  if (!options.config.empty() || !options.overrides.empty())
    throw ConfigError("--config is for --topk, which scores the examples of a run",
                      std::string("the command line"),
                      "add --topk 64, or name the records with --input");
  require(!options.records.input.empty(), command, "--input");
  require(!options.records.output.empty(), command, "--output");
  check_record_flags(options.records);
  if (options.json && options.records.output == "-") {
    throw ConfigError("--json and --output - both write to standard output",
                      "--output on the command line", "write the records to a file");
  }
  check_launch_flags(options.launch);
}

/// Records are read, one after the other; nothing is kept of them.
UsedModel use_of(const ScoreOptions& options, const std::string& model) {
  return {.model = model,
          .adapters = adapter_paths({options.adapter}),
          .dtype = options.compute.dtype,
          .as_stored = options.as_stored,
          .sequences = {.rows = 1,
                        .tokens = kUsualConversation,
                        .prompt_tokens = kUsualConversation,
                        .keeps = false},
          .is_one_process = !options.topk && is_stream(options.records),
          .command = "score"};
}

}  // namespace

Command add_score(CLI::App& sftrun) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = add_command(
      sftrun, "score",
      "Compute the log-probability of each record's labelled tokens: adds \"logprob\" and "
      "\"tokens\"",
      "sftrun score --model models/base --adapter runs/first/adapter --input in.jsonl --output "
      "out.jsonl\n\n"
      "Labelled tokens: all but the first of a text, the completion after a prompt, and the "
      "assistant's\nturns of messages. No end-of-text token is added; training adds one to texts.");
  add_model_flags(*command, options->model, options->adapter);
  add_record_flags(*command, options->records, "text, messages or prompt and completion",
                   "the records with their scores");
  add_template_flag(*command, options->template_variables);
  command
      ->add_option("--topk", options->topk,
                   "Be a teacher: write the log-probabilities of the N most likely tokens at each "
                   "labelled token to the directory --output, for `train.objective: distill` "
                   "(docs/distillation.md)")
      ->check(at_least(1))
      ->type_name("N");
  command->add_option("-c,--config", options->config, "--topk: the run whose examples are scored")
      ->type_name("FILE");
  add_overrides(*command, options->overrides);
  command
      ->add_option("--temperature", options->temperature,
                   "--topk: divides the logits [train.kd_temperature of the run]")
      ->check(in_range(0.01, 100))
      ->type_name("T");
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json,
                    "Print a summary as one JSON object: tokens, mean log-probability, perplexity");
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {
      command,
      [options, command] {
        if (!options->worker_request.empty())
          return run_as_worker(read_json_file<ScoreRequest>(options->worker_request));
        check(*options, *command);
        find_adapter(options->adapter);
        const bool is_teacher = options->topk.has_value();
        ScoreRequest request{
            .model = {.model = checked_model(*command, options->model, options->adapter),
                      .adapter = if_given(options->adapter),
                      .as_stored = options->as_stored,
                      .chat_template_kwargs = if_given(options->template_variables)},
            .ranks = {.compute = options->compute},
            .records = input_request(options->records),
            .output = options->records.output,
            .json = options->json};
        if (is_teacher)
          request.teacher = teacher_request(*options, request.model.model, request.ranks.places);
        options->launch.device = options->compute.device;
        choose_division(use_of(*options, request.model.model), options->launch, options->division);
        put_division(options->division, options->launch, request.ranks);
        return run_on_devices(request,
                              {.launch = options->launch,
                               .has_temporary_folder = is_teacher || !is_stream(options->records)});
      },
      /*other_words=*/{},
      /*idle_rules=*/
      {idle::overwrite_of_stream(),
       idle::as_stored_of_model(),
       {{"--temperature"}, idle::without("--topk")},
       {{"--chat-template-kwargs"},
        idle::with("--topk", ": data.chat_template_kwargs of the run counts")}}};
}

}  // namespace sftrun::app
