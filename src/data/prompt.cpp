#include "sftrun/data/prompt.h"

#include <utility>
#include <variant>

#include "formats/readers.h"
#include "likely_columns.h"
#include "media_text.h"
#include "nulls.h"
#include "preference.h"
#include "record.h"
#include "record_media.h"
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

/// What reads the prompts: a run has `data.fields`, a command has not.
enum class Reader : uint8_t { kCommand, kRun };

[[noreturn]] void refuse_without_prompt(const Json& record, const std::string& where,
                                        Reader reader) {
  refuse_token_ids(record, where);
  const Json *chosen = value_of(record, "chosen"), *rejected = value_of(record, "rejected");
  const bool is_preference = chosen != nullptr && rejected != nullptr;
  throw DataError(fmt::format("the record has no prompt; its keys: {}", keys_of(record)), where,
                  !is_preference ? reader == Reader::kRun ? advise_prompt_fields(record)
                                                          : advise_prompt_keys(record)
                  : chosen->is_array()
                      ? "write what \"chosen\" and \"rejected\" answer: {\"prompt\": "
                        "[{\"role\": \"user\", \"content\": \"…\"}]}"
                      : "write what \"chosen\" and \"rejected\" continue: {\"prompt\": \"…\"}");
}

Asked asked_by(const Json& record, const std::string& where, Reader reader = Reader::kCommand) {
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    if (info.is_pair || info.is_retrieval) continue;
    if (const auto asked = reader_of(info.format).asked) {
      if (auto completed = asked(record, where)) return {std::move(*completed), info.format};
    } else if (!reason_for(info.format, record).empty()) {
      return {record, info.format};
    }
  }
  refuse_without_prompt(record, where, reader);
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

templates::Rendered render(const Conversation& conversation, const TextModel& model,
                           const std::string& where) {
  templates::RenderOptions options = model.render_defaults;
  options.add_generation_prompt = true;
  options.tools = conversation.tools;
  for (const auto& [key, value] : conversation.kwargs.items()) options.kwargs[key] = value;
  try {
    return model.chat_template->render(conversation.messages, options);
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

PromptTokens PromptBuilder::build(const Json& record, const std::string& where,
                                  const std::filesystem::path& folder) const {
  Sequence sequence = sequence_of(record, where, folder, /*stamps=*/nullptr);
  return {std::move(sequence.ids), std::move(sequence.media)};
}

Sequence PromptBuilder::sequence_of(const Json& record, const std::string& where,
                                    const std::filesystem::path& folder,
                                    MediaStamps* stamps) const {
  const Asked asked = asked_by(record, where);
  const auto media = media_of_record(record, asked.format, model_, {where, folder, stamps});
  Json room;
  const Json& marked =
      media != nullptr ? media->marked(asked.record, asked.format, room) : asked.record;
  const bool reads_images = media != nullptr && media->reads_images();
  RecordShape shape = shape_of(
      marked, asked.format,
      {.exists = chat_, .writes_calls = form_.writes_calls(), .reads_images = reads_images}, where);
  auto* plain = std::get_if<PlainText>(&shape);
  const bool continues = plain && (!chat_ || config::format_info(asked.format).is_text);
  std::vector<PlacedMedia> placed;
  Sequence sequence;
  if (continues) {
    if (media != nullptr) placed = place_media(*plain, *media);
    sequence.text = plain->prompt + plain->completion;
    sequence.parts = {{{0, static_cast<uint32_t>(sequence.text.size())}, "prompt"}};
  } else {
    if (model_.chat_template == nullptr) throw_no_template(where);
    Conversation conversation;
    if (plain)
      conversation.messages.push_back({{"role", "user"}, {"content", plain->prompt}});
    else
      conversation = std::move(std::get<Conversation>(shape));
    if (media != nullptr) media->take(conversation.messages);
    if (!plain) {
      conversation.messages = question_of(conversation);
      form_.apply(conversation.messages);
    }
    TextModel other;
    const TextModel& model = model_for_videos(model_, conversation.messages, other);
    templates::LabelledConversation asking{.rendered = render(conversation, model, where)};
    if (media != nullptr) placed = place_media(asking, conversation.messages, *media);
    sequence.parts = parts_of(asking.rendered, conversation.messages);
    sequence.text = std::move(asking.rendered.text);
  }
  tokenizer::Encoding encoding =
      continues ? encode_open_text(*model_.tokenizer, sequence.text)
                : model_.tokenizer->encode_with_spans(sequence.text, /*add_special_tokens=*/false);
  sequence.ids = std::move(encoding.ids), sequence.spans = std::move(encoding.spans);
  sequence.mask.assign(sequence.ids.size(), 0);
  if (media != nullptr) note_media(sequence, placed, *media);
  require_one_bos(sequence.ids, sequence.spans, *model_.tokenizer, where);
  require_embedded(sequence.ids, model_, where);
  return sequence;
}

DetectedFormat detect_prompt_format(const Json& record, const std::string& where) {
  return {asked_by(record, where, Reader::kRun).format, "it has a prompt"};
}

}  // namespace sftrun::data
