#include <memory>

#include "cli.h"
#include "division_choice.h"
#include "sftrun/core/error.h"

namespace sftrun::app {
namespace {

struct ScoreOptions {
  std::string model, adapter, template_variables;
  RecordFlags records{.replaces_jsonl = true};  // the same input always gives the same scores
  ComputeRequest compute;
  LaunchFlags launch;
  DivisionFlags division;
  std::filesystem::path worker_request;  ///< of a worker: the launcher's request
  bool as_stored = false, json = false;
};

void check(ScoreOptions& options, const CLI::App& command) {
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
          .is_one_process = is_stream(options.records),
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
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json,
                    "Print a summary as one JSON object: tokens, mean log-probability, perplexity");
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {command,
          [options, command] {
            if (!options->worker_request.empty())
              return run_as_worker(read_json_file<ScoreRequest>(options->worker_request));
            check(*options, *command);
            find_adapter(options->adapter);
            ScoreRequest request{
                .model = {.model = checked_model(*command, options->model, options->adapter),
                          .adapter = if_given(options->adapter),
                          .as_stored = options->as_stored,
                          .chat_template_kwargs = if_given(options->template_variables)},
                .ranks = {.compute = options->compute},
                .records = input_request(options->records),
                .output = options->records.output,
                .json = options->json};
            options->launch.device = options->compute.device;
            choose_division(use_of(*options, request.model.model), options->launch,
                            options->division);
            put_division(options->division, options->launch, request.ranks);
            return run_on_devices(request, {.launch = options->launch,
                                            .has_temporary_folder = !is_stream(options->records)});
          },
          /*other_words=*/{},
          /*idle_rules=*/{idle::overwrite_of_stream(), idle::as_stored_of_model()}};
}

}  // namespace sftrun::app
