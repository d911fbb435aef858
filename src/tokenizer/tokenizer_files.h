#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sentencepiece_model.h"
#include "tokenizer_source.h"

/// Reads tokenizers from the files of a model's directory, with or without a tokenizer.json. Other
/// files give the same result as transformers' converters.
namespace sftrun::tokenizer {

/// tokenizer_config.json, special_tokens_map.json and added_tokens.json, if they exist, as in
/// transformers 5: if tokenizer_config.json has `added_tokens_decoder`, the other two are ignored,
/// else special_tokens_map.json takes precedence.
struct TokenizerConfig {
  Json config = Json::object();          ///< tokenizer_config.json, with these changes
  Json own_special = Json::object();     ///< special tokens with names that only this model has
  Json extra_special = Json::array();    ///< special tokens without a name
  Json added_tokens = Json::object();    ///< added_tokens.json
  std::vector<std::string> old_special;  ///< tokens of added_tokens.json that are special
  std::string where;                     ///< of tokenizer_config.json

  /// @throws DataError for files that are not JSON objects
  static TokenizerConfig read(const std::filesystem::path& directory);
  /// The text of a special token ("bos_token"); nothing when it is missing or null.
  std::optional<std::string> token(const char* key) const;
  std::optional<bool> flag(const char* key) const;
  std::string tokenizer_class() const;  ///< without "Fast"; "": none
};

/// The special tokens that every tokenizer of transformers has names for.
inline constexpr std::array kSpecialTokenNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

/// "<s>" or {"content": "<s>", …}
std::optional<std::string> token_text(const Json& value);

/// @throws DataError with the supported file names if there is none
TokenizerSource read_tokenizer_directory(const std::filesystem::path& directory);

/// `add_prefix_space` and `legacy` of the configuration control where spaces are added.
TokenizerSource source_from_sentencepiece(const SentencePieceModel& model,
                                          const TokenizerConfig& config);
/// Splits like the vocabulary's family if it is known (Llama 3 and 4, Qwen), else like Llama 3,
/// with a warning.   @param name the file's: qwen.tiktoken is always treated as Qwen's
TokenizerSource source_from_tiktoken(std::string_view text, const std::string& name,
                                     const TokenizerConfig& config, const std::string& where);
/// Mistral's tekken.json.
TokenizerSource source_from_tekken(std::string_view text, const std::string& where);
/// vocab.json and merges.txt of tokenizer classes like GPT-2's and Qwen's.
TokenizerSource source_from_vocab_files(std::string_view vocab, std::string_view merges,
                                        const TokenizerConfig& config, const std::string& where);

bool looks_like_tiktoken(std::string_view text);

/// Adds the tokens of the configuration after those of `source`, like transformers: first those of
/// `added_tokens_decoder` (or added_tokens.json) in order of their ids, then special tokens with a
/// name, then the others. Their ids are ignored.
/// @param has_tokenizer_json `source` was read from a tokenizer.json: its added tokens count as
/// known
/// @throws DataError for entries that are not tokens
void add_configured_tokens(const TokenizerConfig& config, TokenizerSource& source,
                           bool has_tokenizer_json);

}  // namespace sftrun::tokenizer
