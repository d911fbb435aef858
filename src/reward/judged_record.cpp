#include <array>
#include <string_view>
#include <utility>

#include "sftrun/core/outside_json.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::reward {
namespace {

using RecordJson = nlohmann::ordered_json;

/// Of Alpaca's columns.
RecordJson prompt_of_instruction(const RecordJson& record) {
  const std::string input = text_under(record, "input"), system = text_under(record, "system");
  std::string text = text_under(record, "instruction");
  if (!text.empty() && !input.empty()) text += "\n\n";
  text += input;
  if (system.empty()) return text;
  return RecordJson::array(
      {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", text}}});
}

/// ShareGPT's turns as messages.
RecordJson messages_of(const RecordJson& conversations) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRoles = {
      {{"human", "user"}, {"gpt", "assistant"}, {"observation", "tool"}, {"function", "tool"}}};
  RecordJson messages = RecordJson::array();
  for (const RecordJson& turn : conversations) {
    if (!turn.is_object() || !turn.contains("from")) return {};
    std::string role = text_under(turn, "from");
    for (const auto& [theirs, ours] : kRoles)
      if (role == theirs) role = ours;
    messages.push_back({{"role", role}, {"content", turn.value("value", RecordJson())}});
  }
  return messages;
}

RecordJson before_last_answer(RecordJson messages) {
  const auto is_answer = [](const RecordJson& turn) {
    return turn.is_object() && turn.contains("role") && turn["role"] == "assistant";
  };
  while (!messages.empty() && is_answer(messages.back())) messages.erase(messages.size() - 1);
  return messages;
}

}  // namespace

RecordJson prompt_of(const RecordJson& record) {
  if (record.contains("prompt")) return record["prompt"];
  const auto list_in = [&](const char* key) {
    return record.contains(key) && record[key].is_array() ? record[key] : RecordJson();
  };
  if (const RecordJson messages = list_in("messages"); messages.is_array())
    return before_last_answer(messages);
  if (const RecordJson turns = list_in("conversations"); turns.is_array())
    return before_last_answer(messages_of(turns));
  return text_under(record, "instruction").empty() ? RecordJson() : prompt_of_instruction(record);
}

nlohmann::ordered_json judged_record(const Answer& answer) {
  nlohmann::ordered_json record = {{"prompt", answer.prompt},
                                   {"completion", std::string(answer.text)}};
  for (const auto& [key, value] : answer.record->items()) {
    if (key == "completion")
      record["reference_completion"] = value;
    else if (key != "prompt")
      record[key] = value;
  }
  return record;
}

}  // namespace sftrun::reward
