#include "tokenizer_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sftrun/core/error.h"
#include "unicode.h"

namespace sftrun::text {

WorkspacePool::Loan::Loan(WorkspacePool& pool) : pool_(pool) {
  {
    const std::lock_guard lock(pool_.mutex_);
    if (!pool_.idle_.empty()) {
      workspace_ = std::move(pool_.idle_.back());
      pool_.idle_.pop_back();
    }
  }
  if (!workspace_) workspace_ = std::make_unique<BpeWorkspace>();
}

WorkspacePool::Loan::~Loan() {
  const std::lock_guard lock(pool_.mutex_);
  pool_.idle_.push_back(std::move(workspace_));
}

namespace {

/// Ids as the library gives them: a token of the model keeps the model's id, others are numbered on
/// in the order of the file, whatever id it states.
std::vector<AddedToken> number_added_tokens(const std::vector<AddedToken>& stated, const Bpe& bpe) {
  std::vector<AddedToken> out;
  std::unordered_map<std::string, size_t> position_of;
  auto next = static_cast<TokenId>(bpe.vocab().count());
  for (const AddedToken& token : stated) {
    if (token.content.empty()) continue;
    const auto [found, is_new] = position_of.try_emplace(token.content, out.size());
    if (is_new) {
      const auto in_model = bpe.vocab().find(token.content);
      out.push_back(token);
      out.back().id = in_model ? *in_model : next++;
    } else {  // stated again: the last statement counts
      const TokenId id = out[found->second].id;
      out[found->second] = token;
      out[found->second].id = id;
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return out;
}

void check_added_tokens(const std::vector<AddedToken>& tokens, const std::string& where) {
  for (const AddedToken& token : tokens) {
    if (find_invalid_utf8(token.content) != std::string_view::npos) {
      throw DataError(fmt::format("the added token {} is not valid UTF-8", token.id), where);
    }
  }
}

std::optional<Metaspace> read_metaspace(const Json& section, const std::string& where) {
  if (!section.is_object() || !section.contains("type") || section.at("type") != "Metaspace")
    return std::nullopt;
  return Metaspace(section, where);
}

}  // namespace

Tokenizer::Impl::Impl(TokenizerSource source, const std::string& where)
    : normalizer_section(std::move(source.normalizer)),
      pre_tokenizer_section(std::move(source.pre_tokenizer)),
      post_processor_section(std::move(source.post_processor)),
      decoder_section(std::move(source.decoder)),
      bpe(source.bpe, where),
      normalizer(normalizer_section, where),
      metaspace(read_metaspace(pre_tokenizer_section, where)),
      pre_tokenizer(pre_tokenizer_section, where),
      post_processor(post_processor_section, where),
      decoder(decoder_section, where),
      bos(source.bos),
      eos(source.eos) {
  check_added_tokens(source.added, where);
  added = AddedTokens(number_added_tokens(source.added, bpe), normalizer);
  decoded = decode_all();
}

StringTable Tokenizer::Impl::decode_all() const {
  size_t size = bpe.vocab().size();
  for (const AddedToken& token : added.all())
    size = std::max(size, static_cast<size_t>(token.id) + 1);
  std::vector<std::optional<std::string>> out(size);
  const auto decode = [this](std::string_view text) { return decoder.bytes_of(text); };
  for (size_t i = 0; i < bpe.vocab().size(); ++i) {
    if (const auto id = static_cast<TokenId>(i); bpe.vocab().has(id))
      out[i] = decode(bpe.vocab().at(id));
  }
  for (const AddedToken& token : added.all()) {
    out[static_cast<size_t>(token.id)] =
        decode(token.normalized ? normalizer(token.content) : token.content);
  }
  return StringTable(out);
}

std::string_view Tokenizer::Impl::decoded_bytes(TokenId id) const {
  return decoded.has(id) ? decoded.at(id) : std::string_view();
}

/// Collects tokens, and their bytes of the original text when they are wanted.
struct Tokenizer::Impl::Output final : WordSink {
  Output(const Bpe& bpe, BpeWorkspace& workspace, std::vector<TokenId>& ids,
         std::vector<ByteSpan>* spans)
      : bpe(bpe), workspace(workspace), ids(ids), spans(spans) {}

  void take(const Word& word) override {
    const size_t first = spans ? spans->size() : 0;
    bpe.encode(word.bytes, workspace, ids, spans);
    if (!spans) return;
    const auto prefix = static_cast<uint32_t>(word.has_prefix);
    for (size_t i = first; i < spans->size(); ++i) {
      ByteSpan& span = (*spans)[i];
      span = original({word.begin + std::max(span.begin, prefix) - prefix,
                       word.begin + std::max(span.end, prefix) - prefix});
    }
  }
  void take_token(TokenId id, ByteSpan span) {
    ids.push_back(id);
    if (spans) spans->push_back(original(span));
  }
  /// Bytes of the current piece as bytes of the original text.
  ByteSpan original(ByteSpan span) const {
    span = {span.begin + offset, span.end + offset};
    if (!sources) return {span.begin + source_offset, span.end + source_offset};
    if (span.begin == span.end) {
      const uint32_t at =
          span.begin < sources->size() ? (*sources)[span.begin].begin : sources->back().end;
      return {at + source_offset, at + source_offset};
    }
    return {(*sources)[span.begin].begin + source_offset,
            (*sources)[span.end - 1].end + source_offset};
  }

  const Bpe& bpe;
  BpeWorkspace& workspace;
  std::vector<TokenId>& ids;
  std::vector<ByteSpan>* spans;
  uint32_t offset = 0;                             ///< of the piece in the normalised stretch
  uint32_t source_offset = 0;                      ///< of the stretch in the original text
  const std::vector<ByteSpan>* sources = nullptr;  ///< where normalising changed the stretch
};

void Tokenizer::Impl::encode(std::string_view text, bool add_special_tokens,
                             std::vector<TokenId>& ids, std::vector<ByteSpan>* spans) const {
  if (text.size() > UINT32_MAX / 2)
    throw DataError("a text of more than 2 GiB cannot be tokenized in one piece");
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    throw DataError(fmt::format("the text is not valid UTF-8 (byte {})", at), {},
                    "convert it to UTF-8");
  }
  const auto add = [&](const std::vector<TokenId>& tokens, uint32_t at) {
    if (!add_special_tokens) return;
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    if (spans) spans->insert(spans->end(), tokens.size(), ByteSpan{at, at});
  };
  const auto end = static_cast<uint32_t>(text.size());
  WorkspacePool::Loan workspace(workspaces_);
  Output out(bpe, *workspace, ids, spans);
  add(post_processor.before, 0);
  if (!added.has_any(false)) {
    encode_plain(text, 0, out);
  } else {
    for (const AddedTokens::Stretch& stretch : added.split(text, false)) {
      if (stretch.id) {
        out.offset = out.source_offset = 0;
        out.sources = nullptr;
        out.take_token(*stretch.id, {stretch.begin, stretch.end});
      } else {
        encode_plain(text.substr(stretch.begin, stretch.end - stretch.begin), stretch.begin, out);
      }
    }
  }
  add(post_processor.after, end);
}

/// A stretch without tokens that are sought in the text as it is.
void Tokenizer::Impl::encode_plain(std::string_view text, uint32_t begin, Output& out) const {
  if (text.empty()) return;
  if (normalizer.surely_keeps(text)) return encode_normalized(text, begin, nullptr, out);
  const NormalizedText normalized = normalizer.run(text, out.spans != nullptr);
  encode_normalized(normalized.text, begin, &normalized.sources, out);
}

void Tokenizer::Impl::encode_normalized(std::string_view text, uint32_t begin,
                                        const std::vector<ByteSpan>* sources, Output& out) const {
  out.source_offset = begin;
  out.sources = sources;
  out.offset = 0;
  if (!added.has_any(true)) return encode_piece(text, out);
  for (const AddedTokens::Stretch& stretch : added.split(text, true)) {
    out.offset = stretch.begin;
    if (stretch.id) {
      out.take_token(*stretch.id, {0, stretch.end - stretch.begin});
    } else {
      encode_piece(text.substr(stretch.begin, stretch.end - stretch.begin), out);
    }
  }
}

/// A piece of normalised text without tokens.
void Tokenizer::Impl::encode_piece(std::string_view piece, Output& out) const {
  if (!metaspace || piece.empty()) return pre_tokenizer.run(piece, out);
  const bool is_first = out.offset == 0 && out.source_offset == 0;
  NormalizedText spaced = metaspace->run(piece, is_first, out.spans != nullptr);
  const std::vector<ByteSpan>* const sources = out.sources;
  const uint32_t offset = out.offset;
  for (ByteSpan& span : spaced.sources) span = {span.begin + offset, span.end + offset};
  if (sources) spaced.sources = through(*sources, spaced.sources);
  out.sources = &spaced.sources;
  out.offset = 0;
  pre_tokenizer.run(spaced.text, out);
  out.sources = sources;
  out.offset = offset;
}

}  // namespace sftrun::text
