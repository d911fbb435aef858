#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "bpe.h"
#include "decoder.h"
#include "normalizer.h"
#include "post_processor.h"
#include "pre_tokenizer.h"
#include "sftrun/text/tokenizer.h"
#include "tokenizer_source.h"

namespace sftrun::text {

/// Workspaces that calls borrow: each thread works alone on one, and what it learnt of words serves
/// later calls.
class WorkspacePool {
 public:
  class Loan {
   public:
    explicit Loan(WorkspacePool& pool);
    ~Loan();
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    BpeWorkspace& operator*() { return *workspace_; }

   private:
    WorkspacePool& pool_;
    std::unique_ptr<BpeWorkspace> workspace_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<BpeWorkspace>> idle_;
};

struct Tokenizer::Impl {
  /// @throws DataError
  Impl(TokenizerSource source, const std::string& where);

  void encode(std::string_view text, bool add_special_tokens, std::vector<TokenId>& ids,
              std::vector<ByteSpan>* spans) const;
  /// A token as the files write it; empty for unknown ids.
  std::string_view text_of(TokenId id) const {
    if (const AddedToken* token = added.find(id)) return token->content;
    return bpe.vocab().has(id) ? bpe.vocab().at(id) : std::string_view();
  }
  /// What the decoder makes of one token; empty for unknown ids.
  std::string_view decoded_bytes(TokenId id) const;

  Json normalizer_section, pre_tokenizer_section, post_processor_section,
      decoder_section;  ///< as they came
  Bpe bpe;
  Normalizer normalizer;
  std::optional<Metaspace> metaspace;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  StringTable decoded;  ///< by id
  std::optional<TokenId> bos, eos;

 private:
  struct Output;
  void encode_plain(std::string_view text, uint32_t begin, Output& out) const;
  void encode_normalized(std::string_view text, uint32_t begin,
                         const std::vector<ByteSpan>* sources, Output& out) const;
  void encode_piece(std::string_view piece, Output& out) const;
  StringTable decode_all() const;
  mutable WorkspacePool workspaces_;
};

/// The tokenizer.json of a tokenizer (tokenizer_write.cpp).
std::string write_tokenizer_json(const Tokenizer::Impl& impl);

}  // namespace sftrun::text
