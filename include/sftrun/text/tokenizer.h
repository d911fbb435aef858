#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Text to token ids and back, equal to the `tokenizers` library's on the same tokenizer.json.
namespace sftrun::text {

using TokenId = int32_t;

/// A half-open byte range of the encoded text.
struct ByteSpan {
  uint32_t begin = 0, end = 0;
  bool operator==(const ByteSpan&) const = default;
};

struct Encoding {
  std::vector<TokenId> ids;
  /// Bytes of the input each token covers; empty for added BOS/EOS. A token of part of a character
  /// covers those bytes alone; where a normalizer rewrote characters, their tokens cover all of the
  /// bytes they were written from.
  std::vector<ByteSpan> spans;
};

/// What a GGUF file's metadata says of its vocabulary (tokenizer.ggml.*).
struct GgufVocab {
  std::string model;  ///< tokenizer.ggml.model: "gpt2", "llama", "gemma4", "t5"
  std::string pre;    ///< tokenizer.ggml.pre: "smollm", "llama-bpe", "qwen2", …
  std::vector<std::string> tokens, merges;
  std::vector<float> scores;
  std::vector<int32_t>
      token_types;  ///< llama.cpp's: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte
  std::optional<TokenId> bos, eos, unk, pad;
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = true;      ///< of SentencePiece vocabularies: a space before every text
  std::string precompiled_charsmap;  ///< of t5: SentencePiece's normalizer; empty: none
  bool remove_extra_whitespaces = true;  ///< of t5
};

/// The directory holds files that `Tokenizer::from_directory` reads.
bool has_tokenizer_files(const std::filesystem::path& directory);
/// The special tokens that a directory's files name ("bos_token", …), as transformers takes them:
/// special_tokens_map.json overrules tokenizer_config.json where that has no
/// `added_tokens_decoder`, and says nothing where it has.
/// @throws DataError for files that are no JSON objects
std::map<std::string, std::string> special_token_texts(const std::filesystem::path& directory);

/// Immutable after construction; all const methods are safe to call from several threads.
class Tokenizer {
 public:
  /// @param directory holding a tokenizer.json, or files that one is made from
  /// (docs/tokenizers.md); the tokens that other files beside it name are added.
  /// @throws DataError
  static Tokenizer from_directory(const std::filesystem::path& directory);
  static Tokenizer from_json(std::string_view tokenizer_json, const std::string& where);
  static Tokenizer from_gguf(const GgufVocab& vocab, const std::string& where);

  /// `add_special_tokens`: run the post-processor (BOS/EOS), as the model's own tokenizer does.
  /// Special tokens written in the text are recognised, as the library does.
  /// @throws DataError for text that is not valid UTF-8
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const;
  Encoding encode_with_spans(std::string_view text, bool add_special_tokens) const;
  /// Invalid UTF-8 sequences decode to U+FFFD as the library's do.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  /// The raw bytes of one token (for streaming output); "" for special tokens when skipped, and for
  /// unknown ids.
  std::string token_bytes(TokenId id, bool skip_special_tokens = true) const;

  int64_t vocab_size() const;  ///< one more than the largest id
  std::optional<TokenId> token_to_id(std::string_view token) const;
  std::string id_to_token(TokenId id) const;
  bool is_special(TokenId id) const;
  bool is_added(TokenId id) const;  ///< found in the text as it stands, before the model sees it
  std::optional<TokenId> bos_id() const;
  std::optional<TokenId> eos_id() const;
  /// A tokenizer.json with the same behaviour, so that merged models and adapters carry their
  /// tokenizer.
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
  int64_t vocab_size = 0;     ///< of the model's embedding: ids without a token are filled up
  bool keeps_merges = false;  ///< of pieces: as Gemma 4's files have them ("gemma4"), not as scores
  std::string bos_token, eos_token, unk_token, pad_token;  ///< texts; empty: the tokenizer's own
};

/// The inverse of `from_gguf`: byte-level BPE with the name of its pre-tokenizer ("gpt2"),
/// SentencePiece's BPE with scores that merge in the same order ("llama"). Read again, it splits
/// texts of many scripts and of the vocabulary's own tokens as `tokenizer` does, or this throws.
/// @throws DataError for tokenizers of other kinds, and for what llama.cpp has no name for
GgufVocab gguf_vocab_of(const Tokenizer& tokenizer, const GgufVocabOptions& options,
                        const std::string& where);

}  // namespace sftrun::text
