#include "request_reading.h"

#include <fmt/format.h>

#include <utility>

#include "parameters.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {
namespace {

/// OpenAI's name for system messages; templates know only the older one.
Json with_known_roles(Json messages) {
  for (Json& message : messages) {
    if (message.is_object() && message.value("role", Json()) == "developer")
      message["role"] = "system";
  }
  return messages;
}

/// Features are in files, which are not read for who asks.   @throws ApiError
void refuse_features(const Json& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object() || !messages[i].contains("content")) continue;
    const Json& content = messages[i]["content"];
    for (size_t j = 0; content.is_array() && j < content.size(); ++j) {
      if (!content[j].is_object() || content[j].value("type", Json()) != "features") continue;
      throw ApiError(kBadRequest,
                     fmt::format("messages[{}].content[{}] has features, and no features are read "
                                 "here; remove the part",
                                 i, j),
                     "messages");
    }
  }
}

}  // namespace

void throw_as_api_error(const DataError& error) {
  std::string message = error.message();
  if (!error.fix().empty()) message += "; " + error.fix();
  throw ApiError(kBadRequest, message, error.where());
}

void ignore_common(Parameters& parameters) {
  parameters.ignore({"model", "user", "metadata", "store", "service_tier", "safety_identifier",
                     "prompt_cache_key"});
}

bool is_token_list(const Json& prompt) {
  return prompt.is_array() && !prompt.empty() && prompt.front().is_number();
}

std::vector<int32_t> tokens_of(const Json& prompt, const char* key, const ServedModel& model) {
  std::vector<int32_t> tokens;
  const int64_t vocab = model.text.num_embeddings.value_or(model.text.tokenizer->vocab_size());
  for (const Json& token : prompt) {
    const bool is_id = token.is_number_integer() && token.get<double>() >= 0 &&
                       token.get<double>() < static_cast<double>(vocab);
    if (!is_id) {
      throw ApiError(
          kBadRequest,
          fmt::format("\"{}\" has something else than token ids from 0 to {}", key, vocab - 1),
          key);
    }
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

Json take_conversation(Parameters& parameters, Json& body, const ServedModel& model,
                       const char* instead) {
  const Json* messages = parameters.find("messages");
  if (model.text.chat_template == nullptr)
    throw ApiError(kBadRequest, fmt::format("{} has no chat template: {}", model.id, instead),
                   "model");
  if (messages == nullptr || !messages->is_array() || messages->empty())
    throw ApiError(kBadRequest, "\"messages\" must be a list of messages, and not empty",
                   "messages");
  refuse_features(*messages);
  Json record = Json::object();
  record["messages"] = with_known_roles(std::move(body.at("messages")));
  for (const char* key : {"tools", "chat_template_kwargs"})
    if (parameters.find(key) != nullptr) record[key] = std::move(body.at(key));
  return record;
}

}  // namespace sftrun::serve
