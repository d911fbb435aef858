#include "sftrun/serve/completion_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <random>
#include <span>
#include <utility>

#include "parameters.h"
#include "request_reading.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/json_memory.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/images/decode.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/http_status.h"
#include "sftrun/tokenizer/generated_text.h"

namespace sftrun::serve {
namespace {

constexpr size_t kMaxStops = 16, kMaxStopTokens = 1024;
constexpr int64_t kMaxChoices = 128, kMaxLogprobs = 20;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

void read_stop_tokens(Parameters& parameters, CompletionRequest& request,
                      const ServedModel& model) {
  constexpr const char* kKey = "stop_token_ids";
  const Json* ids = parameters.find(kKey);
  if (ids == nullptr) return;
  if (!ids->is_array() || ids->size() > kMaxStopTokens)
    throw ApiError(
        kBadRequest,
        fmt::format("\"{}\" must be a list of at most {} token ids", kKey, kMaxStopTokens), kKey);
  const std::vector<int32_t> tokens = tokens_of(*ids, kKey, model);
  request.sampling.stop_tokens.assign(tokens.begin(), tokens.end());
}

void read_sampling(Parameters& parameters, CompletionRequest& request, const ServedModel& model) {
  model::SamplingOptions& sampling = request.sampling;
  sampling.temperature = parameters.number("temperature", 0, 100).value_or(1);
  sampling.top_p = parameters.number("top_p", 0, 1).value_or(1);
  sampling.min_p = parameters.number("min_p", 0, 1).value_or(0);
  sampling.repetition_penalty = parameters.number("repetition_penalty", 0.01, 100).value_or(1);
  constexpr int64_t kAll = -1;  // as in vLLM
  const auto top_k = parameters.integer("top_k", kAll, kMaxTokens);
  if (top_k && *top_k > 0) sampling.top_k = top_k;
  sampling.seed = parameters.seed("seed").value_or(std::random_device{}());
  request.stops = parameters.texts("stop", kMaxStops, tokenizer::kMaxStopBytes);
  read_stop_tokens(parameters, request, model);
  request.num_choices = parameters.integer("n", 1, kMaxChoices).value_or(1);
  parameters.require_neutral("best_of", {Json(1), Json(request.num_choices)},
                             "all answers are returned; set n instead");
  for (const char* key : {"frequency_penalty", "presence_penalty"}) {
    parameters.require_neutral(key, {Json(0)}, "use repetition_penalty, which generate has, too");
  }
  parameters.require_neutral("logit_bias", {Json::object()}, "leave it out");
  request.returns_token_ids = parameters.flag("return_token_ids");
}

void read_streaming(Parameters& parameters, CompletionRequest& request) {
  request.stream = parameters.flag("stream");
  const Json* options = parameters.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    throw ApiError(kBadRequest, "\"stream_options\" must be an object", "stream_options");
  Parameters of_stream(*options);
  request.includes_usage = of_stream.flag("include_usage");
  of_stream.ignore({"include_obfuscation"});
  of_stream.require_no_others();
}

/// The answer has what the prompts leave of the context.
void set_length(CompletionRequest& request, std::optional<int64_t> asked, int64_t usual,
                const ServedModel& model, const char* key) {
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : request.prompts)
    longest = std::max(longest, prompt.size());
  const int64_t length = static_cast<int64_t>(longest), room = model.max_length - length;
  const int64_t needed = asked.value_or(1);
  if (room < needed) {
    throw ApiError(
        kBadRequest,
        fmt::format(
            "the model's context is {} tokens; the prompt has {} and the answer may have {}",
            model.max_length, length, needed),
        key, "context_length_exceeded");
  }
  request.sampling.max_new_tokens = asked.value_or(std::min(usual, room));
}

/// Log-probabilities are kept until an answer is complete, and take 70 bytes each as JSON.
void require_modest_logprobs(const CompletionRequest& request, const char* key) {
  if (!request.num_logprobs) return;
  constexpr uint64_t kMax = 8'000'000;
  uint64_t num_tokens = 0;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    num_tokens +=
        static_cast<uint64_t>(request.sampling.max_new_tokens) + (request.echo ? prompt.size() : 0);
  }
  const uint64_t num_values =
      num_tokens * static_cast<uint64_t>(request.num_choices) * (*request.num_logprobs + 1);
  if (num_values <= kMax) return;
  throw ApiError(
      kBadRequest,
      fmt::format("the answers may have {} log-probabilities together, and at most {} are "
                  "allowed: ask for fewer answers, tokens or likeliest tokens",
                  num_values, kMax),
      key);
}

