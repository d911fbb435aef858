#include "answers.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "sftrun/core/utf8.h"
#include "token_places.h"

namespace sftrun::serve {
namespace {

/// A token that is a part of a character has no text; its bytes are written out, as OpenAI does.
std::string text_of(const std::string& bytes) {
  if (is_valid_utf8(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char byte : bytes) text += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return text;
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
  return list;
}

/// Several tokens may have the same text: the first, which is the likeliest, counts.
void add_if_new(Json& object, const std::string& key, const Json& value) {
  if (!object.contains(key)) object[key] = value;
}

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

Json or_null(const std::optional<model::TokenLogprobs>& logprobs) {
  return logprobs ? Json(logprobs->logprob) : Json();
}

}  // namespace

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Answers::Answers(const CompletionRequest& request, const ServedModel& model, std::string id,
                 int64_t created)
    : request_(request), model_(model), id_(std::move(id)), created_(created) {
  const size_t count = request.prompts.size() * static_cast<size_t>(request.num_choices);
  choices_.resize(count);
  is_begun_.resize(count);
  num_unfinished_ = count;
}

size_t Answers::prompt_index(size_t choice) const {
  return choice / static_cast<size_t>(request_.num_choices);
}

std::string Answers::bytes_of(int32_t token) const {
  return model_.text.tokenizer->token_bytes(token, /*skip_special_tokens=*/false);
}

Json Answers::named(int32_t token, const Json& logprob) const {
  const std::string bytes = bytes_of(token);
  return {{"token", text_of(bytes)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
}

/// The form that chat responses have.
Json Answers::chat_entry(const Entry& entry) const {
  Json json = named(entry.token, or_null(entry.logprobs));
  json["top_logprobs"] = Json::array();
  if (!entry.logprobs) return json;
  for (const auto& [candidate, logprob] : entry.logprobs->top)
    json["top_logprobs"].push_back(named(candidate, logprob));
  return json;
}

void Answers::add_prompt(Choice& fresh, const AnswerEvent& event) {
  const size_t index = prompt_index(event.choice);
  fresh.text = request_.prompt_texts[index];
  if (!request_.num_logprobs) return;
  const std::vector<int32_t>& prompt = request_.prompts[index];
  std::vector<TextToken> tokens;
  for (const int32_t token : prompt)
    tokens.push_back({bytes_of(token), model_.text.tokenizer->is_special(token)});
  const std::vector<size_t> places = places_in_text(tokens, fresh.text);
  for (size_t i = 0; i < prompt.size() && i <= event.prompt_scores.size(); ++i) {
    Entry entry{.token = prompt[i], .first_char = places[i]};
    if (i > 0) entry.logprobs = event.prompt_scores[i - 1];
    fresh.entries.push_back(std::move(entry));
  }
}

std::vector<Json> Answers::add(const AnswerEvent& event) {
  Choice fresh;
  fresh.finish_reason = event.finish_reason;
  fresh.begins = !is_begun_[event.choice];
  is_begun_[event.choice] = true;
  if (fresh.begins && request_.echo) add_prompt(fresh, event);
  fresh.text += event.text;
  const size_t num_before = request_.echo && request_.num_logprobs
                                ? num_chars(request_.prompt_texts[prompt_index(event.choice)])
                                : 0;
  for (const AnswerToken& token : event.tokens) {
    ++num_tokens_;
    if (request_.returns_token_ids) fresh.token_ids.push_back(token.token);
    if (!token.logprobs) continue;
    fresh.entries.push_back({.token = token.token,
                             .first_char = num_before + token.first_char,
                             .logprobs = token.logprobs});
  }
  if (!event.finish_reason.empty()) --num_unfinished_;
  if (request_.stream) return chunks_of(event.choice, fresh);
  Choice& all = choices_[event.choice];
  all.text += fresh.text;
  all.finish_reason = fresh.finish_reason;
  for (Entry& entry : fresh.entries) all.entries.push_back(std::move(entry));
  all.token_ids.insert(all.token_ids.end(), fresh.token_ids.begin(), fresh.token_ids.end());
  all.begins = all.begins || fresh.begins;
  return {};
}

std::vector<Json> Answers::chunks_of(size_t index, const Choice& fresh) const {
  std::vector<Json> chunks;
  if (fresh.begins && request_.is_chat) {
    Json first = head(/*is_chunk=*/true);
    first["choices"].push_back({{"index", index},
                                {"delta", {{"role", "assistant"}, {"content", ""}}},
                                {"logprobs", Json()},
                                {"finish_reason", Json()}});
    chunks.push_back(std::move(first));
  }
  const bool has_tokens = !fresh.entries.empty() || !fresh.token_ids.empty();
  if (!fresh.text.empty() || has_tokens || !fresh.finish_reason.empty()) {
    Json next = head(/*is_chunk=*/true);
    next["choices"].push_back(choice_json(index, fresh, /*is_chunk=*/true));
    chunks.push_back(std::move(next));
  }
  return chunks;
}

/// Chat responses have the entries; the older responses have a list for each of their parts, and the
/// places of the tokens in the text, in characters.
Json Answers::logprobs_json(const Choice& choice) const {
  if (choice.entries.empty()) return {};
  if (request_.is_chat) {
    Json content = Json::array();
    for (const Entry& entry : choice.entries) content.push_back(chat_entry(entry));
    return {{"content", std::move(content)}};
  }
  Json lists = {{"text_offset", Json::array()},
                {"token_logprobs", Json::array()},
                {"tokens", Json::array()},
                {"top_logprobs", Json::array()}};
  for (const Entry& entry : choice.entries) {
    const std::string text = text_of(bytes_of(entry.token));
    lists["text_offset"].push_back(entry.first_char);
    lists["tokens"].push_back(text);
    lists["token_logprobs"].push_back(or_null(entry.logprobs));
    Json top;
    if (entry.logprobs) {
      top = Json::object();
      for (const auto& [candidate, logprob] : entry.logprobs->top)
        add_if_new(top, text_of(bytes_of(candidate)), logprob);
      add_if_new(top, text, entry.logprobs->logprob);
    }
    lists["top_logprobs"].push_back(std::move(top));
  }
  return lists;
}

Json Answers::head(bool is_chunk) const {
  const char* object = !request_.is_chat ? "text_completion"
                       : is_chunk        ? "chat.completion.chunk"
                                         : "chat.completion";
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_.id},
          {"choices", Json::array()}};
}

Json Answers::choice_json(size_t index, const Choice& choice, bool is_chunk) const {
  Json json = {{"index", index}};
  if (!request_.is_chat) {
    json["text"] = choice.text;
  } else if (is_chunk) {
    json["delta"] = choice.text.empty() ? Json::object() : Json{{"content", choice.text}};
  } else {
    json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", Json()}};
  }
  json["logprobs"] = logprobs_json(choice);
  json["finish_reason"] = or_null(choice.finish_reason);
  if (request_.returns_token_ids) add_token_ids(json, index, choice);
  return json;
}

/// By vLLM's names (vllm/entrypoints/openai/completion/protocol.py). The answer's ids include the stop
/// token that ended it, as there. A prompt's are in a choice of /v1/completions, in a stream in its first
/// chunk; vLLM has those of a chat beside `choices`.
void Answers::add_token_ids(Json& json, size_t index, const Choice& choice) const {
  json["token_ids"] = choice.token_ids;
  if (choice.begins && !request_.is_chat)
    json["prompt_token_ids"] = request_.prompts[prompt_index(index)];
}

/// Choice by choice: as one value, many log-probabilities would take gigabytes.
std::string Answers::whole() const {
  constexpr std::string_view kEnd = "]}";  // of the choices and of the response
  std::string response = dumped(head(/*is_chunk=*/false));
  response.resize(response.size() - kEnd.size());
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) response += ',';
    response += dumped(choice_json(i, choices_[i], /*is_chunk=*/false));
  }
  response += "],\"usage\":" + dumped(usage());
  if (request_.is_chat && request_.returns_token_ids)
    response += ",\"prompt_token_ids\":" + dumped(Json(request_.prompts.front()));
  return response + "}";
}

Json Answers::usage_chunk() const {
  Json chunk = head(/*is_chunk=*/true);
  chunk["usage"] = usage();
  return chunk;
}

Json Answers::usage() const {
  size_t num_prompt_tokens = 0;
  for (const std::vector<int32_t>& prompt : request_.prompts) num_prompt_tokens += prompt.size();
  return {{"prompt_tokens", num_prompt_tokens},
          {"completion_tokens", num_tokens_},
          {"total_tokens", num_prompt_tokens + num_tokens_}};
}

}  // namespace sftrun::serve
