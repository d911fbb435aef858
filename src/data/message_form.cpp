#include "sftrun/data/message_form.h"

#include "content_parts.h"
#include "nulls.h"
#include "tool_calls.h"

namespace sftrun::data {

MessageForm::MessageForm(const TextModel& model) {
  if (model.chat_template == nullptr) return;
  joins_parts_ = !reads_parts(model);
  const CallSupport calls = call_support(model);
  writes_calls_ = calls.writes;
  parses_calls_ = calls.writes && !calls.takes_strings;
  fills_content_ = !calls.takes_missing_content;
}

void MessageForm::apply(Json& messages) const {
  drop_nulls(messages);
  for (Json& message : messages) {
    if (fills_content_ && !message.contains("content")) message["content"] = "";
  }
  if (joins_parts_) join_parts(messages);
  if (parses_calls_) parse_arguments(messages);
}

}  // namespace sftrun::data
