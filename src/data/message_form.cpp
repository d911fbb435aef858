#include "sftrun/data/message_form.h"

#include "content_parts.h"
#include "nulls.h"
#include "tool_calls.h"

namespace sftrun::data {

struct MessageForm::Support {
  PartSupport parts;
  CallSupport calls;
};

MessageForm::MessageForm(const TextModel& model) {
  if (model.chat_template == nullptr) return;
  support_ = std::make_shared<const Support>(Support{part_support(model), call_support(model)});
}

bool MessageForm::writes_calls() const {
  return support_ != nullptr && support_->calls.writes;
}

void MessageForm::apply(Json& messages) const {
  drop_nulls(messages);
  for (Json& message : messages) {
    if (support_ == nullptr) continue;
    set_parts(message, support_->parts);
    set_calls(message, support_->calls);
    if (!support_->calls.takes_missing_content && !message.contains("content"))
      message["content"] = "";
  }
}

}  // namespace sftrun::data
