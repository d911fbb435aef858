#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "sentencepiece_model.h"
#include "tokenizer_source.h"

/// Tokenizers from what stands in a model's directory, with or without a tokenizer.json. What comes
/// of other files equals what the converters of transformers make of them.
namespace sftrun::text {

/// tokenizer_config.json, special_tokens_map.json and added_tokens.json, as far as they are there.
struct TokenizerConfig {
  Json config, special_tokens_map, added_tokens;
  std::string where;  ///< of tokenizer_config.json

  /// @throws DataError for files that are no JSON objects
  static TokenizerConfig read(const std::filesystem::path& directory);
  /// The text of a special token ("bos_token"); nothing when it is missing or null.
  std::optional<std::string> token(const char* key) const;
  std::optional<bool> flag(const char* key) const;
  std::string tokenizer_class() const;  ///< without "Fast"; "" where none is named
};

/// @throws DataError, naming the files that are looked for where there is none
TokenizerSource read_tokenizer_directory(const std::filesystem::path& directory);

/// `add_prefix_space` and `legacy` of the configuration say where a space goes before texts.
TokenizerSource source_from_sentencepiece(const SentencePieceModel& model,
                                          const TokenizerConfig& config);
/// @param name the file's: qwen.tiktoken has Qwen's pattern, others Llama 3's
TokenizerSource source_from_tiktoken(std::string_view text, const std::string& name,
                                     const TokenizerConfig& config, const std::string& where);
/// Mistral's tekken.json.
TokenizerSource source_from_tekken(std::string_view text, const std::string& where);
/// vocab.json and merges.txt of GPT-2's and Qwen's kinds.
TokenizerSource source_from_vocab_files(std::string_view vocab, std::string_view merges,
                                        const TokenizerConfig& config, const std::string& where);

bool looks_like_tiktoken(std::string_view text);

/// Adds the tokens that the configuration names, as transformers does when it loads.
void add_configured_tokens(const TokenizerConfig& config, TokenizerSource& source);

}  // namespace sftrun::text
