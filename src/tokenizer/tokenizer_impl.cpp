#include "tokenizer_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/utf8.h"
#include "unicode.h"

namespace sftrun::tokenizer {

WorkspacePool::Loan::Loan(WorkspacePool& pool) : pool_(pool) {
  {
    const std::lock_guard lock(pool_.mutex_);
    if (!pool_.idle_.empty()) {
      workspace_ = std::move(pool_.idle_.back());
      pool_.idle_.pop_back();
    }
  }
  if (!workspace_) workspace_ = std::make_unique<Workspace>();
}

WorkspacePool::Loan::~Loan() {
  const std::lock_guard lock(pool_.mutex_);
  pool_.idle_.push_back(std::move(workspace_));
}

namespace {

/// Assigns ids as the library does: a token of the model keeps the model's id; others get the next
/// ids in the order of the file, whose ids are ignored.
std::vector<AddedToken> number_added_tokens(const std::vector<AddedToken>& stated,
                                            const Model& model) {
  std::vector<AddedToken> out;
  std::unordered_map<std::string, size_t> position_of;
  auto next = static_cast<TokenId>(model.num_tokens());
  for (const AddedToken& token : stated) {
    if (token.content.empty()) continue;
    const auto [found, is_new] = position_of.try_emplace(token.content, out.size());
    if (is_new) {
      const auto in_model = model.vocab().find(token.content);
      out.push_back(token);
      out.back().id = in_model ? *in_model : next++;
    } else {  // duplicate: the last entry counts
      const AddedToken before = std::exchange(out[found->second], token);
      out[found->second].id = before.id;
      out[found->second].was_special = before.was_special;
      out[found->second].was_normalized = before.was_normalized;
    }
    AddedToken& kept = out[found->second];
    kept.was_special = kept.was_special || kept.special;
    kept.was_normalized = kept.was_normalized || kept.normalized;
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

/// Makes the model, and sets how it gets words: as bytes if pre-tokenizer and model support it.
std::unique_ptr<Model> make_model(ModelSource source, PreTokenizer& pre_tokenizer,
                                  const std::string& where) {
  if (auto* bpe = std::get_if<BpeSource>(&source)) {
    BpeOptions& options = bpe->options;
    options.bytes = pre_tokenizer.gives_bytes() && !options.byte_fallback &&
                    options.continuing_subword_prefix.empty() && options.end_of_word_suffix.empty();
    if (!options.bytes) pre_tokenizer.make_bytes_visible();
    return std::make_unique<Bpe>(*bpe, where);
  }
  pre_tokenizer.make_bytes_visible();
  if (const auto* unigram = std::get_if<UnigramSource>(&source))
    return std::make_unique<Unigram>(*unigram, where);
  if (const auto* pieces = std::get_if<WordPieceSource>(&source))
    return std::make_unique<WordPiece>(*pieces, where);
  return std::make_unique<WordLevel>(std::get<WordLevelSource>(source), where);
}

}  // namespace

Tokenizer::Impl::Impl(TokenizerSource source, const std::string& where)
    : normalizer_section(std::move(source.normalizer)),
      pre_tokenizer_section(std::move(source.pre_tokenizer)),
      post_processor_section(std::move(source.post_processor)),
      decoder_section(std::move(source.decoder)),
      truncation_section(std::move(source.truncation)),
      padding_section(std::move(source.padding)),
      rules{Normalizer(normalizer_section, where), PreTokenizer(pre_tokenizer_section, where)},
      model(make_model(std::move(source.model), rules.pre_tokenizer, where)),
      post_processor(post_processor_section, where),
      decoder(decoder_section, where),
      bos(source.bos),
      eos(source.eos) {
  check_added_tokens(source.added, where);
  added = AddedTokens(number_added_tokens(source.added, *model), rules.normalizer);
  decoded = decode_all();
  if (source.other_class) read_class(*source.other_class, where);
}

void Tokenizer::Impl::read_class(const OtherClass& other, const std::string& where) {
  class_difference = other.difference;
  class_rules.emplace(
      WordRules{Normalizer(other.normalizer, where), PreTokenizer(other.pre_tokenizer, where)});
  const bool takes_bytes = rules.pre_tokenizer.gives_bytes();
  if (!takes_bytes) class_rules->pre_tokenizer.make_bytes_visible();
  if (class_rules->pre_tokenizer.gives_bytes() != takes_bytes) class_rules.reset();
}

std::string Tokenizer::Impl::decoder_input(TokenId id) const {
  const AddedToken* token = added.find(id);
  if (!token) return std::string(model->vocab().at(id));
  return token->was_normalized ? rules.normalizer(token->content) : token->content;
}

StringTable Tokenizer::Impl::decode_all() const {
  size_t size = model->vocab().size();
  for (const AddedToken& token : added.all())
    size = std::max(size, static_cast<size_t>(token.id) + 1);
  std::vector<std::optional<std::string>> out(size);
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<TokenId>(i);
    if (added.find(id) || model->vocab().has(id)) out[i] = decoder.bytes_of(decoder_input(id));
  }
  return StringTable(out);
}

std::string_view Tokenizer::Impl::decoded_bytes(TokenId id) const {
  return decoded.has(id) ? decoded.at(id) : std::string_view();
}

std::string Tokenizer::Impl::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  // The library skips a token if its text is that of a special token, so not if normalising changes
  // the text.
  const auto is_skipped = [&](TokenId id) {
    const AddedToken* token = skip_special_tokens ? added.find(id) : nullptr;
    return token && token->was_special && decoder_input(id) == token->content;
  };
  std::string bytes;
  std::vector<std::string> tokens;
  for (const TokenId id : ids) {
    if (!decoded.has(id) || is_skipped(id)) continue;
    if (decoder.is_plain()) {
      bytes += decoded.at(id);
    } else {
      tokens.push_back(decoder_input(id));
    }
  }
  return decoder.is_plain() ? utf8_lossy(bytes) : decoder.join(std::move(tokens));
}

/// Collects tokens and, on request, their bytes in the original text.
struct Tokenizer::Impl::Output final : WordSink {
  Output(const Model& model, Workspace& workspace, std::vector<TokenId>& ids,
         std::vector<ByteSpan>* spans)
      : model(model), workspace(workspace), ids(ids), spans(spans) {}

