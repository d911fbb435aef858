#include <memory>

#include "cli.h"

namespace sftrun::app {
namespace {

struct ScoreOptions {
  std::string model, adapter, input, output, device = "auto", dtype = "auto";
  std::optional<int64_t> threads;
  bool as_stored = false;
};

void check(const ScoreOptions& options, const CLI::App& command) {
  require(!options.input.empty(), command, "--input");
  require(!options.output.empty(), command, "--output");
  require_exists("--input", options.input);
  require_writable_file("--output", options.output);
}

}  // namespace

Command add_score(CLI::App& sftrun) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = add_command(
      sftrun, "score",
      "Log-probability of each record's labelled tokens, as they are (no end of text is added, "
      "which training learns, too): adds \"logprob\" and \"tokens\"",
      "sftrun score --model models/base --adapter runs/first/adapter --input in.jsonl --output "
      "out.jsonl");
  add_model_flags(*command, options->model, options->adapter);
  command->add_option("--input", options->input, "JSON lines: text, messages or prompt/completion")
      ->type_name("FILE");
  command->add_option("--output", options->output, "Where the records go with their scores")
      ->type_name("FILE");
  add_as_stored_flag(*command, options->as_stored);
  command->add_option("--device", options->device, "Device to compute on")
      ->check(device_name())
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Numbers to compute in")
      ->transform(compute_dtype())
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads [all the process may use]")
      ->check(at_least(1));
  return {command, [options, command] {
            check(*options, *command);
            find_adapter(options->adapter);
            return run_in_engine(
                "score", {{"model", checked_model(*command, options->model, options->adapter)},
                          {"adapter", or_null(options->adapter)},
                          {"input", options->input},
                          {"output", options->output},
                          {"device", options->device},
                          {"dtype", options->dtype},
                          {"as_stored", options->as_stored},
                          {"threads", or_null(options->threads)}});
          }};
}

}  // namespace sftrun::app
