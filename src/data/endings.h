#pragma once

#include <cstdint>
#include <string>

#include "sftrun/data/example.h"
#include "sftrun/data/text_model.h"

/// Whether a model trained on an example learns where to stop: the failure that nobody sees before
/// the trained model talks on and on.
namespace sftrun::data {

enum class Ending : uint8_t {
  kStop,     ///< a token that generation stops at carries a label
  kSpecial,  ///< a run of labels ends with another special token
  kNone,
};

Ending ending_of(const Example& example, const TextModel& model);

/// The text of the last run of labels.
std::string last_answer(const Example& example, const text::Tokenizer& tokenizer);
/// The last token of it, as the vocabulary has it.
std::string last_token(const Example& example, const text::Tokenizer& tokenizer);
/// `<|im_end|>`, `<|endoftext|>`; "none" where the model names no stop token.
std::string stop_tokens_of(const TextModel& model);

}  // namespace sftrun::data