  void take(const Word& word) override {
    const auto key = WordCache::key_of(word.bytes);
    WordCache::Slot* const slot = key ? &workspace.cache.slot_of(*key) : nullptr;
    if (slot && slot->key == *key) return take_cached(*slot, word);
    model.encode(word.bytes, workspace.scratch, workspace.symbols);
    for (const Symbol& symbol : workspace.symbols) {
      ids.push_back(symbol.id);
      if (spans) add_span(word, symbol.begin, symbol.end);
    }
    if (slot) WordCache::store(*slot, *key, workspace.symbols);
  }
  void take_token(TokenId id, const Word& word) {
    ids.push_back(id);
    if (spans) add_span(word, 0, static_cast<uint32_t>(word.bytes.size()));
  }

  const Model& model;
  Workspace& workspace;
  std::vector<TokenId>& ids;
  std::vector<ByteSpan>* spans;

 private:
  void take_cached(const WordCache::Slot& slot, const Word& word) {
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.num_ids);
    if (!spans) return;
    uint32_t begin = slot.first;
    for (size_t i = 0; i < slot.num_ids; ++i) {
      add_span(word, begin, slot.ends[i]);
      begin = slot.ends[i];
    }
  }
  void add_span(const Word& word, uint32_t begin, uint32_t end) {
    spans->push_back(in_original({word.begin + begin, word.begin + end}, word.place));
  }
};

void Tokenizer::Impl::encode(std::string_view text, bool add_special_tokens,
                             std::vector<TokenId>& ids, std::vector<ByteSpan>* spans) const {
  if (text.size() > UINT32_MAX / 4)
    throw DataError("the text is larger than 1 GiB, the tokenizer's limit");
  if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    throw DataError(fmt::format("the text is not valid UTF-8 (byte {})", at), {},
                    "convert it to UTF-8");
  }
  const auto add = [&](const std::vector<TokenId>& tokens, uint32_t at) {
    if (!add_special_tokens) return;
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    if (spans) spans->insert(spans->end(), tokens.size(), ByteSpan{at, at});
  };
  WorkspacePool::Loan workspace(workspaces_);
  Output out(*model, *workspace, ids, spans);
  add(post_processor.before, 0);
  encode_text(rules, text, out);
  add(post_processor.after, static_cast<uint32_t>(text.size()));
}

bool Tokenizer::Impl::differs_in_class(std::string_view text) const {
  if (!class_rules) return !text.empty();
  WorkspacePool::Loan workspace(workspaces_);
  std::vector<TokenId> own, of_class;
  Output own_output(*model, *workspace, own, nullptr),
      output(*model, *workspace, of_class, nullptr);
  encode_text(rules, text, own_output);
  encode_text(*class_rules, text, output);
  return own != of_class;
}

void Tokenizer::Impl::encode_text(const WordRules& by, std::string_view text, Output& out) const {
  if (!added.has_any(false)) return encode_plain(by, {text}, out);
  for (const AddedTokens::Stretch& stretch : added.split(text, false)) {
    const Word word{text.substr(stretch.begin, stretch.end - stretch.begin), stretch.begin};
    stretch.id ? out.take_token(*stretch.id, word) : encode_plain(by, word, out);
  }
}

/// Encodes a stretch without added tokens that are searched in the original text.
void Tokenizer::Impl::encode_plain(const WordRules& by, const Word& stretch, Output& out) const {
  if (stretch.bytes.empty()) return;
  if (by.normalizer.surely_keeps(stretch.bytes)) return encode_normalized(by, stretch, out);
  const bool with_sources = out.spans || by.pre_tokenizer.asks_for_places();
  const NormalizedText normalized = by.normalizer.run(stretch.bytes, with_sources);
  const Place place{stretch.place, stretch.begin, with_sources ? &normalized.sources : nullptr};
  encode_normalized(by, {normalized.text, 0, &place}, out);
}

void Tokenizer::Impl::encode_normalized(const WordRules& by, const Word& stretch,
                                        Output& out) const {
  const bool with_sources = out.spans || by.pre_tokenizer.asks_for_places();
  if (!added.has_any(true)) return by.pre_tokenizer.run(stretch, with_sources, out);
  for (const AddedTokens::Stretch& part : added.split(stretch.bytes, true)) {
    const Word word{stretch.bytes.substr(part.begin, part.end - part.begin),
                    stretch.begin + part.begin, stretch.place};
    part.id ? out.take_token(*part.id, word) : by.pre_tokenizer.run(word, with_sources, out);
  }
}

}  // namespace sftrun::tokenizer
