#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"

namespace sftrun::app {
namespace {

struct ScoreOptions {
  std::string model, adapter, template_variables;
  RecordFlags records{.replaces_jsonl = true};  // the same input always gives the same scores
  ComputeFlags compute;
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
  add_launch_flags(*command, options->launch);
  add_division_flags(*command, options->division);
  add_worker_request(*command, options->worker_request);
  return {command, [options, command] {
            if (!options->worker_request.empty()) {
              return run_as_worker(
                  "score", nlohmann::ordered_json::parse(read_text_file(options->worker_request)));
            }
            check(*options, *command);
            find_adapter(options->adapter);
            nlohmann::ordered_json request = {
                {"model", checked_model(*command, options->model, options->adapter)},
                {"adapter", or_null(options->adapter)},
                {"output", options->records.output},
                {"chat_template_kwargs", or_null(options->template_variables)},
                {"device", options->compute.device},
                {"dtype", options->compute.dtype},
                {"as_stored", options->as_stored},
                {"threads", or_null(options->compute.threads)},
                {"json", options->json}};
            put_input(options->records, request);
            put_division(options->division, options->launch, request);
            options->launch.device = options->compute.device;
            return run_on_devices({.name = "score",
                                   .request = request,
                                   .launch = options->launch,
                                   .has_temporary_folder = !is_stream(options->records)});
          }};
}

}  // namespace sftrun::app
