#include "preference.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "empty_thinking.h"
#include "left_out.h"
#include "media_text.h"
#include "roles.h"
#include "sftrun/core/strings.h"
#include "sftrun/templates/chat_labels.h"

namespace sftrun::data {
namespace {

size_t common_prefix_length(const std::vector<tokenizer::TokenId>& a,
                            const std::vector<tokenizer::TokenId>& b) {
  const size_t shorter = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first -
      a.begin());
}

/// Labels on everything behind the prompt.
void label_answers(std::vector<Sequence>& answers, const std::vector<tokenizer::TokenId>& prompt) {
  size_t prompt_tokens = prompt.size();
  for (const Sequence& sequence : answers)
    prompt_tokens = std::min(prompt_tokens, common_prefix_length(prompt, sequence.ids));
  for (Sequence& sequence : answers) {
    sequence.mask.assign(sequence.ids.size(), 1);
    std::fill_n(sequence.mask.begin(), prompt_tokens, 0);
    sequence.num_prompt_tokens = static_cast<int64_t>(prompt_tokens);
  }
}

/// An undesirable or rejected answer does not train the model to answer with nothing.
void judge(std::vector<Sequence>& answers, Judgement judgement) {
  for (Sequence& sequence : answers) {
    sequence.judgement = judgement;
    const bool is_rejected = answers.size() > 1 && &sequence == &answers.back();
    if (is_rejected || judgement == Judgement::kUndesirable) sequence.num_empty_answers = 0;
  }
}

/// @param placed the images of each
void note_media_of(std::vector<Sequence>& answers,
                   const std::vector<std::vector<PlacedMedia>>& placed, const RecordMedia* media) {
  if (media == nullptr) return;
  for (size_t i = 0; i < answers.size(); ++i) note_media(answers[i], placed[i], *media);
}

Sequence sequence_of(tokenizer::Encoding encoding, std::string text) {
  return {
      .ids = std::move(encoding.ids), .spans = std::move(encoding.spans), .text = std::move(text)};
}

/// @param record with its images' texts
Sequence text_of_answer(const PlainText& record, const TextModel& model,
                        const SequenceOptions& options) {
  std::string text = record.prompt + record.completion;
  const auto eos = model.tokenizer->eos_id();
  if (eos && options.append_eos) {
    const std::string end = model.tokenizer->id_to_token(*eos);
    if (!record.completion.ends_with(end)) text += end;
  }
  tokenizer::Encoding encoding =
      encode_open_text(*model.tokenizer, text);  // its EOS is in the text
  Sequence sequence = sequence_of(std::move(encoding), std::move(text));
  sequence.num_empty_answers = trim(record.completion).empty() ? 1 : 0;
  if (!options.with_parts) return sequence;
  const auto prompt_bytes = static_cast<uint32_t>(record.prompt.size());
  if (prompt_bytes > 0) sequence.parts.push_back({{0, prompt_bytes}, "prompt"});
  sequence.parts.push_back(
      {{prompt_bytes, static_cast<uint32_t>(sequence.text.size())}, "completion"});
  return sequence;
}

Sequence conversation_with_answer(const Conversation& conversation, const TextModel& model,
                                  const SequenceOptions& options, const RecordMedia* media,
                                  std::vector<PlacedMedia>& placed) {
  const templates::RenderOptions render = render_options(conversation, model, options);
  const Json& messages = conversation.messages;
  templates::LabelledConversation rendered{.rendered =
                                               model.chat_template->render(messages, render)};
  for (size_t i = conversation.num_prompt_messages; i < messages.size(); ++i)
    rendered.runs.push_back({.message = static_cast<int32_t>(i)});  // the answers' messages
  const LeftOut left_out = find_left_out(rendered, messages, *model.chat_template, render);
  if (media != nullptr) placed = place_media(rendered, messages, *media);
  const std::string& text = rendered.rendered.text;
  Sequence sequence =
      sequence_of(model.tokenizer->encode_with_spans(text, /*add_special_tokens=*/false), text);
  sequence.left_out = left_out;
  sequence.num_empty_answers = count_empty_answers(rendered, messages);
  sequence.num_control_tokens = count_control_tokens(
      rendered, {.ids = sequence.ids, .spans = sequence.spans}, *model.tokenizer);
  sequence.unknown_roles = unknown_roles(messages, model.chat_template->source());
  if (options.with_parts) sequence.parts = parts_of(rendered.rendered, messages);
  return sequence;
}

/// The prompt alone, as it is rendered before an answer is generated.
std::string prompt_of(const Conversation& conversation, const TextModel& model,
                      const SequenceOptions& options, const RecordMedia* media) {
  templates::RenderOptions render = render_options(conversation, model, options);
  render.add_generation_prompt = true;
  Json messages = conversation.messages;
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(conversation.num_prompt_messages),
                 messages.end());
  templates::LabelledConversation prompt{.rendered = model.chat_template->render(messages, render)};
  if (media != nullptr) place_media(prompt, messages, *media);
  return std::move(prompt.rendered.text);
}

