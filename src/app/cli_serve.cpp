#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli.h"
#include "division_choice.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"

/// Commands that answer as long as they run: `serve` and `chat`.
namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

/// The directory's name, or that of its run for the folders that a run makes.
std::string name_of_adapter(const std::string& path) {
  fs::path directory = fs::path(path).lexically_normal();
  if (directory.filename().empty()) directory = directory.parent_path();  // "runs/first/"
  const auto is_of_run = [](const fs::path& one) {
    const std::string name = one.filename().string();
    return name == "adapter" || name == "checkpoints" || name.starts_with("checkpoint-") ||
           name.starts_with("step-");
  };
  while (is_of_run(directory) && directory.has_parent_path() &&
         !directory.parent_path().filename().empty())
    directory = directory.parent_path();
  return directory.filename().string();
}

/// "NAME=ADAPTER"; a path that exists may contain the sign.
NamedAdapter split_name(const std::string& text) {
  const size_t sign = text.find('=');
  if (sign == std::string::npos || leads_to_file(text)) return {name_of_adapter(text), text};
  if (sign == 0 || sign + 1 == text.size()) {
    throw ConfigError(fmt::format("--adapter {} has no name, or no adapter", text),
                      "--adapter on the command line", "write --adapter NAME=ADAPTER");
  }
  return {text.substr(0, sign), text.substr(sign + 1)};
}

/// Of the base and all of its adapters, which are loaded together.
UsedModel use_of(const char* command, const NamedModelsRequest& models,
                 const ComputeRequest& compute, int64_t tokens) {
  std::vector<std::string> adapters;
  for (const NamedAdapter& model : models.models)
    if (model.adapter) adapters.push_back(*model.adapter);
  return {.model = models.base.model,
          .adapters = adapter_paths(adapters),
          .dtype = compute.dtype,
          .as_stored = models.base.as_stored,
          .sequences = {.rows = 1, .tokens = tokens, .prompt_tokens = tokens},
          .has_one_copy = true,
          .command = command,
          .takes_shards = false};
}

struct ServeOptions {
  NamedAdapters models;
  LaunchFlags launch;
  DivisionFlags division;
  fs::path worker_request;  ///< of a worker: the launcher's request
  std::string token, cache_memory, max_request_size, template_variables;
  std::vector<std::string> served_names;  ///< at most one; users of vLLM type several
  bool as_stored = false;
  ServeRequest request;  ///< what the flags give as it is
};

constexpr const char* kTokenVariable = "SFTRUN_SERVE_TOKEN";

/// A script whose variable is not set must not open the server to everyone.
void require_no_empty_token(const ServeOptions& options, const CLI::App& command) {
  const char* variable = std::getenv(kTokenVariable);
  const bool is_given = command.count("--token") > 0 || variable != nullptr;
  if (!is_given || !options.token.empty()) return;
  throw ConfigError("the token is empty", "--token, or the variable SFTRUN_SERVE_TOKEN",
                    "give a token, or leave it out");
}

/// The base model's name; "": as it is given.
std::string served_name(const ServeOptions& options) {
  if (options.served_names.empty()) return {};
  if (options.served_names.size() == 1) return options.served_names.front();
  throw ConfigError(
      fmt::format("--served-model-name takes one name, not {}", options.served_names.size()),
      "--served-model-name on the command line",
      "keep one; adapters have names of their own: --adapter NAME=ADAPTER");
}

ServeRequest request_of(ServeOptions& options, const CLI::App& command) {
  require_no_empty_token(options, command);
  ServeRequest request = options.request;
  request.models = named_models(command, options.models, served_name(options));
  request.models.base.as_stored = options.as_stored;
  request.models.base.chat_template_kwargs = if_given(options.template_variables);
  request.token = if_given(options.token);
  if (!options.cache_memory.empty())
    request.cache_bytes = parse_size(options.cache_memory, "--cache-memory");
  if (!options.max_request_size.empty())
    request.max_request_bytes = parse_size(options.max_request_size, "--max-request-size");
  choose_division(use_of("serve", request.models, request.ranks.compute,
                         options.request.max_model_len.value_or(kUsualConversation)),
                  options.launch, options.division);
  put_division(options.division, options.launch, request.ranks);
  return request;
}

