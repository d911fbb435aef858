#include <algorithm>
#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"

namespace sftrun::app {
namespace {

struct GenerateOptions {
  std::string model, adapter, prompt, system;
  RecordFlags records;
  ComputeFlags compute;
  bool chat = false;  ///< only if one of --chat and --no-chat is given
  int64_t max_new_tokens = 256;
  double temperature = 0;
  std::optional<double> top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, seed, batch_size;
  std::vector<std::string> stop;
  bool json = false, as_stored = false;
};

void add_sampling_flags(CLI::App& command, GenerateOptions& options) {
  command
      .add_option("--max-new-tokens", options.max_new_tokens,
                  "Maximum number of tokens to generate")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option(
          "--temperature", options.temperature,
          "0: greedy, always the most likely token; above 0: sample, 1 as the model predicts")
      ->check(in_range(0, 100))
      ->capture_default_str();
  command
      .add_option("--top-p", options.top_p,
                  "Sample from the most likely tokens whose probabilities add up to this [1: all]")
      ->check(in_range(0, 1));
  command.add_option("--top-k", options.top_k, "Sample from this many most likely tokens [all]")
      ->check(at_least(1));
  command
      .add_option("--min-p", options.min_p,
                  "Sample from tokens with at least this share of the most likely token's "
                  "probability [0: all]")
      ->check(in_range(0, 1));
  command.add_option("--seed", options.seed, "Seed of the sampling [0]")->check(at_least(0));
  command
      .add_option("--repetition-penalty", options.repetition_penalty,
                  "Above 1: make tokens of the prompt and tokens already generated less likely [1]")
      ->check(in_range(0.01, 100));
  command
      .add_option("--stop", options.stop,
                  "End the answer before this text; may be given several times")
      ->allow_extra_args(false)
      ->type_name("TEXT");
}

void check(const GenerateOptions& options, const CLI::App& command) {
  require_at_most_one(command, {"--prompt", "--input"});
  require(command.count("--prompt") + command.count("--input") > 0, command, "--prompt or --input");
  require_at_most_one(command, {"--input", "--system"});
  if (command.count("--no-chat") > 0 && !options.chat && !options.system.empty()) {
    throw ConfigError("--system does nothing with --no-chat: it is a message of a conversation",
                      "the command line",
                      "leave --no-chat away, or write what it says into the prompt");
  }
  const bool samples = options.top_p || options.top_k || options.min_p || options.seed;
  if (options.temperature == 0 && samples) {
    log::warn(
        "--top-p, --top-k, --min-p and --seed do nothing without --temperature: the most likely "
        "token is taken each time; add, for example, --temperature 0.7");
  }
  if (std::find(options.stop.begin(), options.stop.end(), "") != options.stop.end())
    throw ConfigError("--stop is empty", "--stop on the command line", "give a text to stop at");
  if (!options.records.input.empty())
    require(!options.records.output.empty(), command, "--output with --input");
  check_record_flags(options.records);
}

nlohmann::json request(const GenerateOptions& options, const CLI::App& command) {
  const bool prompt = command.count("--prompt") > 0;
  return {{"model", checked_model(command, options.model, options.adapter)},
          {"adapter", or_null(options.adapter)},
          {"prompt", prompt ? nlohmann::json(options.prompt) : nlohmann::json(nullptr)},
          {"input", or_null(options.records.input)},
          {"output", or_null(options.records.output)},
          {"system", or_null(options.system)},
          {"chat",
           command.count("--chat") > 0 ? nlohmann::json(options.chat) : nlohmann::json(nullptr)},
          {"max_new_tokens", options.max_new_tokens},
          {"temperature", options.temperature},
          {"top_p", or_null(options.top_p)},
          {"top_k", or_null(options.top_k)},
          {"min_p", or_null(options.min_p)},
          {"repetition_penalty", or_null(options.repetition_penalty)},
          {"stop", options.stop},
          {"seed", or_null(options.seed)},
          {"device", options.compute.device},
          {"dtype", options.compute.dtype},
          {"as_stored", options.as_stored},
          {"threads", or_null(options.compute.threads)},
          {"batch_size", or_null(options.batch_size)},
          {"json", options.json}};
}

}  // namespace

Command add_generate(CLI::App& sftrun) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = add_command(
      sftrun, "generate", "Generate text, optionally with an adapter",
      "sftrun generate --adapter runs/first/adapter --prompt \"What is the capital of France?\"\n"
      "  sftrun generate --model models/base --input in.jsonl --output out.jsonl --temperature 0.7 "
      "--seed 1");
  add_model_flags(*command, options->model, options->adapter);
  command->add_option("-p,--prompt", options->prompt, "Text to answer or continue");
  add_record_flags(*command, options->records, "messages, a prompt or text",
                   "the records with their answers");
  command->add_option("--system", options->system, "System message before --prompt");
  command->add_flag(
      "--chat,!--no-chat", options->chat,
      "Apply the chat template to prompts that are strings, or not [if the model has one]");
  add_sampling_flags(*command, *options);
  command->add_option("--batch-size", options->batch_size, "Records generated at the same time [8]")
      ->check(at_least(1));
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object for --prompt instead of text");
  return {command, [options, command] {
            check(*options, *command);
            find_adapter(options->adapter);
            return run_in_engine("generate", request(*options, *command));
          }};
}

}  // namespace sftrun::app
