#include "generated_record.h"

#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/reward/rewards.h"

namespace sftrun::engine {

nlohmann::ordered_json with_generated(const nlohmann::ordered_json& record,
                                      const std::string& where) {
  using GeneratedJson = nlohmann::ordered_json;
  const auto generated = record.find("generated");
  if (generated == record.end() || !generated->is_string()) return record;
  const GeneratedJson turn = {{"role", "assistant"}, {"content", *generated}};
  GeneratedJson answered = record;
  answered.erase("generated");
  GeneratedJson asked = reward::prompt_of(record);
  if (const auto prompt = record.find("prompt"); prompt != record.end()) {
    answered["completion"] = prompt->is_array() ? GeneratedJson::array({turn}) : *generated;
  } else if (asked.is_array()) {  // ShareGPT's turns, and Alpaca's with a system message, too
    for (const char* read : {"conversations", "instruction"}) answered.erase(read);
    answered["messages"] = std::move(asked);
    answered["messages"].push_back(turn);
  } else if (asked.is_string()) {
    answered["output"] = *generated;
  } else if (const auto text = record.find("text"); text != record.end() && text->is_string()) {
    answered["text"] = text->get<std::string>() + generated->get<std::string>();
  } else {
    throw DataError(
        "the record has \"generated\", and no \"prompt\", \"messages\", \"conversations\", "
        "\"instruction\" or \"text\" before it",
        where, "write the prompt into the record, or remove \"generated\"");
  }
  return answered;
}

}  // namespace sftrun::engine
