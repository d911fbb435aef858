#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/data/example.h"
#include "sftrun/data/text_model.h"

/// Whether an example trains the model to stop. Without it, the mistake is visible only when the
/// trained model does not stop.
namespace sftrun::data {

enum class Ending : uint8_t {
  kStop,     ///< a stop token of the model has a label
  kSpecial,  ///< a run of labels ends with another special token
  kNone,
};

Ending ending_of(const Example& example, const TextModel& model);

/// The text of the last run of labels.
std::string last_answer(const Example& example, const tokenizer::Tokenizer& tokenizer);
/// The special token that ends answers.
struct EndToken {
  tokenizer::TokenId id;
  bool ends_last_answer;  ///< false: only earlier ones of the conversation
};
/// Of an example whose ending is kSpecial; nullopt for kNone.
std::optional<EndToken> end_token_of(const Example& example, const tokenizer::Tokenizer& tokenizer);
/// `<|im_end|>`, `<|endoftext|>`; "none" if the model has no stop token.
std::string stop_tokens_of(const TextModel& model);

}  // namespace sftrun::data
