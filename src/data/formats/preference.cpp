#include <algorithm>

#include "nulls.h"
#include "pair_layouts.h"
#include "readers.h"
#include "record_values.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/utf8.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

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
        where,
        "add a \"prompt\", or name its column: data.fields: {prompt: COLUMN} (raw text), or "
        "{instruction: COLUMN} (the model's chat template, if it has one)",
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

[[noreturn]] void refuse_without_common_messages(const Json& record, const std::string& where) {
  const Json* prompt = value_of(record, "prompt");
  const std::string message = "\"chosen\" and \"rejected\" do not begin with the same messages";
  if (prompt == nullptr)
    throw DataError(message, where,
                    "give a \"prompt\", a list of messages, or begin both with the same ones");
  throw DataError(fmt::format("{}, and a \"prompt\" ({}) is not read beside lists of messages",
                              message, json_type(*prompt)),
                  where, R"(write it as a list: "prompt": [{"role": "user", "content": "…"}])");
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
    if (end == 0) refuse_without_common_messages(record, where);
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

std::vector<NamedShape> preference_shapes(const Json& original, const TemplateTraits& chat_template,
                                          const std::string& where) {
  Json room;
  const Json& given = with_pair_columns(original, chat_template, where, room);
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

}  // namespace

const FormatReader kPreferenceReader = {.shapes = preference_shapes,
                                        .is_rendered = is_pair_rendered};

}  // namespace sftrun::data
