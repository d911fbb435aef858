#pragma once

#include <string>

#include "record.h"

/// Pairs as other tools write them.
namespace sftrun::data {

/// A pair with the columns "prompt", "chosen" and "rejected" in place of those of another layout:
/// - LLaMA-Factory's and Axolotl's: "conversations" or "messages" is the prompt, and each answer is
///   one turn. "system" is a turn before them.
/// - Alpaca's: "instruction", "input" and "system" are the prompt of two texts. As those of one
///   answer they are messages if the model has a chat template, else a text.
/// - ShareGPT's turns ("from", "value") become messages in each of these columns.
/// A "prompt" of the record itself is read before all other columns.
/// @param room receives a record that is made
/// @return `record` itself, if it is of no such layout
/// @throws DataError for turns without text, and for unknown roles
const Json& with_pair_columns(const Json& record, const TemplateTraits& chat_template,
                              const std::string& where, Json& room);

/// Whether the chat template renders the pair.
bool is_pair_rendered(const Json& record, bool has_chat_template);

}  // namespace sftrun::data
