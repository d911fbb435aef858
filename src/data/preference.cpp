#include "preference.h"

#include <algorithm>
#include <string>
#include <utility>

#include "left_out.h"
#include "roles.h"
#include "sftrun/core/strings.h"
#include "sftrun/text/chat_labels.h"

namespace sftrun::data {
namespace {

size_t common_prefix_length(const std::vector<text::TokenId>& a,
                            const std::vector<text::TokenId>& b) {
  const size_t shorter = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first -
      a.begin());
}

/// Labels on everything behind the prompt.
void label_answers(std::vector<Sequence>& pair, const std::vector<text::TokenId>& prompt) {
  size_t prompt_tokens = prompt.size();
  for (const Sequence& sequence : pair)
    prompt_tokens = std::min(prompt_tokens, common_prefix_length(prompt, sequence.ids));
  for (Sequence& sequence : pair) {
    sequence.mask.assign(sequence.ids.size(), 1);
    std::fill_n(sequence.mask.begin(), prompt_tokens, 0);
  }
}

Sequence tokenised(std::string text, const TextModel& model, bool add_special_tokens) {
  text::Encoding encoding = model.tokenizer->encode_with_spans(text, add_special_tokens);
  return {
      .ids = std::move(encoding.ids), .spans = std::move(encoding.spans), .text = std::move(text)};
}

Sequence text_of_answer(const PlainText& record, const TextModel& model,
                        const SequenceOptions& options) {
  std::string text = record.prompt + record.completion;
  const auto eos = model.tokenizer->eos_id();
  if (eos && options.append_eos) {
    const std::string end = model.tokenizer->id_to_token(*eos);
    if (!record.completion.ends_with(end)) text += end;
  }
  Sequence sequence = tokenised(std::move(text), model, /*add_special_tokens=*/true);
  sequence.num_empty_answers = trim(record.completion).empty() ? 1 : 0;
  if (!options.with_parts) return sequence;
  const auto prompt_bytes = static_cast<uint32_t>(record.prompt.size());
  if (prompt_bytes > 0) sequence.parts.push_back({{0, prompt_bytes}, "prompt"});
  sequence.parts.push_back(
      {{prompt_bytes, static_cast<uint32_t>(sequence.text.size())}, "completion"});
  return sequence;
}

Sequence conversation_with_answer(const Conversation& conversation, const TextModel& model,
                                  const SequenceOptions& options) {
  const text::RenderOptions render = render_options(conversation, model, options);
  const Json& messages = conversation.messages;
  text::LabelledConversation rendered{.rendered = model.chat_template->render(messages, render)};
  for (size_t i = conversation.num_prompt_messages; i < messages.size(); ++i)
    rendered.runs.push_back({.message = static_cast<int32_t>(i)});  // the answers' messages
  Sequence sequence = tokenised(rendered.rendered.text, model, /*add_special_tokens=*/false);
  sequence.left_out = find_left_out(rendered, messages, render.tools);
  sequence.num_empty_answers = count_empty_answers(rendered, messages);
  sequence.num_control_tokens = count_control_tokens(
      rendered, {.ids = sequence.ids, .spans = sequence.spans}, *model.tokenizer);
  sequence.unknown_roles = unknown_roles(messages, model.chat_template->source());
  if (options.with_parts) sequence.parts = parts_of(rendered.rendered, messages);
  return sequence;
}

/// The prompt alone, as it is rendered before an answer is generated.
std::vector<text::TokenId> prompt_of(const Conversation& conversation, const TextModel& model,
                                     const SequenceOptions& options) {
  text::RenderOptions render = render_options(conversation, model, options);
  render.add_generation_prompt = true;
  Json messages = conversation.messages;
  messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(conversation.num_prompt_messages),
                 messages.end());
  return model.tokenizer->encode(model.chat_template->render(messages, render).text,
                                 /*add_special_tokens=*/false);
}

}  // namespace

std::vector<Sequence> preference_pair_of_texts(const std::vector<NamedShape>& pair,
                                               const TextModel& model,
                                               const SequenceOptions& options) {
  std::vector<Sequence> sequences;
  for (const NamedShape& one : pair)
    sequences.push_back(text_of_answer(std::get<PlainText>(one.shape), model, options));
  const std::string& prompt = std::get<PlainText>(pair.front().shape).prompt;
  label_answers(sequences, model.tokenizer->encode(prompt, /*add_special_tokens=*/true));
  return sequences;
}

std::vector<Sequence> preference_pair_of_conversations(const std::vector<NamedShape>& pair,
                                                       const TextModel& model,
                                                       const SequenceOptions& options) {
  std::vector<Sequence> sequences;
  for (const NamedShape& one : pair)
    sequences.push_back(
        conversation_with_answer(std::get<Conversation>(one.shape), model, options));
  label_answers(sequences, prompt_of(std::get<Conversation>(pair.front().shape), model, options));
  return sequences;
}

}  // namespace sftrun::data
