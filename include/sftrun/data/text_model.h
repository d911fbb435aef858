#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

namespace sftrun::data {

/// The text side of a model, as the data pipeline needs it.
struct TextModel {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none
  text::RenderOptions render_defaults;                      ///< bos/eos texts
  std::vector<text::TokenId> stop_ids;                      ///< where generation stops
  std::optional<int64_t> num_embeddings;  ///< rows of the model's embeddings, where they are known
};

/// Files beside a tokenizer.json can add tokens that the model was never enlarged for.
bool has_tokens_beyond_embeddings(const TextModel& model);
/// @param where of the text, for the error
/// @throws DataError, naming the token, if one of the ids has no row in the model's embeddings
void require_embedded(std::span<const text::TokenId> ids, const TextModel& model,
                      const std::string& where);

/// @param own_template the checkpoint's chat template, if it has one
/// @param configured model.chat_template: a file, or the template itself; empty: the checkpoint's
/// own
/// @param eos_token_ids the model's; the tokenizer's EOS is added
/// @throws ConfigError if the configured file does not exist   @throws DataError if the template
/// does not parse
TextModel make_text_model(text::Tokenizer tokenizer, const std::optional<std::string>& own_template,
                          text::RenderOptions render_defaults, const std::string& configured,
                          const std::vector<int64_t>& eos_token_ids);

}  // namespace sftrun::data
