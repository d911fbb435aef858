#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/templates/chat_template.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::data {

struct FeatureInput;
struct ImageInput;

/// Tokenizer, chat template and special tokens of a model, for the data pipeline.
struct TextModel {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<const templates::ChatTemplate> chat_template;  ///< null: the model has none
  templates::RenderOptions render_defaults;                      ///< bos/eos texts
  std::vector<tokenizer::TokenId> stop_ids;                      ///< tokens that end generation
  std::optional<int64_t> num_embeddings;         ///< rows of the model's embedding, if known
  std::shared_ptr<const ImageInput> images;      ///< null: it reads no images (image_input.h)
  std::shared_ptr<const FeatureInput> features;  ///< null: it has no projectors (features.h)
};

/// Tokens of a text that goes on, as a prompt does: what the tokenizer puts before texts (BOS), and
/// not what it puts behind them (EOS, [SEP]).
tokenizer::Encoding encode_open_text(const tokenizer::Tokenizer& tokenizer, std::string_view text);
/// Tokens of a complete text: what the tokenizer puts before and behind it, and an EOS at the end,
/// once.
tokenizer::Encoding encode_whole_text(const tokenizer::Tokenizer& tokenizer, std::string_view text);
/// Training and generation would work with two BOS tokens, but the results would be worse.
/// @param where location of the text, for the error
/// @throws DataError if the tokens begin with BOS twice
void require_one_bos(std::span<const tokenizer::TokenId> ids,
                     std::span<const tokenizer::ByteSpan> spans,
                     const tokenizer::Tokenizer& tokenizer, const std::string& where);

/// Whether the tokenizer has tokens without a row in the embedding, for example tokens added by
/// other files beside tokenizer.json.
bool has_tokens_beyond_embeddings(const TextModel& model);
/// @param where location of the text, for the error
/// @throws DataError naming the token if an id has no row in the model's embedding
void require_embedded(std::span<const tokenizer::TokenId> ids, const TextModel& model,
                      const std::string& where);

/// @param own_template the checkpoint's chat template, if it has one
/// @param configured model.chat_template: a file, or the template itself; empty: the checkpoint's
/// @param eos_token_ids of the model; the tokenizer's EOS is added
/// @throws ConfigError if the configured file does not exist   @throws DataError if the template
/// cannot be parsed
TextModel make_text_model(tokenizer::Tokenizer tokenizer,
                          const std::optional<std::string>& own_template,
                          templates::RenderOptions render_defaults, const std::string& configured,
                          const std::vector<int64_t>& eos_token_ids);

/// Reads the template that `model.chat_template` names, if it is set.
/// @throws Error at its place in the configuration, if that is absent or cannot be parsed
void require_chat_template(const config::LoadedConfig& loaded);

/// Which of a run's `data.chat_template_kwargs` change no text: a warning for each.
std::vector<std::string> idle_template_variables(const TextModel& model,
                                                 const templates::Json& variables);
void warn_of_idle_template_variables(const TextModel& model, const templates::Json& variables);
/// The same of a command's --chat-template-kwargs.
/// @param models not empty; a variable that one of them reads has an effect
/// @param renders whether the command has conversations to render
std::vector<std::string> idle_template_flag(const std::vector<const TextModel*>& models,
                                            const templates::Json& variables, bool renders);

}  // namespace sftrun::data