// ---- /v1/completions

void add_prompt(CompletionRequest& request, const Json& prompt, const ServedModel& model) {
  std::vector<int32_t> tokens;
  std::string text;
  if (prompt.is_string()) {
    text = prompt.get<std::string>();
    if (!is_valid_utf8(text)) throw ApiError(kBadRequest, "\"prompt\" is not UTF-8", "prompt");
    tokenizer::Encoding encoding = data::encode_open_text(*model.text.tokenizer, text);
    data::require_one_bos(encoding.ids, encoding.spans, *model.text.tokenizer, "prompt");
    data::require_embedded(encoding.ids, model.text, "prompt");
    tokens = std::move(encoding.ids);
  } else if (is_token_list(prompt)) {
    tokens = tokens_of(prompt, "prompt", model);
    text = model.text.tokenizer->decode(tokens, /*skip_special_tokens=*/false);
  } else if (!prompt.is_array()) {
    throw ApiError(kBadRequest,
                   "\"prompt\" must be a string, a list of strings, a list of token ids, or a list "
                   "of such lists",
                   "prompt");
  }
  if (tokens.empty()) throw ApiError(kBadRequest, "\"prompt\" is empty", "prompt");
  request.prompts.push_back(std::move(tokens));
  request.prompt_texts.push_back(std::move(text));
}

void read_prompts(Parameters& parameters, CompletionRequest& request, const ServedModel& model) {
  const Json* prompt = parameters.find("prompt");
  if (prompt == nullptr) throw ApiError(kBadRequest, "\"prompt\" is missing", "prompt");
  if (!prompt->is_array() || is_token_list(*prompt)) return add_prompt(request, *prompt, model);
  if (prompt->empty() || prompt->size() > kMaxPrompts) {
    throw ApiError(kBadRequest, fmt::format("\"prompt\" must have 1 to {} entries", kMaxPrompts),
                   "prompt");
  }
  for (const Json& one : *prompt) add_prompt(request, one, model);
}

void read_completion_logprobs(Parameters& parameters, CompletionRequest& request) {
  const Json* logprobs = parameters.find("logprobs");
  if (logprobs != nullptr && logprobs->is_boolean()) {  // as chat requests have it
    if (logprobs->get<bool>()) request.num_logprobs = 1;
    return;
  }
  if (const auto count = parameters.integer("logprobs", 0, kMaxLogprobs))
    request.num_logprobs = static_cast<size_t>(*count);
}

// ---- /v1/chat/completions

/// Where images are decoded for a pass, an error would end the answers to other requests.
/// @throws DataError
void require_decodable(const std::vector<data::SequenceMedia>& images) {
  for (const data::SequenceMedia& image : images) {
    for (const data::Media& media : data::files_of(image)) {
      const std::string file = data::read_media(media);
      images::decode(std::as_bytes(std::span(file)), {}, "an image of the messages");
    }
  }
}