/// Other users may read the launcher's request, so that workers have the token from the environment.
int serve_on_devices(const ServeOptions& options, ServeRequest request) {
  ::setenv(kTokenVariable, options.token.c_str(), /*overwrite=*/1);
  request.token.reset();
  return run_on_devices(request, {.launch = options.launch, .has_temporary_folder = true});
}

int serve_as_worker(const fs::path& file) {
  auto request = read_json_file<ServeRequest>(file);
  const char* token = std::getenv(kTokenVariable);
  request.token = if_given(token == nullptr ? "" : token);
  return run_as_worker(request);
}

struct ChatOptions {
  NamedAdapters models;
  SamplingFlags sampling{ChatRequest().sampling};
  ComputeRequest compute;
  LaunchFlags launch;
  DivisionFlags division;
  fs::path worker_request;  ///< of a worker: the launcher's request
  std::string system, template_variables;
  bool as_stored = false;
};

ChatRequest request_of(ChatOptions& options, const CLI::App& command) {
  ChatRequest request{.models = named_models(command, options.models),
                      .ranks = {.compute = options.compute},
                      .sampling = options.sampling,
                      .system = if_given(options.system)};
  request.models.base.as_stored = options.as_stored;
  request.models.base.chat_template_kwargs = if_given(options.template_variables);
  choose_division(use_of("chat", request.models, request.ranks.compute, kUsualConversation),
                  options.launch, options.division);
  put_division(options.division, options.launch, request.ranks);
  return request;
}

}  // namespace

void add_named_adapters(CLI::App& command, NamedAdapters& flags) {
  command.add_option(
      "-m,--model", flags.model,
      "Directory, .gguf file, run directory, or name on the hub [the adapter's base]");
  command
      .add_option("-a,--adapter", flags.adapters,
                  "Adapter, optionally with a name: NAME=ADAPTER; may be given several times "
                  "[name: that of its directory or run]")
      ->allow_extra_args(false)
      ->type_name("[NAME=]ADAPTER");
}

NamedModelsRequest named_models(const CLI::App& command, const NamedAdapters& flags,
                                const std::string& served_name) {
  NamedModelsRequest request;
  std::vector<NamedAdapter>& models = request.models;
  std::string first;  // adapter, whose base is used without --model
  for (const std::string& text : flags.adapters) {
    NamedAdapter adapter = split_name(text);
    find_adapter(*adapter.adapter);
    require_exists("--adapter", *adapter.adapter);
    if (first.empty()) first = *adapter.adapter;
    models.push_back(std::move(adapter));
  }
  request.base.model = checked_model(command, flags.model, first);
  const std::string name = served_name.empty() ? model_name(flags.model, first) : served_name;
  models.push_back({.name = name});
  for (size_t i = 0; i < models.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (models[i].name != models[k].name) continue;
      throw ConfigError(fmt::format("two models are named {}", models[i].name),
                        "--adapter on the command line",
                        "give each another name: --adapter NAME=ADAPTER");
    }
  }
  return request;
}

