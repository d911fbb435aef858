#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Converts text to token ids and back, equal to the `tokenizers` library with the same
/// tokenizer.json.
namespace sftrun::tokenizer {

using Json = nlohmann::ordered_json;

using TokenId = int32_t;

/// A half-open byte range of the encoded text.
struct ByteSpan {
  uint32_t begin = 0, end = 0;
  bool operator==(const ByteSpan&) const = default;
};

struct Encoding {
  std::vector<TokenId> ids;
  /// Bytes of the input that each token covers; empty for added BOS/EOS. A token of a part of a
  /// character covers only those bytes. If a normalizer rewrote characters, their tokens cover all
  /// bytes of the original characters.
  std::vector<ByteSpan> spans;
};

/// The vocabulary in the metadata of a GGUF file (tokenizer.ggml.*).
struct GgufVocab {
  std::string model;  ///< tokenizer.ggml.model: "gpt2", "llama", "gemma4", "t5"
  std::string pre;    ///< tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", …
  std::vector<std::string> tokens, merges;
  std::vector<float> scores;
  std::vector<int32_t>
      token_types;  ///< llama.cpp's: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
  std::optional<TokenId> bos, eos, unk, pad;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = true;          ///< SentencePiece: add a space before every text
  std::string precompiled_charsmap;      ///< t5: SentencePiece's normalizer; empty: none
  bool remove_extra_whitespaces = true;  ///< of t5
};

/// A class of transformers that splits texts by rules of its own. transformers 5 uses only the
/// vocabulary of a tokenizer.json for it; sftrun uses the file, as transformers 4 does, because the
/// model was trained with it.
struct ClassDifference {
  std::string class_name;  ///< "GPT2Tokenizer"
  std::string parts;   ///< of tokenizer.json: "pre_tokenizer", "normalizer and the pre_tokenizer"
  std::string remedy;  ///< makes transformers 5 use the file
};

/// Whether the directory has files that `Tokenizer::from_directory` reads.
bool has_tokenizer_files(const std::filesystem::path& directory);
/// The special tokens in a directory's files ("bos_token", …), as in transformers:
/// special_tokens_map.json takes precedence over tokenizer_config.json, but is ignored if the
/// latter has `added_tokens_decoder`.
/// @throws DataError for files that are not JSON objects
std::map<std::string, std::string> special_token_texts(const std::filesystem::path& directory);
/// chat_template.jinja, else the chat_template of tokenizer_config.json, else that of
/// chat_template.json (which processors of older transformers wrote): a string, or the "default" of a
/// list.   @throws DataError for files that cannot be read
std::optional<std::string> chat_template_in(const std::filesystem::path& directory);

/// Immutable after construction; all const methods are safe to call from several threads.
class Tokenizer {
 public:
  /// @param directory with a tokenizer.json, or with other tokenizer files (docs/tokenizers.md).
  /// Tokens that further files name are added.
  /// @throws DataError
  static Tokenizer from_directory(const std::filesystem::path& directory);
  static Tokenizer from_json(std::string_view tokenizer_json, const std::string& where);
  static Tokenizer from_gguf(const GgufVocab& vocab, const std::string& where);

  /// `add_special_tokens`: run the post-processor (BOS/EOS), as the model's tokenizer does.
  /// Special tokens in the text are recognised, as in the library.
  /// @throws DataError for text that is not valid UTF-8
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const;
  Encoding encode_with_spans(std::string_view text, bool add_special_tokens) const;
  /// What `add_special_tokens` adds behind a text.
  std::span<const TokenId> tokens_behind_texts() const;
  /// Invalid UTF-8 sequences become U+FFFD, as in the library.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  /// The raw bytes of one token (for streaming output); "" for special tokens when skipped, and for
  /// unknown ids.
  std::string token_bytes(TokenId id, bool skip_special_tokens = true) const;

  /// Null: transformers 5 splits texts as the file says.
  const ClassDifference* class_difference() const;
  /// Whether transformers 5 gives other tokens for this text.
  bool differs_in_class(std::string_view text) const;

  int64_t vocab_size() const;  ///< one more than the largest id
  std::optional<TokenId> token_to_id(std::string_view token) const;
  std::string id_to_token(TokenId id) const;
  bool is_special(TokenId id) const;
  bool is_added(TokenId id) const;  ///< matched in the text before the model runs
  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  /// A tokenizer.json with the same behaviour, for merged models and adapters.
  std::string to_json() const;

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  struct Impl;  ///< internal

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct GgufVocabOptions {
  int64_t vocab_size = 0;     ///< of the model's embedding; ids without a token get placeholders
  bool keeps_merges = false;  ///< SentencePiece: write merges ("gemma4") instead of scores
  std::string bos_token, eos_token, unk_token, pad_token;  ///< texts; empty: the tokenizer's own
};

/// The inverse of `from_gguf`: byte-level BPE with the name of its pre-tokenizer ("gpt2"), or
/// SentencePiece's BPE with scores in the order of the merges ("llama"). The result is read again
/// and must split texts in many scripts, and texts of the vocabulary's tokens, like `tokenizer`.
/// @throws DataError if it does not, for other kinds of tokenizers, and if llama.cpp has no name
/// for the pre-tokenizer
GgufVocab gguf_vocab_of(const Tokenizer& tokenizer, const GgufVocabOptions& options,
                        const std::string& where);

}  // namespace sftrun::tokenizer
