#include "completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::engine {
namespace {

using ServerJson = nlohmann::ordered_json;

constexpr const char* kWhat = "the server of train.rollouts.engine";
constexpr const char* kModelsPath = "/models";
constexpr const char* kCompletionsPath = "/completions";
constexpr const char* kLoadPath = "/load_lora_adapter";
constexpr const char* kUnloadPath = "/unload_lora_adapter";
constexpr const char* kReadsIds =
    "use vLLM 0.10.2 or later, or `sftrun serve`: the answer needs \"token_ids\" and \"logprobs\"";

/// @return discarded: not JSON, or too much of it
ServerJson parsed(const std::string& body) {
  constexpr size_t kMaxDepth = 32;
  return parse_outside_json(body, kMaxDepth);
}

const ServerJson* find_in(const ServerJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

/// @return what is wrong with a list of token ids; empty: nothing
std::string read_ids(const ServerJson& list, int64_t vocab_size, std::vector<int32_t>& ids) {
  if (!list.is_array()) return "with \"token_ids\" that are no list";
  for (const ServerJson& id : list) {
    const bool is_id = id.is_number_integer() && id.get<double>() >= 0 &&
                       id.get<double>() < static_cast<double>(vocab_size);
    if (!is_id)
      return fmt::format("with the token {}, and the model has those from 0 to {}",
                         excerpt(id.dump()), vocab_size - 1);
    ids.push_back(id.get<int32_t>());
  }
  return {};
}

/// @return what is wrong with them; empty: nothing
std::string read_logprobs(const ServerJson& choice, size_t count, std::vector<float>& values) {
  const ServerJson* logprobs = find_in(choice, "logprobs");
  const ServerJson* list = logprobs != nullptr ? find_in(*logprobs, "token_logprobs") : nullptr;
  if (list == nullptr || !list->is_array()) return "without log-probabilities of its tokens";
  if (list->size() != count)
    return fmt::format("with {} log-probabilities of {}", list->size(), counted(count, "token"));
  constexpr double kRounding = 1e-3;      // of the logarithm of a probability near 1
  constexpr double kLeastLogprob = -1e4;  // of a token that may be drawn; vLLM says -9999 for none
  for (const ServerJson& value : *list) {
    const bool is_logprob = value.is_number() && value.get<double>() <= kRounding &&
                            value.get<double>() >= kLeastLogprob;
    if (!is_logprob) return fmt::format("with the log-probability {}", excerpt(value.dump()));
    values.push_back(value.get<float>());
  }
  return {};
}

constexpr int kUnauthorized = 401, kNotFound = 404;

std::string_view last_part_of(std::string_view name) {
  while (name.ends_with('/')) name.remove_suffix(1);
  return name.substr(name.rfind('/') + 1);
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

hub::PostOptions options_of(const config::RolloutsConfig& rollouts,
                            std::function<bool()> should_stop) {
  constexpr int kAttempts = 3;
  constexpr double kFirstDelay = 2;  // s; a server that restarts needs longer
  constexpr double kBusyS = 300;     // others may use it, too
  hub::PostOptions options{.timeout_s = rollouts.engine_timeout,
                           .max_attempts = kAttempts,
                           .first_delay_s = kFirstDelay,
                           .max_busy_s = kBusyS,
                           .outage = hub::new_outage(),
                           .should_stop = std::move(should_stop)};
  if (!rollouts.engine_token_variable.empty())
    options.token =
        hub::token_in_variable(rollouts.engine_token_variable, kWhat,
                               "train.rollouts.engine_token_variable", "engine_token_variable");
  return options;
}

}  // namespace

std::string read_completion(const std::string& body, const AskedCompletion& asked,
                            int64_t vocab_size, ServedCompletion& completion) {
  const ServerJson json = parsed(body);
  const ServerJson* choices = find_in(json, "choices");
  if (choices == nullptr || !choices->is_array() || choices->size() != 1)
    return fmt::format("`{}`, which has no list \"choices\" of one", excerpt(body));
  const ServerJson& choice = choices->front();
  const ServerJson* ids = find_in(choice, "token_ids");
  if (ids == nullptr) return "without \"token_ids\"";
  completion = {};
  if (std::string fault = read_ids(*ids, vocab_size, completion.token_ids); !fault.empty())
    return fault;
  const std::vector<int32_t>& answer = completion.token_ids;
  if (answer.empty() || std::ssize(answer) > asked.max_tokens)
    return fmt::format("with {}, and was asked for 1 to {}", counted(answer.size(), "token"),
                       asked.max_tokens);
  const ServerJson* prompt = find_in(choice, "prompt_token_ids");
  std::vector<int32_t> read_prompt;
  if (prompt == nullptr || !read_ids(*prompt, vocab_size, read_prompt).empty())
    return "without \"prompt_token_ids\"";
  if (!std::ranges::equal(read_prompt, asked.prompt))
    return fmt::format("another prompt, of {} instead of {}", counted(read_prompt.size(), "token"),
                       asked.prompt.size());
  const std::string finish = text_under(choice, "finish_reason");
  if (finish != "stop" && finish != "length")
    return fmt::format("with the finish_reason {}, which is neither \"stop\" nor \"length\"",
                       excerpt(choice.value("finish_reason", ServerJson()).dump()));
  completion.stopped = finish == "stop";
  return read_logprobs(choice, answer.size(), completion.logprobs);
}

std::string read_models(const std::string& body, std::vector<ListedModel>& models) {
  const ServerJson json = parsed(body);
  const ServerJson* data = find_in(json, "data");
  if (data == nullptr || !data->is_array())
    return fmt::format("`{}`, which has no list \"data\" of models", excerpt(body));
  for (const ServerJson& entry : *data) {
    ListedModel model{
        .id = text_under(entry, "id"), .root = text_under(entry, "root"), .max_length = {}};
    if (model.id.empty()) return "with a model that has no id";
    if (const ServerJson* length = find_in(entry, "max_model_len");
        length != nullptr && length->is_number_integer())
      model.max_length = length->get<int64_t>();
    models.push_back(std::move(model));
  }
  return {};
}

const ListedModel* find_listed(std::span<const ListedModel> models, const std::string& name) {
  for (const ListedModel& model : models)
    if (model.id == name || model.root == name) return &model;
  for (const ListedModel& model : models)
    for (const std::string& of_model : {model.id, model.root})
      if (!of_model.empty() && last_part_of(of_model) == last_part_of(name)) return &model;
  return nullptr;
}

CompletionServer::CompletionServer(Inputs inputs)
    : url_(without_slash(inputs.rollouts.engine)),
      vocab_size_(inputs.vocab_size),
      stop_tokens_(std::move(inputs.stop_tokens)),
      rollouts_(inputs.rollouts),
      options_(options_of(inputs.rollouts, std::move(inputs.should_stop))) {}

/// @param body null: GET   @param advice where the server refuses
std::string CompletionServer::sent(const char* path, const std::string* body,
                                   const std::string& advice,
                                   const hub::PostOptions& options) const {
  const std::string url = url_ + path;
  try {
    return body != nullptr ? hub::post_json(url, *body, kWhat, options)
                           : hub::get_json(url, kWhat, options);
  } catch (const hub::RequestError& error) {
    throw hub::RequestError(
        error.status, error.message(), error.where(),
        error.status == kUnauthorized
            ? "name the variable of the environment that holds the server's token: "
              "train.rollouts.engine_token_variable"
            : advice);
  }
}

void CompletionServer::refuse(const char* path, const std::string& fault) const {
  throw DataError(fmt::format("{} answers {}", kWhat, fault), url_ + path, kReadsIds);
}

std::vector<ListedModel> CompletionServer::models() const {
  const std::string body =
      sent(kModelsPath, nullptr,
           "check that the server runs and that the address is that of its API, which ends in /v1");
  std::vector<ListedModel> models;
  if (const std::string fault = read_models(body, models); !fault.empty())
    throw DataError(fmt::format("{} answers {}", kWhat, fault), url_ + kModelsPath,
                    "give the address of the API, which ends in /v1, as http://127.0.0.1:8000/v1");
  return models;
}

/// In place, because an attempt that was too slow may have loaded it. Servers that do not know the key
/// ignore it.
void CompletionServer::load_adapter(const std::string& name, const std::string& path) const {
  const std::string body =
      ServerJson({{"lora_name", name}, {"lora_path", path}, {"load_inplace", true}}).dump();
  sent(kLoadPath, &body,
       fmt::format("let the server load adapters (`sftrun serve --allow-adapter-updates`, or vLLM "
                   "with --enable-lora, a --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1), "
                   "and let it see {}; if it is slow, raise train.rollouts.engine_timeout",
                   path));
}

void CompletionServer::unload_adapter(const std::string& name) const {
  unload_adapter(name,
                 "start the server again if it has ended, and run the same command: it resumes",
                 options_);
}

void CompletionServer::unload_adapter_at_end(const std::string& name) const {
  constexpr double kLongestS = 5;
  hub::PostOptions options = options_;
  options.timeout_s = std::min(options.timeout_s, kLongestS);
  options.max_attempts = 1;
  options.max_busy_s = 0;
  options.should_stop = {};
  try {
    unload_adapter(name, {}, options);
  } catch (const hub::RequestError& error) {
    if (error.status != kNotFound) throw;
  }
}

void CompletionServer::unload_adapter(const std::string& name, const std::string& advice,
                                      const hub::PostOptions& options) const {
  const std::string body = ServerJson({{"lora_name", name}}).dump();
  sent(kUnloadPath, &body, advice, options);
}

/// All parameters of the distribution are sent: a server may have others for the model (vLLM reads its
/// generation_config.json).
ServedCompletion CompletionServer::complete(const AskedCompletion& asked) const {
  const ServerJson request = {
      {"model", asked.model},
      {"prompt", std::vector<int32_t>(asked.prompt.begin(), asked.prompt.end())},
      {"max_tokens", asked.max_tokens},
      {"temperature", rollouts_.temperature},
      {"top_p", rollouts_.top_p},
      {"top_k", rollouts_.top_k.value_or(-1)},  // all tokens
      {"min_p", rollouts_.min_p},
      {"repetition_penalty", 1},
      {"n", 1},
      {"seed", asked.seed},
      {"stop_token_ids", stop_tokens_},
      {"logprobs", 0},
      {"return_token_ids", true}};
  const std::string sent_body = request.dump();
  const std::string body = sent(kCompletionsPath, &sent_body,
                                "check that the server runs and what it logs, and run the command "
                                "again: it resumes from the last checkpoint");
  ServedCompletion completion;
  if (const std::string fault = read_completion(body, asked, vocab_size_, completion);
      !fault.empty())
    refuse(kCompletionsPath, fault);
  return completion;
}

}  // namespace sftrun::engine