Command add_serve(CLI::App& sftrun) {
  constexpr int64_t kMaxWaiting = 1'000'000;
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = add_command(
      sftrun, "serve", "Serve a model over HTTP with an OpenAI-compatible API",
      "sftrun serve --adapter runs/first\n"
      "  sftrun serve --model models/base --adapter v1=runs/first --adapter v2=runs/second\n\n"
      "Clients name a model or an adapter: /v1/completions, /v1/chat/completions, /v1/models, "
      "/health; of reward models and classifiers /classify, /v1/score, /pooling.");
  add_named_adapters(*command, options->models);
  command
      ->add_option("--served-model-name", options->served_names,
                   "Name of the base model in the API; --adapter NAME=ADAPTER names adapters [as "
                   "in --model, or the adapter's base]")
      ->type_name("NAME");
  command
      ->add_option("--host", options->request.host,
                   "Address to listen on; 0.0.0.0: all of this machine")
      ->capture_default_str();
  command->add_option("--port", options->request.port, "Port; 0: any that is free")
      ->check(at_least(0, kMaxPort))
      ->capture_default_str();
  command
      ->add_option("--token", options->token,
                   "Token that clients must send as their API key [none, or the variable "
                   "SFTRUN_SERVE_TOKEN]")
      ->envname(kTokenVariable);
  command
      ->add_option("--batch-size", options->request.batch_size,
                   "Answers that each model generates at the same time")
      ->check(at_least(1, kMaxRows))
      ->capture_default_str();
  command
      ->add_option("--max-waiting", options->request.max_waiting,
                   "Maximum number of waiting answers; further requests are refused (429)")
      ->check(at_least(0, kMaxWaiting))
      ->capture_default_str();
  command
      ->add_option("--max-new-tokens", options->request.max_new_tokens,
                   "Maximum number of tokens of an answer, for chat requests without a limit")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option(
          "--max-model-len", options->request.max_model_len,
          "Maximum number of tokens of a prompt and its answer together [the model's context]")
      ->check(at_least(2));
  command->add_option(
      "--cache-memory", options->cache_memory,
      "Maximum memory for the key-value caches: 4GiB, 500MB [half of the free memory]");
  command->add_option("--max-request-size", options->max_request_size,
                      "Maximum size of a request, with its images: 256MiB [16MiB; models with "
                      "images: 64MiB]");
  command->add_flag("--allow-adapter-updates", options->request.allow_adapter_updates,
                    "Clients may load and unload adapters by paths of this machine "
                    "(/v1/load_lora_adapter), as `sftrun train` does with train.rollouts.engine");
  add_template_flag(*command, options->template_variables);
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->request.ranks.compute);
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {command,
          [options, command] {
            if (!options->worker_request.empty()) return serve_as_worker(options->worker_request);
            check_launch_flags(options->launch);
            options->launch.device = options->request.ranks.compute.device;
            const bool asks_for_processes = options->launch.asks_for_processes();
            const ServeRequest request = request_of(*options, *command);
            return options->division.is_given() || asks_for_processes
                       ? serve_on_devices(*options, request)
                       : run_in_engine(request);
          },
          /*other_words=*/{"api", "server", "deploy"},
          /*idle_rules=*/{idle::as_stored_of_model()}};
}

Command add_chat(CLI::App& sftrun) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = add_command(
      sftrun, "chat", "Talk to a model in the terminal",
      "sftrun chat --adapter runs/first\n"
      "  sftrun chat --model models/base --adapter v1=runs/first --adapter v2=runs/second "
      "--temperature 0.7\n\n"
      "/help lists the commands of a conversation.");
  add_named_adapters(*command, options->models);
  command->add_option("--system", options->system, "System message of the conversation");
  add_template_flag(*command, options->template_variables);
  add_sampling_flags(*command, options->sampling);
  add_as_stored_flag(*command, options->as_stored);
  add_compute_flags(*command, options->compute);
  add_ranks_flags(*command, options->launch, options->division, options->worker_request);
  return {command,
          [options, command] {
            if (!options->worker_request.empty())
              return run_as_worker(read_json_file<ChatRequest>(options->worker_request));
            check_sampling_flags(options->sampling);
            check_launch_flags(options->launch);
            options->launch.device = options->compute.device;
            const bool asks_for_processes = options->launch.asks_for_processes();
            const ChatRequest request = request_of(*options, *command);
            if (!options->division.is_given() && !asks_for_processes) return run_in_engine(request);
            return run_on_devices(
                request,
                {.launch = options->launch, .has_temporary_folder = true, .has_terminal = true});
          },
          /*other_words=*/{},
          /*idle_rules=*/{idle::sampling_of_greedy(), idle::as_stored_of_model()}};
}

}  // namespace sftrun::app
