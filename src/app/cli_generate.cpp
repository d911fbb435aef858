#include <memory>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"

namespace sftrun::app {
namespace {

struct GenerateOptions {
  std::string model, adapter, prompt, input, output, system;
  bool chat = false;  ///< only if one of --chat and --no-chat is given
  int64_t max_new_tokens = 256;
  double temperature = 0;
  std::optional<double> top_p;
  std::optional<int64_t> top_k, seed, threads, batch_size;
  std::string device = "auto", dtype = "auto";
  bool json = false, as_stored = false;
};

void add_sampling_flags(CLI::App& command, GenerateOptions& options) {
  command.add_option("--max-new-tokens", options.max_new_tokens, "Tokens to stop after")
      ->check(at_least(1))
      ->capture_default_str();
  command
      .add_option("--temperature", options.temperature,
                  "0: always the likeliest token (greedy); 1: as the model has it")
      ->check(in_range(0, 100))
      ->capture_default_str();
  command
      .add_option("--top-p", options.top_p,
                  "Sample from the likeliest tokens that make up this probability [1: all]")
      ->check(in_range(0, 1));
  command.add_option("--top-k", options.top_k, "Sample from this many likeliest tokens [all]")
      ->check(at_least(1));
  command.add_option("--seed", options.seed, "Of the sampling [0]")->check(at_least(0));
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
  if (options.temperature == 0 && (options.top_p || options.top_k || options.seed)) {
    log::warn(
        "--top-p, --top-k and --seed do nothing without --temperature: the likeliest token is "
        "taken each time; add, for example, --temperature 0.7");
  }
  if (!options.input.empty()) {
    require(!options.output.empty(), command, "--output with --input");
    require_exists("--input", options.input);
  }
  if (!options.output.empty()) require_writable_file("--output", options.output);
}

nlohmann::json request(const GenerateOptions& options, const CLI::App& command) {
  const bool prompt = command.count("--prompt") > 0;
  return {{"model", checked_model(command, options.model, options.adapter)},
          {"adapter", or_null(options.adapter)},
          {"prompt", prompt ? nlohmann::json(options.prompt) : nlohmann::json(nullptr)},
          {"input", or_null(options.input)},
          {"output", or_null(options.output)},
          {"system", or_null(options.system)},
          {"chat",
           command.count("--chat") > 0 ? nlohmann::json(options.chat) : nlohmann::json(nullptr)},
          {"max_new_tokens", options.max_new_tokens},
          {"temperature", options.temperature},
          {"top_p", or_null(options.top_p)},
          {"top_k", or_null(options.top_k)},
          {"seed", or_null(options.seed)},
          {"device", options.device},
          {"dtype", options.dtype},
          {"as_stored", options.as_stored},
          {"threads", or_null(options.threads)},
          {"batch_size", or_null(options.batch_size)},
          {"json", options.json}};
}

}  // namespace

Command add_generate(CLI::App& sftrun) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = add_command(
      sftrun, "generate", "Let a model, or a model with an adapter, write",
      "sftrun generate --adapter runs/first/adapter --prompt \"What is the capital of France?\"\n"
      "  sftrun generate --model models/base --input in.jsonl --output out.jsonl --temperature 0.7 "
      "--seed 1");
  add_model_flags(*command, options->model, options->adapter);
  command->add_option("-p,--prompt", options->prompt, "Text to answer or continue");
  command
      ->add_option("--input", options->input,
                   "JSON lines: messages, prompt or text, one answer each")
      ->type_name("FILE");
  command
      ->add_option("--output", options->output,
                   "Where answers go as JSON lines (needed with --input)")
      ->type_name("FILE");
  command->add_option("--system", options->system, "System message before --prompt");
  command->add_flag("--chat,!--no-chat", options->chat,
                    "Put the prompt through the chat template, or not [if the model has one]");
  add_sampling_flags(*command, *options);
  command
      ->add_option("--batch-size", options->batch_size,
                   "Records generated side by side [chosen by memory]")
      ->check(at_least(1));
  add_as_stored_flag(*command, options->as_stored);
  command->add_option("--device", options->device, "Device to compute on")
      ->check(device_name())
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Numbers to compute in")
      ->transform(compute_dtype())
      ->capture_default_str();
  command->add_option("--threads", options->threads, "CPU threads [all the process may use]")
      ->check(at_least(1));
  command->add_flag("--json", options->json, "Print one JSON object for --prompt instead of text");
  return {command, [options, command] {
            check(*options, *command);
            find_adapter(options->adapter);
            return run_in_engine("generate", request(*options, *command));
          }};
}

}  // namespace sftrun::app
