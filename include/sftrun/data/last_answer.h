#pragma once

#include <cstdint>
#include <optional>

#include "sftrun/data/example_store.h"
#include "sftrun/data/prompt.h"

/// Examples as prompts with an answer.
namespace sftrun::data {

/// Tokens [begin, end) of an example.
struct AnswerSpan {
  int64_t begin = 0, end = 0;
};

/// The last run of tokens with a label. A conversation's prompt ends where the template's generation
/// prompt does, because an answer's labels begin there.
/// @return nullopt for an example without a prompt: a text that has a label on every token but the
/// first; or without labels
std::optional<AnswerSpan> last_answer(const ExampleView& example);

/// The first `end` tokens of an example, and the media that lie in them.   @throws DataError as operator[]
PromptTokens prompt_until(const ExampleStore& examples, int64_t index, int64_t end);

}  // namespace sftrun::data
