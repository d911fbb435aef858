#include "record_values.h"

#include <algorithm>
#include <array>

#include "content_parts.h"
#include "likely_columns.h"
#include "nulls.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/message_form.h"
#include "sftrun/data/record_error.h"
#include "tool_calls.h"

namespace sftrun::data {

bool is_preference(const Json& record) {
  return value_of(record, "chosen") != nullptr && value_of(record, "rejected") != nullptr;
}

[[noreturn]] void refuse_preference(const Json& record, const std::string& where) {
  // Lists may hold the whole conversation, or the answer behind a prompt that is a list, too.
  const bool is_list = record["chosen"].is_array();
  const Json* prompt = value_of(record, "prompt");
  const bool has_prompt = prompt != nullptr && prompt->is_array() == is_list;
  throw RecordError(
      fmt::format("this is preference data (\"chosen\" and \"rejected\"), which train.objective {} "
                  "does not read",
                  config::objectives_for(config::ExampleForm::kAnswer)),
      where,
      fmt::format("set train.objective: {}; or, to train on the chosen answers alone, data.fields: "
                  "{{{}}}",
                  config::first_objective_for(config::ExampleForm::kPair),
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

namespace {

[[noreturn]] void refuse_value(const char* key, const Json& value, const std::string& fix,
                               const std::string& where) {
  const std::string fields = fields_for({{key, &value}});
  throw RecordError(
      fmt::format("\"{}\" must be a string, not {}", key, json_type(value)), where,
      fields.empty() ? fix : fmt::format("{}, or read it as text with {}", fix, fields), fix);
}

}  // namespace

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

namespace {

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
  const double number = weight->is_number() ? weight->get<double>() : -1;
  if (!(number >= 0 && number <= config::kMaxLabelWeight)) {
    throw DataError(fmt::format("{}.weight must be a number from 0 to {}, not {}", name,
                                config::kMaxLabelWeight, excerpt(to_json_text(*weight))),
                    where, "write 1, 0.5 for half the weight, or 0 for a turn without labels");
  }
}

}  // namespace

bool is_sharegpt_turn(const Json& turn) {
  return value_of(turn, "from") != nullptr && value_of(turn, "value") != nullptr;
}

namespace {

[[noreturn]] void refuse_turn(const Json& turn, const std::string& key, std::string message,
                              const std::string& where) {
  const std::string write = R"(write {"role": "user", "content": "…"})";
  if (!is_sharegpt_turn(turn)) {
    throw RecordError(std::move(message), where,
                      write + "; other keys are renamed by data.fields: {role: …, content: …}",
                      write);
  }
  const bool is_messages = key == "messages";
  if (!is_messages && key != "conversations") {
    throw RecordError(
        std::move(message), where,
        fmt::format("{}; or, as turns of \"from\" and \"value\" are ShareGPT's, set data.fields: "
                    "{{role: from, content: value, roles: {{human: user, gpt: assistant}}}}",
                    write),
        write);
  }
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

namespace {

void require_messages_of(const Json& messages, const std::string& key, const std::string& where,
                         PartKinds kinds) {
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
      check_parts(*content, fmt::format("{}[{}].content", key, i), where, kinds);
    check_calls(message, fmt::format("{}[{}]", key, i), where);
  }
}

}  // namespace

void require_messages(const Json& messages, const std::string& key, const std::string& where) {
  require_messages_of(messages, key, where, PartKinds::kText);
}

void check_messages(const Json& messages, const char* key, const std::string& where) {
  require_messages_of(messages, key, where, PartKinds::kTextAndImages);
  for (size_t i = 0; i < messages.size(); ++i)
    check_turn_weight(messages[i], fmt::format("{}[{}]", key, i), where);
}

namespace {

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

}  // namespace

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

std::vector<NamedShape> one_shape(RecordShape shape) {
  std::vector<NamedShape> shapes(1);
  shapes.front().shape = std::move(shape);
  return shapes;
}

}  // namespace sftrun::data
