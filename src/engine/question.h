#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/data/example_store.h"
#include "sftrun/data/prompt.h"
#include "sftrun/tokenizer/tokenizer.h"

/// Examples as questions, for evaluation by generated answers.
namespace sftrun::engine {

/// The last answer of an example, and what comes before it.
struct Question {
  data::PromptTokens prompt;  ///< before the last run of tokens with a label; not empty
  std::string reference;      ///< the text of that run, without special tokens
};

/// A conversation's prompt ends where the template's generation prompt does, because an answer's
/// labels begin there.
/// @return nullopt for an example without a prompt: a text that has a label on every token but the
/// first
std::optional<Question> question_of(const data::ExampleStore& examples, int64_t index,
                                    const tokenizer::Tokenizer& tokenizer);

}  // namespace sftrun::engine
