#pragma once

#include <vector>

#include "record.h"
#include "record_media.h"
#include "sftrun/data/sequence.h"
#include "sftrun/templates/chat_template.h"

/// The sequences of compared or judged answers, with the tokens and labels of TRL's DPOTrainer and
/// KTOTrainer (_prepare_dataset in trl/trainer): prompt and answer are rendered and tokenised
/// together, and what is behind the tokens that all sequences have in common with the prompt alone
/// carries a label.
namespace sftrun::data {

/// Texts get the tokenizer's special tokens, and an EOS unless the answer ends with one.
/// @param answers chosen and rejected, or one that is judged; texts behind the same prompt
/// @param judgement of the one   @param media null: the model reads none
/// @return the sequence of each
std::vector<Sequence> sequences_of_texts(const std::vector<NamedShape>& answers,
                                         Judgement judgement, const TextModel& model,
                                         const SequenceOptions& options, RecordMedia* media);

/// Conversations are rendered by the chat template, the prompt alone with its generation prompt.
/// @param answers chosen and rejected, or one that is judged; conversations in the form of the
/// template (MessageForm)
/// @throws DataError for what the template refuses
std::vector<Sequence> sequences_of_conversations(const std::vector<NamedShape>& answers,
                                                 Judgement judgement, const TextModel& model,
                                                 const SequenceOptions& options,
                                                 RecordMedia* media);

// ---- Of sequence.cpp.
/// The template's variables for a conversation: of the model, the configuration and the record.
templates::RenderOptions render_options(const Conversation& conversation, const TextModel& model,
                                        const SequenceOptions& options);
/// Where each part of a rendered text comes from.
std::vector<Sequence::Part> parts_of(const templates::Rendered& rendered, const Json& messages);

}  // namespace sftrun::data
