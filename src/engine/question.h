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

/// @return nullopt for an example without a prompt (`data::last_answer`)
std::optional<Question> question_of(const data::ExampleStore& examples, int64_t index,
                                    const tokenizer::Tokenizer& tokenizer);

}  // namespace sftrun::engine
