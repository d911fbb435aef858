#pragma once

#include <vector>

#include "record.h"
#include "record_media.h"
#include "sftrun/data/sequence.h"
#include "sftrun/templates/chat_template.h"

/// The two sequences of a preference record, with the tokens and labels of TRL's DPOTrainer
/// (trl/trainer/dpo_trainer.py, _prepare_dataset): prompt and answer are rendered and tokenised
/// together, and what is behind the tokens that both sequences have in common with the prompt alone
/// carries a label.
namespace sftrun::data {

/// Texts get the tokenizer's special tokens, and an EOS unless the answer ends with one.
/// @param pair chosen and rejected, texts   @param images null: the model reads none
/// @return the sequence of each
std::vector<Sequence> preference_pair_of_texts(const std::vector<NamedShape>& pair,
                                               const TextModel& model,
                                               const SequenceOptions& options, RecordMedia* media);

/// Conversations are rendered by the chat template, the prompt alone with its generation prompt.
/// @param pair chosen and rejected, conversations in the form of the template (MessageForm)
/// @throws DataError for what the template refuses
std::vector<Sequence> preference_pair_of_conversations(const std::vector<NamedShape>& pair,
                                                       const TextModel& model,
                                                       const SequenceOptions& options,
                                                       RecordMedia* media);

// ---- Of sequence.cpp.
/// The template's variables for a conversation: of the model, the configuration and the record.
templates::RenderOptions render_options(const Conversation& conversation, const TextModel& model,
                                        const SequenceOptions& options);
/// Where each part of a rendered text comes from.
std::vector<Sequence::Part> parts_of(const templates::Rendered& rendered, const Json& messages);

}  // namespace sftrun::data
