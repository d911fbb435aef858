#include <algorithm>
#include <memory>

#include "cli.h"
#include "division_choice.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun::app {
namespace {

struct GenerateOptions {
  std::string model, adapter, prompt, system, template_variables;
  std::vector<std::string> images;
  RecordFlags records;
  ComputeRequest compute;
  LaunchFlags launch;
  DivisionFlags division;
  std::filesystem::path worker_request;  ///< of a worker: the launcher's request
  SamplingFlags sampling;
  int64_t num_answers = 1;
  std::optional<int64_t> batch_size;
  bool chat = false;  ///< only if one of --chat and --no-chat is given
  bool logprobs = false, json = false, as_stored = false;
};

void check_answers(const GenerateOptions& options) {
  if (options.num_answers > 1 && options.sampling.temperature == 0) {
    throw ConfigError(
        fmt::format("-n {}: all answers to a prompt would be the same, the greedy one",
                    options.num_answers),
        "-n on the command line", "add --temperature 1, or leave -n out");
  }
  if (options.logprobs && !options.prompt.empty() && !options.json &&
      options.records.output.empty()) {
    throw ConfigError("--logprobs has no effect on an answer that is printed as text",
                      "--logprobs on the command line", "add --json or --output");
  }
}

void check(GenerateOptions& options, const CLI::App& command) {
  require_at_most_one(command, {"--prompt", "--input"});
  require(command.count("--prompt") + command.count("--input") > 0, command, "--prompt or --input");
  require_at_most_one(command, {"--input", "--system"});
  require_at_most_one(command, {"--input", "--image"});
  if (command.count("--no-chat") > 0 && !options.chat && !options.system.empty()) {
    throw ConfigError("--system has no effect with --no-chat: it is a message of a conversation",
                      "the command line",
                      "remove --no-chat, or write the system message into the prompt");
  }
  check_sampling_flags(options.sampling);
  check_answers(options);
  if (!options.records.input.empty())
    require(!options.records.output.empty(), command, "--output with --input");
  check_record_flags(options.records);
  check_launch_flags(options.launch);
}

constexpr int64_t kUsualBatch = 8;

UsedModel use_of(const GenerateOptions& options, const std::string& model) {
  constexpr int64_t kMinBytesOfToken = 2;
  const bool is_prompt = options.records.input.empty();
  const int64_t prompt = std::max(kUsualPrompt, std::ssize(options.prompt) / kMinBytesOfToken);
  return {.model = model,
          .adapters = adapter_paths({options.adapter}),
          .dtype = options.compute.dtype,
          .as_stored = options.as_stored,
          .sequences = {.rows = is_prompt ? std::min(options.num_answers, kUsualBatch)
                                          : options.batch_size.value_or(kUsualBatch),
                        .tokens = prompt + options.sampling.max_new_tokens,
                        .prompt_tokens = prompt},
          .has_one_copy = is_prompt,
          .is_one_process = !is_prompt && is_stream(options.records),
          .command = is_prompt ? "--prompt" : "generate"};
}

/// Where answers are kept until all are there; empty: nowhere.
std::filesystem::path folder_of(const GenerateOptions& options) {
  const RecordFlags& records = options.records;
  if (records.input.empty() || is_stream(records)) return {};
  return records.output + ".parts";
}

GenerateRequest request_of(GenerateOptions& options, const CLI::App& command) {
  GenerateRequest request{.model = {.model = checked_model(command, options.model, options.adapter),
                                    .adapter = if_given(options.adapter),
                                    .as_stored = options.as_stored,
                                    .chat_template_kwargs = if_given(options.template_variables)},
                          .ranks = {.compute = options.compute},
                          .records = input_request(options.records),
                          .output = if_given(options.records.output),
                          .system = if_given(options.system),
                          .sampling = options.sampling,
                          .num_answers = options.num_answers,
                          .logprobs = options.logprobs,
                          .batch_size = options.batch_size,
                          .overwrite = options.records.overwrite,
                          .json = options.json};
  if (command.count("--prompt") > 0) request.prompt = options.prompt;
  for (const std::string& image : options.images) {
    if (!leads_to_file(image))
      throw DataError("no such file: " + image, "--image on the command line",
                      "name a PNG, JPEG or WebP file");
    request.images.push_back(std::filesystem::absolute(image).string());
  }
  if (command.count("--chat") > 0) request.chat = options.chat;
  choose_division(use_of(options, request.model.model), options.launch, options.division);
  put_division(options.division, options.launch, request.ranks);
  return request;
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
  command
      ->add_option("--image", options->images,
                   "Image that the model sees before --prompt; may be given several times")
      ->allow_extra_args(false)
      ->type_name("FILE");
  add_record_flags(*command, options->records, "messages, a prompt or text",
                   "the records with their answers");
  command->add_option("--system", options->system, "System message before --prompt");
  command->add_flag(
      "--chat,!--no-chat", options->chat,
      "Whether to apply the chat template to prompts that are strings [yes, if the model has one]");
  add_template_flag(*command, options->template_variables);
  add_sampling_flags(*command, options->sampling);
  command
      ->add_option("-n,--num-answers", options->num_answers,
                   "Answers to each prompt; with --input one line for each, with \"group\" (the "
                   "record's number) and \"answer_index\"; needs --temperature")
      ->check(at_least(1, kMaxRows))
      ->capture_default_str();
  command->add_flag("--logprobs", options->logprobs,
                    "Write token ids and log-probabilities, too (docs/inference.md)");
  add_batch_size_flag(*command, options->batch_size);
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object for --prompt instead of text");
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {
      command,
      [options, command] {
        if (!options->worker_request.empty())
          return run_as_worker(read_json_file<GenerateRequest>(options->worker_request));
        check(*options, *command);
        find_adapter(options->adapter);
        options->launch.device = options->compute.device;
        const bool asks_for_processes = options->launch.asks_for_processes();
        const GenerateRequest request = request_of(*options, *command);
        if (options->records.input.empty() && !options->division.is_given() && !asks_for_processes)
          return run_in_engine(request);
        return run_on_devices(request, {.launch = options->launch,
                                        .folder = folder_of(*options),
                                        .has_temporary_folder = options->records.input.empty()});
      },
      /*other_words=*/{"infer", "inference", "predict", "complete"},
      /*idle_rules=*/
      {{{"--overwrite"}, idle::without("--output")},
       idle::overwrite_of_stream(),
       idle::sampling_of_greedy(),
       {{"--batch-size"}, idle::with("--prompt", ", which is one prompt")},
       {{"--json"}, idle::with("--output", ", which is JSON in any case")},
       idle::as_stored_of_model(),
       idle::launch_flags_of_rank()}};
}

}  // namespace sftrun::app
