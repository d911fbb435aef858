#include "nulls.h"
#include "readers.h"
#include "record_values.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
namespace {

std::vector<NamedShape> prompt_completion_shapes(const Json& record,
                                                 const TemplateTraits& /*chat_template*/,
                                                 const std::string& where) {
  const Json& prompt = require(record, "prompt", RecordFormat::kPromptCompletion, where);
  const Json& completion = require(record, "completion", RecordFormat::kPromptCompletion, where);
  if (prompt.is_string() && completion.is_string()) {
    return one_shape(PlainText{prompt.get<std::string>(), completion.get<std::string>()});
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
  return one_shape(conversation_of(record, std::move(messages), prompt.size(), where));
}

bool prompt_completion_is_rendered(const Json& record, bool /*has_chat_template*/) {
  const Json* prompt = value_of(record, "prompt");
  return prompt != nullptr && prompt->is_array();
}

std::optional<Json> prompt_completion_asked(const Json& record, const std::string& where) {
  const Json* prompt = value_of(record, "prompt");
  if (prompt == nullptr) return std::nullopt;
  if (!prompt->is_string() && !prompt->is_array()) {
    throw DataError(fmt::format("\"prompt\" must be a string or a list of messages, not {}",
                                json_type(*prompt)),
                    where, kWriteString);
  }
  Json completed = record;
  completed["completion"] = prompt->is_array() ? *prompt : Json("");
  return completed;
}

}  // namespace

const FormatReader kPromptCompletionReader = {.shapes = prompt_completion_shapes,
                                              .is_rendered = prompt_completion_is_rendered,
                                              .asked = prompt_completion_asked};

}  // namespace sftrun::data
