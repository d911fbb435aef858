#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"

namespace sftrun::data {

/// Tokenizer, chat template and special tokens of a model, for the data pipeline.
struct TextModel {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  ///< null: the model has none
  text::RenderOptions render_defaults;                      ///< bos/eos texts
  std::vector<text::TokenId> stop_ids;                      ///< tokens that end generation
  std::optional<int64_t> num_embeddings;  ///< rows of the model's embedding, if known
};

/// Whether the tokenizer has tokens without a row in the embedding, for example tokens added by
/// other files beside tokenizer.json.
bool has_tokens_beyond_embeddings(const TextModel& model);
/// @param where location of the text, for the error
/// @throws DataError naming the token if an id has no row in the model's embedding
void require_embedded(std::span<const text::TokenId> ids, const TextModel& model,
                      const std::string& where);

/// @param own_template the checkpoint's chat template, if it has one
/// @param configured model.chat_template: a file, or the template itself; empty: the checkpoint's
/// @param eos_token_ids of the model; the tokenizer's EOS is added
/// @throws ConfigError if the configured file does not exist   @throws DataError if the template
/// cannot be parsed
TextModel make_text_model(text::Tokenizer tokenizer, const std::optional<std::string>& own_template,
                          text::RenderOptions render_defaults, const std::string& configured,
                          const std::vector<int64_t>& eos_token_ids);

}  // namespace sftrun::data
