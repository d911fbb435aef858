#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "decoder.h"
#include "model.h"
#include "normalizer.h"
#include "post_processor.h"
#include "pre_tokenizer.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "tokenizer_source.h"
#include "word_cache.h"

namespace sftrun::tokenizer {

/// Buffers for encoding and a cache of words, for one thread at a time.
struct Workspace {
  WordCache cache;
  Scratch scratch;
  std::vector<Symbol> symbols;
};

/// Workspaces that calls borrow: each is used by one thread at a time, and its cache of words is
/// reused by later calls.
class WorkspacePool {
 public:
  class Loan {
   public:
    explicit Loan(WorkspacePool& pool);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Workspace& operator*() { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<Workspace> workspace_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

/// How a text becomes words.
struct WordRules {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
};

struct Tokenizer::Impl {
  /// @throws DataError
  Impl(TokenizerSource source, const std::string& where);

  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids,
              std::vector<ByteSpan>* spans) const;
  bool differs_in_class(std::string_view text) const;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  /// The text of a token in the files; empty for unknown ids.
  std::string_view text_of(TokenId id) const {
    if (const AddedToken* token = added.find(id)) return token->content;
    return model->vocab().has(id) ? model->vocab().at(id) : std::string_view();
  }
  /// The decoder's text of one token; empty for unknown ids.
  std::string_view decoded_bytes(TokenId id) const;

  Json normalizer_section, pre_tokenizer_section, post_processor_section, decoder_section,
      truncation_section, padding_section;  ///< as read
  WordRules rules;
  std::optional<ClassDifference> class_difference;
  std::optional<WordRules> class_rules;  ///< of that class; nullopt: not for this model's words
  std::unique_ptr<Model> model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;
  StringTable decoded;  ///< by id
  std::optional<TokenId> bos, eos;

 private:
  struct Output;
  void encode_text(const WordRules& by, std::string_view text, Output& out) const;
  void encode_plain(const WordRules& by, const Word& stretch, Output& out) const;
  void encode_normalized(const WordRules& by, const Word& stretch, Output& out) const;
  void read_class(const OtherClass& other, const std::string& where);
  /// The decoder's input for a token of the model or the added vocabulary.
  std::string decoder_input(TokenId id) const;
  StringTable decode_all() const;
  mutable WorkspacePool workspaces_;
};

/// The tokenizer.json of a tokenizer (tokenizer_write.cpp).
std::string write_tokenizer_json(const Tokenizer::Impl& impl);

}  // namespace sftrun::tokenizer
