#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sentencepiece_model.h"
#include "tokenizer_source.h"

/// Tokenizers from what stands in a model's directory, with or without a tokenizer.json. What comes
/// of other files equals what the converters of transformers make of them.
namespace sftrun::text {

/// tokenizer_config.json, special_tokens_map.json and added_tokens.json, as far as they are there,
/// as transformers 5 takes them: where tokenizer_config.json has `added_tokens_decoder` the other
/// two say nothing, else special_tokens_map.json overrules it.
struct TokenizerConfig {
  Json config = Json::object();          ///< tokenizer_config.json, overruled
  Json own_special = Json::object();     ///< special tokens with names of the model's own
  Json extra_special = Json::array();    ///< special tokens without a name
  Json added_tokens = Json::object();    ///< added_tokens.json
  std::vector<std::string> old_special;  ///< tokens of added_tokens.json that are special
  std::string where;                     ///< of tokenizer_config.json

  /// @throws DataError for files that are no JSON objects
  static TokenizerConfig read(const std::filesystem::path& directory);
  /// The text of a special token ("bos_token"); nothing when it is missing or null.
  std::optional<std::string> token(const char* key) const;
  std::optional<bool> flag(const char* key) const;
  std::string tokenizer_class() const;  ///< without "Fast"; "" where none is named
};

/// The special tokens that every tokenizer of transformers has names for.
inline constexpr std::array kSpecialTokenNames = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

/// "<s>" or {"content": "<s>", …}
std::optional<std::string> token_text(const Json& value);

/// @throws DataError, naming the files that are looked for where there is none
TokenizerSource read_tokenizer_directory(const std::filesystem::path& directory);

/// `add_prefix_space` and `legacy` of the configuration say where a space goes before texts.
TokenizerSource source_from_sentencepiece(const SentencePieceModel& model,
                                          const TokenizerConfig& config);
/// Splits as the vocabulary's family does where that is known (Llama 3 and 4, Qwen), else as Llama
/// 3, with a warning.   @param name the file's: qwen.tiktoken is Qwen's whatever it holds
TokenizerSource source_from_tiktoken(std::string_view text, const std::string& name,
                                     const TokenizerConfig& config, const std::string& where);
/// Mistral's tekken.json.
TokenizerSource source_from_tekken(std::string_view text, const std::string& where);
/// vocab.json and merges.txt of GPT-2's and Qwen's kinds.
TokenizerSource source_from_vocab_files(std::string_view vocab, std::string_view merges,
                                        const TokenizerConfig& config, const std::string& where);

bool looks_like_tiktoken(std::string_view text);

/// Adds the tokens that the configuration names behind those that `source` has, as transformers
/// does when it loads: first those of `added_tokens_decoder` (or added_tokens.json) in order of
/// their ids, then special ones that have a name, then the others. What ids they state is not
/// looked at.
/// @param has_tokenizer_json `source` was read from a tokenizer.json: its added tokens count as
/// known
/// @throws DataError for entries that are no tokens
void add_configured_tokens(const TokenizerConfig& config, TokenizerSource& source,
                           bool has_tokenizer_json);

}  // namespace sftrun::text
