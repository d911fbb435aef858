#include "answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sftrun/core/utf8.h"

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

size_t num_chars(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(),
                                           [](char byte) { return !is_continuation_byte(byte); }));
}

/// Several tokens may have the same text: the first, which is the likeliest, counts.
void add_if_new(Json& object, const std::string& key, const Json& value) {
  if (!object.contains(key)) object[key] = value;
}

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

}  // namespace

Answers::Answers(const CompletionRequest& request, const ServedModel& model, std::string id,
                 int64_t created)
    : request_(request), model_(model), id_(std::move(id)), created_(created) {
  const size_t count = request.prompts.size() * static_cast<size_t>(request.num_choices);
  choices_.resize(count);
  is_begun_.resize(count);
  num_chars_.resize(count);
  num_unfinished_ = count;
}

const std::vector<int32_t>& Answers::prompt_of(size_t index) const {
  return request_.prompts[index / static_cast<size_t>(request_.num_choices)];
}

/// The form that chat responses have. @param logprobs null: not known, of a prompt's first token
Json Answers::entry_of(int32_t token, const model::TokenLogprobs* logprobs) const {
  const auto named = [&](int32_t id, const Json& logprob) {
    const std::string bytes = model_.text.tokenizer->token_bytes(id, /*skip_special_tokens=*/false);
    return Json{{"token", text_of(bytes)}, {"logprob", logprob}, {"bytes", bytes_json(bytes)}};
  };
  Json entry = named(token, logprobs == nullptr ? Json() : Json(logprobs->logprob));
  entry["top_logprobs"] = Json::array();
  if (logprobs == nullptr) return entry;
  for (const auto& [candidate, logprob] : logprobs->top)
    entry["top_logprobs"].push_back(named(candidate, logprob));
  return entry;
}

void Answers::add_prompt(Choice& fresh, size_t index, const AnswerEvent& event) const {
  fresh.text = request_.prompt_texts[index / static_cast<size_t>(request_.num_choices)];
  if (!request_.num_logprobs) return;
  const std::vector<int32_t>& prompt = prompt_of(index);
  fresh.logprobs.push_back(entry_of(prompt.front(), nullptr));
  for (size_t i = 0; i < event.prompt_scores.size(); ++i)
    fresh.logprobs.push_back(entry_of(prompt[i + 1], &event.prompt_scores[i]));
}

std::vector<Json> Answers::add(const AnswerEvent& event) {
  Choice fresh{.finish_reason = event.finish_reason};
  const bool begins = !is_begun_[event.choice];
  is_begun_[event.choice] = true;
  if (begins && request_.echo) add_prompt(fresh, event.choice, event);
  fresh.text += event.text;
  for (const AnswerToken& token : event.tokens) {
    ++num_tokens_;
    if (token.logprobs) fresh.logprobs.push_back(entry_of(token.token, &*token.logprobs));
  }
  if (!event.finish_reason.empty()) --num_unfinished_;
  std::vector<Json> chunks;
  if (request_.stream) {
    if (begins && request_.is_chat) {
      Json first = head(/*is_chunk=*/true);
      first["choices"].push_back({{"index", event.choice},
                                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", Json()},
                                  {"finish_reason", Json()}});
      chunks.push_back(std::move(first));
    }
    if (!fresh.text.empty() || !fresh.logprobs.empty() || !fresh.finish_reason.empty()) {
      Json next = head(/*is_chunk=*/true);
      next["choices"].push_back(
          choice_json(event.choice, fresh, /*is_chunk=*/true, num_chars_[event.choice]));
      chunks.push_back(std::move(next));
    }
    for (const Json& entry : fresh.logprobs)
      num_chars_[event.choice] += num_chars(entry["token"].get_ref<const std::string&>());
    return chunks;
  }
  Choice& all = choices_[event.choice];
  all.text += fresh.text;
  all.finish_reason = fresh.finish_reason;
  for (Json& entry : fresh.logprobs) all.logprobs.push_back(std::move(entry));
  return chunks;
}

/// Chat responses have the entries; the older responses have a list for each of their parts, and the
/// places of the tokens in the text, in characters.
Json Answers::logprobs_json(const std::vector<Json>& entries, size_t first_char) const {
  if (!request_.num_logprobs) return {};
  if (request_.is_chat) return {{"content", entries}};
  Json lists = {{"text_offset", Json::array()},
                {"token_logprobs", Json::array()},
                {"tokens", Json::array()},
                {"top_logprobs", Json::array()}};
  for (const Json& entry : entries) {
    const auto& text = entry["token"].get_ref<const std::string&>();
    lists["text_offset"].push_back(first_char);
    lists["tokens"].push_back(text);
    lists["token_logprobs"].push_back(entry["logprob"]);
    Json top = entry["logprob"].is_null() ? Json() : Json::object();
    for (const Json& candidate : entry["top_logprobs"])
      add_if_new(top, candidate["token"].get_ref<const std::string&>(), candidate["logprob"]);
    if (!top.is_null()) add_if_new(top, text, entry["logprob"]);
    lists["top_logprobs"].push_back(std::move(top));
    first_char += num_chars(text);
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

Json Answers::choice_json(size_t index, const Choice& choice, bool is_chunk,
                          size_t first_char) const {
  Json json = {{"index", index}};
  if (!request_.is_chat) {
    json["text"] = choice.text;
  } else if (is_chunk) {
    json["delta"] = choice.text.empty() ? Json::object() : Json{{"content", choice.text}};
  } else {
    json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", Json()}};
  }
  json["logprobs"] = choice.logprobs.empty() ? Json() : logprobs_json(choice.logprobs, first_char);
  json["finish_reason"] = or_null(choice.finish_reason);
  return json;
}

Json Answers::whole() const {
  Json response = head(/*is_chunk=*/false);
  for (size_t i = 0; i < choices_.size(); ++i)
    response["choices"].push_back(choice_json(i, choices_[i], /*is_chunk=*/false, 0));
  response["usage"] = usage();
  return response;
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
