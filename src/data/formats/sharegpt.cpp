#include <array>
#include <string_view>
#include <utility>

#include "nulls.h"
#include "readers.h"
#include "record_values.h"
#include "roles.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"
#include "tool_calls.h"

namespace sftrun::data {
namespace {

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

/// Of a record that is not of the format messages.
std::string sharegpt_recognise(const Json& record) {
  if (value_of(record, "messages") != nullptr)
    return "its \"messages\" have \"from\" and \"value\"";
  return value_of(record, "conversations") != nullptr ? "it has \"conversations\"" : "";
}

std::vector<NamedShape> sharegpt_shapes(const Json& record, const TemplateTraits& chat_template,
                                        const std::string& where) {
  const char* key = turns_key(record);
  const Json& turns = require(record, key, RecordFormat::kShareGpt, where);
  if (!turns.is_array()) {
    throw DataError(fmt::format("\"{}\" must be a list, not {}", key, json_type(turns)), where,
                    R"(write [{"from": "human", "value": "…"}, …])");
  }
  Json messages = messages_of_turns(turns, key, chat_template, where);
  if (const std::string system = optional_string(record, "system", where); !system.empty())
    messages.insert(messages.begin(), message_of("system", system));
  check_messages(messages, key, where);
  return one_shape(conversation_of(record, std::move(messages), 0, where));
}

}  // namespace

Json messages_of_turns(const Json& turns, const std::string& key,
                       const TemplateTraits& chat_template, const std::string& where) {
  Json messages = Json::array();
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
    const auto calls = chat_template.writes_calls && turns[i]["from"] == "function_call"
                           ? calls_of_text(value)
                           : std::nullopt;
    if (calls) message["content"] = "", message["tool_calls"] = *calls;
    for (const char* flag : {"train", "weight"}) {
      if (const Json* given = value_of(turns[i], flag)) message[flag] = *given;
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

const FormatReader kShareGptReader = {.shapes = sharegpt_shapes, .recognise = sharegpt_recognise};

}  // namespace sftrun::data
