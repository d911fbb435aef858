#include "generated_record.h"

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
  if (const auto prompt = record.find("prompt"); prompt != record.end()) {
    answered["completion"] = prompt->is_array() ? GeneratedJson::array({turn}) : *generated;
  } else if (record.contains("messages")) {
    answered["messages"] = reward::prompt_of(record);
    answered["messages"].push_back(turn);
  } else if (const auto text = record.find("text"); text != record.end() && text->is_string()) {
    answered["text"] = text->get<std::string>() + generated->get<std::string>();
  } else {
    throw DataError(
        "the record has \"generated\", and no \"prompt\", \"messages\" or \"text\" before it",
        where, "write the prompt into the record, or remove \"generated\"");
  }
  return answered;
}

}  // namespace sftrun::engine
