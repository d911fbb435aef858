#include "record.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "content_parts.h"
#include "likely_columns.h"
#include "nulls.h"
#include "roles.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "sftrun/data/message_form.h"
#include "sftrun/data/record_error.h"
#include "tool_calls.h"

namespace sftrun::data {
std::string keys_of(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items())
    if (!value.is_null()) keys.push_back('"' + key + '"');
  return keys.empty() ? "none" : excerpt(join(keys, ", "));
}

void refuse_token_ids(const Json& record, const std::string& where) {
  if (!is_tokenised(record)) return;
  throw DataError(
      fmt::format("the record holds token ids, and records that are tokenised already are not read "
                  "(its keys: {})",
                  keys_of(record)),
      where,
      "give the text from which they were made, for example as \"messages\", \"instruction\" and "
      "\"output\", or \"text\": sftrun tokenises it");
}

namespace {

bool is_preference(const Json& record) {
  return value_of(record, "chosen") != nullptr && value_of(record, "rejected") != nullptr;
}

[[noreturn]] void refuse_preference(const Json& record, const std::string& where) {
  // Lists may hold the whole conversation, or the answer behind a prompt that is a list, too.
  const bool is_list = record["chosen"].is_array();
  const Json* prompt = value_of(record, "prompt");
  const bool has_prompt = prompt != nullptr && prompt->is_array() == is_list;
  throw RecordError(
      "this is preference data (\"chosen\" and \"rejected\"), which train.objective sft does not "
      "read",
      where,
      fmt::format(
          "set train.objective: dpo; or, to train on the chosen answers alone, data.fields: "
          "{{{}}}",
          has_prompt ? "prompt: prompt, completion: chosen"
          : is_list  ? "messages: chosen"
                     : "text: chosen"));
}

const Json& require(const Json& record, const char* key, RecordFormat format,
                    const std::string& where) {
  const auto it = record.find(key);
  if (it != record.end()) return *it;
  refuse_token_ids(record, where);
  if (is_preference(record)) refuse_preference(record, where);
  throw RecordError(
      fmt::format("the record has no \"{}\", which data.format {} requires (its keys: {})", key,
                  name_of(format), keys_of(record)),
      where, "correct the record, or set data.format; all records of a file have one format",
      "correct the record; all records of a file have one format");
}

/// What data.fields reads of the values that are not texts; empty: it reads none.
std::string fields_for(const std::vector<std::pair<const char*, const Json*>>& values) {
  std::vector<std::string> fields;
  for (const auto& [key, value] : values) {
    if (value->is_string()) continue;
    const std::string path = path_of_text(key, *value);
    if (path.empty()) return {};
    // The file may have another name for the column: data.fields may map it already.
    fields.push_back(
        path == key ? fmt::format("{}: {}", key, key)
                    : fmt::format("{}: COLUMN{}", key, path.substr(std::string_view(key).size())));
  }
  return fmt::format("data.fields: {{{}}}", join(fields, ", "));
}

[[noreturn]] void refuse_value(const char* key, const Json& value, const std::string& fix,
                               const std::string& where) {
  const std::string fields = fields_for({{key, &value}});
  throw RecordError(
      fmt::format("\"{}\" must be a string, not {}", key, json_type(value)), where,
      fields.empty() ? fix : fmt::format("{}, or read it as text with {}", fix, fields), fix);
}

std::string require_string(const Json& record, const char* key, RecordFormat format,
                           const std::string& where) {
  const Json& value = require(record, key, format, where);
  if (value.is_string()) return value.get<std::string>();
  refuse_value(key, value, kWriteString, where);
}

std::string optional_string(const Json& record, const char* key, const std::string& where) {
  const Json* value = value_of(record, key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  refuse_value(key, *value, "write it as a string, in quotes in JSON, or leave the key out", where);
}

/// Refuses values such as `"train": "false"`, which would be trained on.
void check_turn_weight(const Json& message, const std::string& name, const std::string& where) {
  const Json* train = value_of(message, "train");
  if (train != nullptr && !train->is_boolean()) {
    throw DataError(
        fmt::format("{}.train must be true or false, not {}", name, excerpt(to_json_text(*train))),
        where, "write true or false without quotes");
  }
  const Json* weight = value_of(message, "weight");
  if (weight == nullptr) return;
  if (!weight->is_number() || (*weight != 0 && *weight != 1)) {
    throw DataError(
        fmt::format("{}.weight must be 0 or 1, not {}", name, excerpt(to_json_text(*weight))),
        where, "write 1, or 0 for a turn without labels");
  }
}

bool is_sharegpt_turn(const Json& turn) {
  return value_of(turn, "from") != nullptr && value_of(turn, "value") != nullptr;
}

[[noreturn]] void refuse_turn(const Json& turn, const std::string& key, std::string message,
                              const std::string& where) {
  const std::string write = R"(write {"role": "user", "content": "…"})";
  if (!is_sharegpt_turn(turn)) {
    throw RecordError(std::move(message), where,
                      write + "; other keys are renamed by data.fields: {role: …, content: …}",
                      write);
  }
  const bool is_messages = key == "messages";
  throw RecordError(
      std::move(message), where,
      fmt::format("{}; or, as turns of \"from\" and \"value\" are ShareGPT's, set data.format: "
                  "sharegpt{}",
                  write, is_messages ? " with data.fields: {messages: messages}" : ""),
      is_messages ? write +
                        "; or, as turns of \"from\" and \"value\" are ShareGPT's, call the list "
                        "\"conversations\""
                  : write);
}

/// Keys that a message may have instead of content.
bool may_lack_content(const Json& message) {
  for (const char* key : {"tool_calls", "function_call", "tool_responses"}) {
    const Json* value = value_of(message, key);
    if (value != nullptr && !value->empty()) return true;
  }
  return false;
}

/// Reports a misspelt "content" here, because the chat template's error would name neither message
/// nor key. A message without content must have another key that templates know.
void check_content_key(const Json& message, const std::string& name, const std::string& where) {
  constexpr std::array<std::string_view, 13> kKnown = {
      "role",          "name",           "train",
      "weight",        "tool_calls",     "tool_call_id",
      "function_call", "reasoning",      "reasoning_content",
      "thinking",      "tool_responses", "id",
      "type"};
  if (message.contains("content")) {
    if (!message["content"].is_null() || may_lack_content(message)) return;
    throw DataError(fmt::format("{}.content is null, and the message has no tool_calls", name),
                    where, "write the text, or remove the record");
  }
  std::vector<std::string> others;
  for (const auto& [key, value] : message.items()) {
    if (value.is_null() || std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
    others.push_back(key);
  }
  if (!others.empty()) {
    constexpr std::array<std::string_view, 5> kUsual = {"value", "text", "message", "utterance",
                                                        "body"};
    const auto usual =
        std::find_first_of(others.begin(), others.end(), kUsual.begin(), kUsual.end());
    throw RecordError(fmt::format("{} has no \"content\" (its keys: {})", name, keys_of(message)),
                      where,
                      fmt::format("call it \"content\", or set data.fields: {{content: {}}}",
                                  usual == others.end() ? others.front() : *usual),
                      "call it \"content\"");
  }
  if (may_lack_content(message)) return;
  throw DataError(fmt::format("{} has neither \"content\" nor \"tool_calls\" (its keys: {})", name,
                              keys_of(message)),
                  where, "write the text, or remove the record");
}

}  // namespace

void require_messages(const Json& messages, const std::string& key, const std::string& where) {
  if (!messages.is_array()) {
    throw DataError(
        fmt::format("\"{}\" must be a list of messages, not {}", key, json_type(messages)), where,
        R"(write [{"role": "user", "content": "…"}, …])");
  }
  if (messages.empty()) {
    throw DataError(fmt::format("\"{}\" is empty", key), where,
                    "remove the record; there is nothing to train on without an assistant message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      refuse_turn(
          message, key,
          fmt::format("{}[{}] is not a message: it needs a \"role\"{}", key, i,
                      message.is_object() ? fmt::format(" (its keys: {})", keys_of(message)) : ""),
          where);
    }
    check_content_key(message, fmt::format("{}[{}]", key, i), where);
    const auto content = message.find("content");
    const bool usable = content == message.end() || content->is_null() || content->is_string() ||
                        content->is_array();
    if (!usable) {
      throw DataError(
          fmt::format("{}[{}].content must be a string, a list of parts or null, not {}", key, i,
                      json_type(*content)),
          where, R"(write "content": "…")");
    }
    if (content != message.end() && content->is_array())
      check_parts(*content, fmt::format("{}[{}].content", key, i), where);
    check_calls(message, fmt::format("{}[{}]", key, i), where);
  }
}

namespace {

void check_messages(const Json& messages, const char* key, const std::string& where) {
  require_messages(messages, key, where);
  for (size_t i = 0; i < messages.size(); ++i)
    check_turn_weight(messages[i], fmt::format("{}[{}]", key, i), where);
}

/// A value that tables store as JSON text, in which an empty cell is none. null: there is none.
Json value_or_text(const Json& record, const char* key) {
  const Json* value = value_of(record, key);
  if (value == nullptr || !value->is_string()) return value == nullptr ? Json() : *value;
  const std::string& text = value->get_ref<const std::string&>();
  return trim(text).empty() ? Json() : parse_json_text(text);
}

Json tools_of(const Json& record, const std::string& where) {
  Json tools = value_or_text(record, "tools");
  if (!tools.is_array() && !tools.is_null())
    throw DataError(
        "\"tools\" must be a list of tool descriptions", where,
        R"(write [{"type": "function", "function": {…}}], or null (in a table nothing))");
  drop_nulls(tools);
  return tools;
}

Json kwargs_of(const Json& record, const std::string& where) {
  Json kwargs = value_or_text(record, "chat_template_kwargs");
  if (kwargs.is_null()) return Json::object();
  if (!kwargs.is_object())
    throw DataError("\"chat_template_kwargs\" must be an object", where,
                    R"(write {"name": value}, or null (in a table nothing))");
  drop_nulls(kwargs);
  return kwargs;
}

Conversation conversation_of(const Json& record, Json messages, size_t num_prompt_messages,
                             const std::string& where) {
  return {.messages = std::move(messages),
          .num_prompt_messages = num_prompt_messages,
          .tools = tools_of(record, where),
          .kwargs = kwargs_of(record, where)};
}

Json message_of(std::string_view role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

std::string sharegpt_role(const std::string& from, const std::string& turn,
                          const std::string& where) {
  using Pair = std::pair<std::string_view, std::string_view>;
  constexpr std::array kRoles = {Pair{"human", "user"},        Pair{"user", "user"},
                                 Pair{"gpt", "assistant"},     Pair{"assistant", "assistant"},
                                 Pair{"chatgpt", "assistant"}, Pair{"model", "assistant"},
                                 Pair{"bot", "assistant"},     Pair{"function_call", "assistant"},
                                 Pair{"system", "system"},     Pair{"tool", "tool"},
                                 Pair{"observation", "tool"},  Pair{"function_response", "tool"}};
  for (const auto& [name, role] : kRoles) {
    if (from == name) return std::string(role);
  }
  const std::string known =
      "known: human, user; gpt, assistant, chatgpt, model, bot, function_call; system; tool, "
      "observation, function_response";
  throw RecordError(
      fmt::format("{}.from is \"{}\", which is not a known role", turn, excerpt(from)), where,
      fmt::format("{}; others by {}", known, fix_of_role(from)), known);
}

/// Most files say "conversations".
const char* turns_key(const Json& record) {
  const bool under_messages =
      value_of(record, "conversations") == nullptr && value_of(record, "messages") != nullptr;
  return under_messages ? "messages" : "conversations";
}

Conversation shape_of_sharegpt(const Json& record, bool writes_calls, const std::string& where) {
  const char* key = turns_key(record);
  const Json& turns = require(record, key, RecordFormat::kShareGpt, where);
  if (!turns.is_array()) {
    throw DataError(fmt::format("\"{}\" must be a list, not {}", key, json_type(turns)), where,
                    R"(write [{"from": "human", "value": "…"}, …])");
  }
  Json messages = Json::array();
  if (const std::string system = optional_string(record, "system", where); !system.empty()) {
    messages.push_back(message_of("system", system));
  }
  for (size_t i = 0; i < turns.size(); ++i) {
    if (value_of(turns[i], "role") != nullptr) {  // messages under ShareGPT's key
      messages.push_back(turns[i]);
      continue;
    }
    const bool usable =
        is_sharegpt_turn(turns[i]) && turns[i]["from"].is_string() && turns[i]["value"].is_string();
    if (!usable) {
      throw DataError(
          fmt::format(
              "{}[{}] needs strings \"from\" and \"value\"{}", key, i,
              turns[i].is_object() ? fmt::format(" (its keys: {})", keys_of(turns[i])) : ""),
          where, R"(write {"from": "human", "value": "…"})");
    }
    const std::string role =
        sharegpt_role(turns[i]["from"].get<std::string>(), fmt::format("{}[{}]", key, i), where);
    const auto value = turns[i]["value"].get<std::string>();
    Json message = message_of(role, value);
    const auto calls =
        writes_calls && turns[i]["from"] == "function_call" ? calls_of_text(value) : std::nullopt;
    if (calls) message["content"] = "", message["tool_calls"] = *calls;
    for (const char* key : {"train", "weight"}) {
      if (const Json* given = value_of(turns[i], key)) message[key] = *given;
    }
    messages.push_back(std::move(message));
  }
  check_messages(messages, key, where);
  return conversation_of(record, std::move(messages), 0, where);
}

RecordShape shape_of_prompt_completion(const Json& record, const std::string& where) {
  constexpr auto kFormat = RecordFormat::kPromptCompletion;
  const Json& prompt = require(record, "prompt", kFormat, where);
  const Json& completion = require(record, "completion", kFormat, where);
  if (prompt.is_string() && completion.is_string()) {
    return PlainText{prompt.get<std::string>(), completion.get<std::string>()};
  }
  if (!prompt.is_array() || !completion.is_array()) {
    const std::string fix = "write two strings, or leave the record out where one is missing",
                      fields = fields_for({{"prompt", &prompt}, {"completion", &completion}});
    throw RecordError(
        fmt::format("\"prompt\" ({}) and \"completion\" ({}) must be two strings or two lists of "
                    "messages",
                    json_type(prompt), json_type(completion)),
        where, fields.empty() ? fix : fmt::format("{}; or read them as text with {}", fix, fields),
        fix);
  }
  check_messages(prompt, "prompt", where);
  check_messages(completion, "completion", where);
  Json messages = prompt;
  for (const Json& message : completion) messages.push_back(message);
  return conversation_of(record, std::move(messages), prompt.size(), where);
}

RecordShape shape_of_alpaca(const Json& record, bool has_chat_template, const std::string& where) {
  constexpr auto kFormat = RecordFormat::kAlpaca;
  std::string prompt = require_string(record, "instruction", kFormat, where);
  const std::string input = optional_string(record, "input", where);
  if (!prompt.empty() && !input.empty()) prompt += "\n\n";
  prompt += input;
  const std::string output = require_string(record, "output", kFormat, where);
  const std::string system = optional_string(record, "system", where);
  if (!has_chat_template)
    return PlainText{(system.empty() ? "" : system + "\n\n") + prompt + "\n\n", output};
  Json messages = Json::array();
  if (!system.empty()) messages.push_back(message_of("system", system));
  messages.push_back(message_of("user", prompt));
  messages.push_back(message_of("assistant", output));
  return conversation_of(record, std::move(messages), 0, where);
}

/// Where TRL's extract_prompt ends the prompt: at the first element in which the two differ, or,
/// where one begins with the whole of the other, before the last element that both have.
template <typename Equal>
size_t end_of_common_part(size_t chosen, size_t rejected, Equal&& is_equal) {
  const size_t shorter = std::min(chosen, rejected);
  size_t end = 0;
  while (end + 1 < shorter && is_equal(end)) ++end;
  return end;
}

std::vector<NamedShape> preference_texts(const Json& record, const std::string& chosen,
                                         const std::string& rejected, const std::string& where) {
  if (const Json* prompt = value_of(record, "prompt")) {
    if (!prompt->is_string()) {
      throw DataError(
          fmt::format("\"prompt\" is of type {}, but \"chosen\" and \"rejected\" are strings",
                      json_type(*prompt)),
          where, "write three strings, or three lists of messages");
    }
    const auto text = prompt->get<std::string>();
    return {{"chosen", PlainText{text, chosen}}, {"rejected", PlainText{text, rejected}}};
  }
  if (chosen.empty() || rejected.empty()) {
    throw DataError("\"chosen\" or \"rejected\" is empty, and there is no \"prompt\"", where,
                    "leave the record out, or give a \"prompt\"");
  }
  const auto characters = [](const std::string& text) {  // where each begins
    std::vector<size_t> begins;
    for (size_t i = 0; i < text.size(); ++i) {
      if (!is_continuation_byte(text[i])) begins.push_back(i);
    }
    begins.push_back(text.size());
    return begins;
  };
  const std::vector<size_t> of_chosen = characters(chosen), of_rejected = characters(rejected);
  size_t end =
      end_of_common_part(of_chosen.size() - 1, of_rejected.size() - 1, [&](size_t character) {
        const size_t begin = of_chosen[character], next = of_chosen[character + 1];
        return chosen.compare(begin, next - begin, rejected, of_rejected[character],
                              of_rejected[character + 1] - of_rejected[character]) == 0;
      });
  if (end == 0) {
    throw RecordError(
        "\"chosen\" and \"rejected\" do not begin with the same text, and there is no "
        "\"prompt\"",
        where, "add a \"prompt\", or name its column: data.fields: {prompt: COLUMN}",
        "add a \"prompt\"");
  }
  if (chosen[of_chosen[end - 1]] == ' ') --end;  // the space belongs to the answer
  const size_t bytes = of_chosen[end];
  const std::string text = chosen.substr(0, bytes);
  return {{"chosen", PlainText{text, chosen.substr(bytes)}},
          {"rejected", PlainText{text, rejected.substr(bytes)}}};
}

Json sliced(const Json& messages, size_t begin, size_t end) {
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i) part.push_back(messages[i]);
  return part;
}

std::vector<NamedShape> preference_conversations(const Json& record, const std::string& where) {
  Json prompt = Json::array(), chosen = record["chosen"], rejected = record["rejected"];
  check_messages(chosen, "chosen", where);
  check_messages(rejected, "rejected", where);
  drop_nulls(chosen);
  drop_nulls(rejected);
  const auto given = record.find("prompt");
  if (given != record.end() && given->is_array()) {
    check_messages(*given, "prompt", where);
    prompt = *given;
  } else {  // a text beside conversations repeats what they begin with
    const size_t end = end_of_common_part(chosen.size(), rejected.size(), [&](size_t i) {
      return nlohmann::json(chosen[i]) == nlohmann::json(rejected[i]);  // in any order of keys
    });
    if (end == 0) {
      throw DataError("\"chosen\" and \"rejected\" do not begin with the same messages", where,
                      "give a \"prompt\", a list of messages, or begin both with the same ones");
    }
    prompt = sliced(chosen, 0, end);
    chosen = sliced(chosen, end, chosen.size());
    rejected = sliced(rejected, end, rejected.size());
  }
  const auto with = [&](const Json& answer) {
    Json messages = prompt;
    for (const Json& message : answer) messages.push_back(message);
    return conversation_of(record, std::move(messages), prompt.size(), where);
  };
  return {{"chosen", with(chosen)}, {"rejected", with(rejected)}};
}

/// Beside a prompt of messages an answer may be one message, or its text.
Json with_answers_as_messages(Json record) {
  for (const char* key : {"chosen", "rejected"}) {
    const auto answer = record.find(key);
    if (answer == record.end()) continue;
    if (answer->is_object())
      *answer = Json::array({*answer});
    else if (answer->is_string())
      *answer = Json::array({message_of("assistant", answer->get<std::string>())});
  }
  return record;
}

std::vector<NamedShape> preference_shapes(const Json& given, const std::string& where) {
  const auto prompt = given.find("prompt");
  const bool has_messages = prompt != given.end() && prompt->is_array() && !prompt->empty();
  const Json record = has_messages ? with_answers_as_messages(given) : given;
  const Json &chosen = require(record, "chosen", RecordFormat::kPreference, where),
             &rejected = require(record, "rejected", RecordFormat::kPreference, where);
  if (chosen.is_string() && rejected.is_string()) {
    return preference_texts(record, chosen.get<std::string>(), rejected.get<std::string>(), where);
  }
  if (chosen.is_array() && rejected.is_array()) return preference_conversations(record, where);
  throw DataError(fmt::format("\"chosen\" ({}) and \"rejected\" ({}) must be two strings or two "
                              "lists of messages",
                              json_type(chosen), json_type(rejected)),
                  where, "write two strings, or leave the record out where one is missing");
}

/// The format whose keys the record has; null: none, or preference.
std::optional<DetectedFormat> format_of_keys(const Json& record) {
  const auto has = [&](const char* key) { return value_of(record, key) != nullptr; };
  if (has("messages")) {
    const Json& turns = record["messages"];
    if (turns.is_array() && !turns.empty() && is_sharegpt_turn(turns[0]) &&
        value_of(turns[0], "role") == nullptr)
      return {{RecordFormat::kShareGpt, "its \"messages\" have \"from\" and \"value\""}};
    return {{RecordFormat::kMessages, "it has \"messages\""}};
  }
  if (has("conversations")) return {{RecordFormat::kShareGpt, "it has \"conversations\""}};
  if (has("prompt") && has("completion")) {
    return {{RecordFormat::kPromptCompletion, "it has \"prompt\" and \"completion\""}};
  }
  if (has("instruction") && has("output")) {
    return {{RecordFormat::kAlpaca, "it has \"instruction\" and \"output\""}};
  }
  if (has("text")) return {{RecordFormat::kText, "it has \"text\""}};
  return std::nullopt;
}

/// A command reads one answer of a record.
[[noreturn]] void refuse_two_answers(const Json& record, const std::string& where) {
  const bool is_list = record["chosen"].is_array();
  const Json* prompt = value_of(record, "prompt");
  const bool has_prompt = prompt != nullptr && prompt->is_array() == is_list;
  throw DataError("this is preference data (\"chosen\" and \"rejected\"): two answers in a record",
                  where,
                  fmt::format("write a record for each answer: {}",
                              has_prompt ? "{\"prompt\": …, \"completion\": …}"
                              : is_list  ? "{\"messages\": […]}"
                                         : "{\"text\": …}"));
}

}  // namespace

std::string name_of(RecordFormat format) {
  switch (format) {
    case RecordFormat::kMessages:
      return "messages";
    case RecordFormat::kShareGpt:
      return "sharegpt";
    case RecordFormat::kPromptCompletion:
      return "prompt_completion";
    case RecordFormat::kAlpaca:
      return "alpaca";
    case RecordFormat::kText:
      return "text";
    case RecordFormat::kPreference:
      return "preference";
  }
  invariant_failed(__FILE__, __LINE__, "unknown record format");
}

DetectedFormat detect_format(const Json& record, const std::string& where,
                             config::Objective objective) {
  if (objective == config::Objective::kDpo) {
    if (is_preference(record))
      return {RecordFormat::kPreference, "it has \"chosen\" and \"rejected\""};
    refuse_token_ids(record, where);
    throw DataError(fmt::format("the record has no \"chosen\" and \"rejected\", which "
                                "train.objective dpo needs (its keys: {})",
                                keys_of(record)),
                    where,
                    "name the columns: data.fields: {prompt: COLUMN, chosen: COLUMN, rejected: "
                    "COLUMN}; or set train.objective: sft");
  }
  if (auto format = format_of_keys(record)) return *format;
  if (is_preference(record)) refuse_preference(record, where);
  refuse_token_ids(record, where);
  throw DataError(fmt::format("the record has no known format; its keys: {}", keys_of(record)),
                  where, advise_fields(record));
}

DetectedFormat detect_input_format(const Json& record, const std::string& where) {
  if (auto format = format_of_keys(record)) return *format;
  if (is_preference(record)) refuse_two_answers(record, where);
  refuse_token_ids(record, where);
  throw DataError(fmt::format("the record has no known format; its keys: {}", keys_of(record)),
                  where, advise_keys(record));
}

bool is_rendered(const Json& record, RecordFormat format, bool has_chat_template) {
  const auto is_list = [&](const char* key) {
    const Json* value = value_of(record, key);
    return value != nullptr && value->is_array();
  };
  switch (format) {
    case RecordFormat::kMessages:
    case RecordFormat::kShareGpt:
      return true;
    case RecordFormat::kAlpaca:
      return has_chat_template;
    case RecordFormat::kPromptCompletion:
      return is_list("prompt");
    case RecordFormat::kPreference:
      return is_list("chosen");
    case RecordFormat::kText:
      return false;
  }
  return false;
}

RecordShape shape_of(const Json& record, RecordFormat format, const TemplateTraits& chat_template,
                     const std::string& where) {
  switch (format) {
    case RecordFormat::kMessages: {
      const Json& messages = require(record, "messages", format, where);
      check_messages(messages, "messages", where);
      return conversation_of(record, messages, 0, where);
    }
    case RecordFormat::kShareGpt:
      return shape_of_sharegpt(record, chat_template.writes_calls, where);
    case RecordFormat::kPromptCompletion:
      return shape_of_prompt_completion(record, where);
    case RecordFormat::kAlpaca:
      return shape_of_alpaca(record, chat_template.exists, where);
    case RecordFormat::kText:
      return PlainText{"", require_string(record, "text", format, where)};
    case RecordFormat::kPreference:
      break;
  }
  invariant_failed(__FILE__, __LINE__, "a format of one sequence");
}

std::vector<NamedShape> shapes_of(const Json& record, RecordFormat format,
                                  const TemplateTraits& chat_template, const std::string& where) {
  if (format == RecordFormat::kPreference) return preference_shapes(record, where);
  return {{"", shape_of(record, format, chat_template, where)}};
}

}  // namespace sftrun::data