/// Empty reasoning with which the answer begins, behind what the text has of the prompt.
std::optional<tokenizer::ByteSpan> empty_thinking_of(const Sequence& sequence,
                                                     const std::string& prompt) {
  const auto [end, unused] =
      std::mismatch(sequence.text.begin(), sequence.text.end(), prompt.begin(), prompt.end());
  return empty_thinking_at(sequence.text, {static_cast<uint32_t>(end - sequence.text.begin()),
                                           static_cast<uint32_t>(sequence.text.size())});
}

/// What both answers of a pair begin with trains nothing; only a chosen answer that lacks the other's
/// reasoning, or a desirable one, trains the model not to reason.
void treat_empty_thinking(std::vector<Sequence>& answers, Judgement judgement,
                          const std::string& prompt, bool drop) {
  Sequence& first = answers.front();
  const auto empty = empty_thinking_of(first, prompt);
  const bool is_compared = answers.size() > 1;
  const bool trains =
      is_compared ? !empty_thinking_of(answers.back(), prompt) : judgement == Judgement::kDesirable;
  if (!empty || !trains) return;
  first.num_empty_thinking = 1;
  if (!drop) return;
  for (size_t i = 0; i < first.ids.size(); ++i) {
    const tokenizer::ByteSpan& span = first.spans[i];
    if (span.begin >= empty->begin && span.begin < empty->end) first.mask[i] = 0;
  }
}

}  // namespace

std::vector<Sequence> sequences_of_texts(const std::vector<NamedShape>& answers,
                                         Judgement judgement, const TextModel& model,
                                         const SequenceOptions& options, RecordMedia* media) {
  std::vector<Sequence> sequences;
  std::vector<std::vector<PlacedMedia>> placed(answers.size());
  std::string prompt;
  for (size_t i = 0; i < answers.size(); ++i) {
    PlainText text = std::get<PlainText>(answers[i].shape);
    if (media != nullptr) placed[i] = place_media(text, *media);
    sequences.push_back(text_of_answer(text, model, options));
    prompt = std::move(text.prompt);
  }
  label_answers(sequences, encode_open_text(*model.tokenizer, prompt).ids);
  judge(sequences, judgement);
  note_media_of(sequences, placed, media);
  return sequences;
}

std::vector<Sequence> sequences_of_conversations(const std::vector<NamedShape>& answers,
                                                 Judgement judgement, const TextModel& model,
                                                 const SequenceOptions& options,
                                                 RecordMedia* media) {
  std::vector<Sequence> sequences;
  std::vector<std::vector<PlacedMedia>> placed(answers.size());
  for (size_t i = 0; i < answers.size(); ++i)
    sequences.push_back(conversation_with_answer(std::get<Conversation>(answers[i].shape), model,
                                                 options, media, placed[i]));
  const std::string prompt =
      prompt_of(std::get<Conversation>(answers.front().shape), model, options, media);
  label_answers(sequences, model.tokenizer->encode(prompt, /*add_special_tokens=*/false));
  judge(sequences, judgement);
  treat_empty_thinking(sequences, judgement, prompt,
                       options.empty_thinking == config::EmptyThinking::kDrop);
  note_media_of(sequences, placed, media);
  return sequences;
}

}  // namespace sftrun::data
