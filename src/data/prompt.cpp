#include "sftrun/data/prompt.h"

#include <utility>
#include <variant>

#include "formats/readers.h"
#include "likely_columns.h"
#include "nulls.h"
#include "record.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/record_error.h"
#include "sftrun/data/sequence.h"

namespace sftrun::data {
namespace {

/// The record in the form of a training record; its answer is ignored.
struct Asked {
  Json record;
  RecordFormat format = RecordFormat::kText;
};

[[noreturn]] void refuse_without_prompt(const Json& record, const std::string& where) {
  refuse_token_ids(record, where);
  const Json *chosen = value_of(record, "chosen"), *rejected = value_of(record, "rejected");
  const bool is_preference = chosen != nullptr && rejected != nullptr;
  throw DataError(fmt::format("the record has no prompt; its keys: {}", keys_of(record)), where,
                  !is_preference ? advise_prompt_keys(record)
                  : chosen->is_array()
                      ? "write what \"chosen\" and \"rejected\" answer: {\"prompt\": "
                        "[{\"role\": \"user\", \"content\": \"…\"}]}"
                      : "write what \"chosen\" and \"rejected\" continue: {\"prompt\": \"…\"}");
}

Asked asked_by(const Json& record, const std::string& where) {
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    if (info.is_pair) continue;
    if (const auto asked = reader_of(info.format).asked) {
      if (auto completed = asked(record, where)) return {std::move(*completed), info.format};
    } else if (!reason_for(info.format, record).empty()) {
      return {record, info.format};
    }
  }
  refuse_without_prompt(record, where);
}

/// The turns before the answer.
Json question_of(const Conversation& conversation) {
  Json messages = conversation.messages;
  if (conversation.num_prompt_messages > 0) {
    messages.erase(messages.begin() + static_cast<ptrdiff_t>(conversation.num_prompt_messages),
                   messages.end());
    return messages;
  }
  if (!messages.empty() && messages.back()["role"] == "assistant")
    messages.erase(messages.size() - 1);
  return messages;
}

std::string render(const Conversation& conversation, const TextModel& model,
                   const std::string& where) {
  templates::RenderOptions options = model.render_defaults;
  options.add_generation_prompt = true;
  options.tools = conversation.tools;
  for (const auto& [key, value] : conversation.kwargs.items()) options.kwargs[key] = value;
  try {
    return model.chat_template->render(conversation.messages, options).text;
  } catch (const DataError& error) {
    throw DataError(error.message(), error.where().empty() ? where : where + ", " + error.where(),
                    error.fix());
  }
}

[[noreturn]] void throw_no_template(const std::string& where) {
  throw DataError("this record is a conversation, and the model has no chat template", where,
                  "use a model with a chat template, or records with \"prompt\" or \"text\" "
                  "strings");
}

}  // namespace

PromptBuilder::PromptBuilder(TextModel model, bool chat)
    : model_(std::move(model)), chat_(chat), form_(model_) {
  SFTRUN_CHECK(!chat_ || model_.chat_template != nullptr);
}

bool PromptBuilder::renders(const Json& record, const std::string& where) const {
  const Asked asked = asked_by(record, where);
  return (chat_ && !config::format_info(asked.format).is_text) ||
         is_rendered(asked.record, asked.format, chat_);
}

std::vector<tokenizer::TokenId> PromptBuilder::build(const Json& record,
                                                     const std::string& where) const {
  const Asked asked = asked_by(record, where);
  RecordShape shape = shape_of(asked.record, asked.format,
                               {.exists = chat_, .writes_calls = form_.writes_calls()}, where);
  std::string text;
  auto* plain = std::get_if<PlainText>(&shape);
  const bool continues = plain && (!chat_ || config::format_info(asked.format).is_text);
  if (continues) {
    text = plain->prompt + plain->completion;
  } else if (plain) {
    Conversation conversation;
    conversation.messages.push_back({{"role", "user"}, {"content", plain->prompt}});
    text = render(conversation, model_, where);
  } else {
    if (model_.chat_template == nullptr) throw_no_template(where);
    auto& conversation = std::get<Conversation>(shape);
    conversation.messages = question_of(conversation);
    form_.apply(conversation.messages);
    text = render(conversation, model_, where);
  }
  tokenizer::Encoding encoding =
      continues ? encode_open_text(*model_.tokenizer, text)
                : model_.tokenizer->encode_with_spans(text, /*add_special_tokens=*/false);
  require_one_bos(encoding.ids, encoding.spans, *model_.tokenizer, where);
  require_embedded(encoding.ids, model_, where);
  return std::move(encoding.ids);
}

}  // namespace sftrun::data
