#include "nulls.h"
#include "readers.h"
#include "record_values.h"

namespace sftrun::data {
namespace {

std::vector<NamedShape> alpaca_shapes(const Json& record, const TemplateTraits& chat_template,
                                      const std::string& where) {
  std::string prompt = require_string(record, "instruction", RecordFormat::kAlpaca, where);
  const std::string input = optional_string(record, "input", where);
  if (!prompt.empty() && !input.empty()) prompt += "\n\n";
  prompt += input;
  const std::string output = require_string(record, "output", RecordFormat::kAlpaca, where);
  const std::string system = optional_string(record, "system", where);
  if (!chat_template.exists)
    return one_shape(PlainText{(system.empty() ? "" : system + "\n\n") + prompt + "\n\n", output});
  Json messages = Json::array();
  if (!system.empty()) messages.push_back(message_of("system", system));
  messages.push_back(message_of("user", prompt));
  messages.push_back(message_of("assistant", output));
  return one_shape(conversation_of(record, std::move(messages), 0, where));
}

bool alpaca_is_rendered(const Json& /*record*/, bool has_chat_template) {
  return has_chat_template;
}

std::optional<Json> alpaca_asked(const Json& record, const std::string& /*where*/) {
  if (value_of(record, "instruction") == nullptr) return std::nullopt;
  Json completed = record;
  completed["output"] = "";
  return completed;
}

}  // namespace

const FormatReader kAlpacaReader = {
    .shapes = alpaca_shapes, .is_rendered = alpaca_is_rendered, .asked = alpaca_asked};

}  // namespace sftrun::data
