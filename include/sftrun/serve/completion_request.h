#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/model/generate.h"
#include "sftrun/serve/served_model.h"

/// Reads the requests of OpenAI's API (platform.openai.com/docs/api-reference): /v1/completions and
/// /v1/chat/completions.
namespace sftrun::serve {

using Json = nlohmann::ordered_json;

struct CompletionRequest {
  bool is_chat = false;
  std::vector<std::vector<int32_t>> prompts;  ///< none empty
  /// Of each prompt of a chat; their files can be decoded. Empty: there are none.
  std::vector<std::vector<data::SequenceMedia>> prompt_images;
  std::vector<std::string> prompt_texts;  ///< of each prompt, for `echo`
  int64_t num_choices = 1;                ///< answers to each prompt: `n`
  model::SamplingOptions sampling;        ///< without the model's own stop tokens
  std::vector<std::string> stops;         ///< texts
  /// Report the log-probability of each token, and this many likeliest tokens; nullopt: none.
  std::optional<size_t> num_logprobs;
  bool echo = false;               ///< the answer begins with the prompt
  bool returns_token_ids = false;  ///< of prompt and answer, as vLLM names them
  bool stream = false;             ///< as server-sent events
  bool includes_usage = false;     ///< a last event with the numbers of tokens
};

struct RequestDefaults {
  int64_t chat_tokens = 2048;  ///< most tokens of an answer to a chat request that names no limit
};

/// @throws ApiError for text that is not JSON, not an object, or nested too deeply
Json parse_body(std::string_view body);

/// Of /v1/completions.
/// @throws ApiError for parameters that are unknown, of a wrong type, out of range or not supported,
/// and for prompts that leave no room for the answer
CompletionRequest parse_completion(const Json& body, const ServedModel& model);
/// Of /v1/chat/completions.   @throws as parse_completion, and what the chat template refuses
CompletionRequest parse_chat(Json body, const ServedModel& model, const RequestDefaults& defaults);

}  // namespace sftrun::serve
