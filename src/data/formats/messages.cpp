#include "nulls.h"
#include "readers.h"
#include "record_values.h"

namespace sftrun::data {
namespace {

std::string messages_recognise(const Json& record) {
  const Json* messages = value_of(record, "messages");
  if (messages == nullptr) return {};
  // Turns of "from" and "value" are ShareGPT's.
  const bool is_sharegpt = messages->is_array() && !messages->empty() &&
                           is_sharegpt_turn((*messages)[0]) &&
                           value_of((*messages)[0], "role") == nullptr;
  return is_sharegpt ? "" : "it has \"messages\"";
}

std::vector<NamedShape> messages_shapes(const Json& record, const TemplateTraits& /*chat_template*/,
                                        const std::string& where) {
  const Json& messages = require(record, "messages", RecordFormat::kMessages, where);
  check_messages(messages, "messages", where);
  return one_shape(conversation_of(record, messages, 0, where));
}

}  // namespace

const FormatReader kMessagesReader = {.shapes = messages_shapes, .recognise = messages_recognise};

}  // namespace sftrun::data