void read_messages(Parameters& parameters, CompletionRequest& request, const ServedModel& model,
                   Json& body) {
  const Json* messages = parameters.find("messages");
  if (messages == nullptr) throw ApiError(kBadRequest, "\"messages\" is missing", "messages");
  Json record = take_conversation(parameters, body, model, "use /v1/completions");
  const JsonEmptier emptier(record);
  const Json& last = record["messages"].back();
  if (last.is_object() && last.value("role", Json()) == "assistant") {
    throw ApiError(kBadRequest,
                   "the last message is the assistant's: end with a message to be answered",
                   "messages");
  }
  data::PromptTokens tokens = model.chat_prompts.build(record, "messages");
  if (tokens.ids.empty())
    throw ApiError(kBadRequest, "the chat template gives no text", "messages");
  require_decodable(tokens.media);
  request.prompts.push_back(std::move(tokens.ids));
  request.prompt_images.push_back(std::move(tokens.media));
  request.prompt_texts.emplace_back();
}

void read_chat_logprobs(Parameters& parameters, CompletionRequest& request) {
  const bool wanted = parameters.flag("logprobs");
  const auto top = parameters.integer("top_logprobs", 0, kMaxLogprobs);
  if (top && !wanted && *top > 0)
    throw ApiError(kBadRequest, "\"top_logprobs\" needs \"logprobs\": true", "top_logprobs");
  if (wanted) request.num_logprobs = static_cast<size_t>(top.value_or(0));
}

}  // namespace

Json parse_body(std::string_view body) {
  constexpr size_t kMaxDepth = 100;
  if (!is_modest_json(body, kMaxDepth))
    throw ApiError(kBadRequest, "the body's JSON is nested too deeply or has too many values");
  Json parsed;
  try {
    parsed = parse_exact_json(body);
    round_fractions(parsed);
  } catch (const Json::exception& error) {
    throw ApiError(kBadRequest, fmt::format("the body is not JSON: {}", json_reason(error)));
  } catch (const std::bad_alloc&) {
    empty_json(parsed);
    throw;
  }
  if (parsed.is_object()) return parsed;
  empty_json(parsed);
  throw ApiError(kBadRequest, "the body must be a JSON object");
}

CompletionRequest parse_completion(const Json& body, const ServedModel& model) {
  return reading([&] {
    Parameters parameters(body);
    CompletionRequest request;
    ignore_common(parameters);
    read_prompts(parameters, request, model);
    read_sampling(parameters, request, model);
    read_streaming(parameters, request);
    read_completion_logprobs(parameters, request);
    request.echo = parameters.flag("echo");
    parameters.require_neutral("suffix", {Json("")}, "the models continue texts");
    constexpr int64_t kUsualTokens = 16;  // OpenAI's default
    const int64_t fewest = request.echo ? 0 : 1;
    const auto tokens = parameters.integer("max_tokens", fewest, kMaxTokens);
    set_length(request, tokens, kUsualTokens, model, "max_tokens");
    require_modest_logprobs(request, "logprobs");
    parameters.require_no_others();
    return request;
  });
}

CompletionRequest parse_chat(Json body, const ServedModel& model, const RequestDefaults& defaults) {
  const JsonEmptier emptier(body);
  return reading([&] {
    Parameters parameters(body);
    CompletionRequest request{.is_chat = true};
    ignore_common(parameters);
    read_messages(parameters, request, model, body);
    read_sampling(parameters, request, model);
    read_streaming(parameters, request);
    read_chat_logprobs(parameters, request);
    parameters.require_neutral("response_format", {Json({{"type", "text"}})},
                               "answers are free text");
    parameters.require_neutral("tool_choice", {Json("auto"), Json("none")},
                               "the model decides; a call is part of the answer's text");
    parameters.require_neutral("parallel_tool_calls", {Json(true), Json(false)}, "leave it out");
    parameters.require_neutral("modalities", {Json::array({"text"})}, "answers are text");
    const auto older = parameters.integer("max_tokens", 1, kMaxTokens);
    const auto tokens = parameters.integer("max_completion_tokens", 1, kMaxTokens);
    set_length(request, tokens ? tokens : older, defaults.chat_tokens, model, "messages");
    require_modest_logprobs(request, "top_logprobs");
    parameters.require_no_others();
    return request;
  });
}

}  // namespace sftrun::serve
