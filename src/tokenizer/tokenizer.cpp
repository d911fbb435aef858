#include "sftrun/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer_files.h"
#include "tokenizer_impl.h"

namespace sftrun::tokenizer {
Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_directory(const std::filesystem::path& directory) {
  Tokenizer tokenizer(
      std::make_unique<Impl>(read_tokenizer_directory(directory), directory.string()));
  const TokenizerConfig config = TokenizerConfig::read(directory);
  const auto name_token = [&](const char* key, std::optional<TokenId>& token) {
    if (const auto text = config.token(key)) token = tokenizer.token_to_id(*text);
  };
  name_token("bos_token", tokenizer.impl_->bos);
  name_token("eos_token", tokenizer.impl_->eos);
  return tokenizer;
}

Tokenizer Tokenizer::from_json(std::string_view tokenizer_json, const std::string& where) {
  return Tokenizer(std::make_unique<Impl>(read_tokenizer_json(tokenizer_json, where), where));
}

Tokenizer Tokenizer::from_gguf(const GgufVocab& vocab, const std::string& where) {
  return Tokenizer(std::make_unique<Impl>(read_gguf_vocab(vocab, where), where));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  impl_->encode(text, add_special_tokens, ids, nullptr);
  return ids;
}

Encoding Tokenizer::encode_with_spans(std::string_view text, bool add_special_tokens) const {
  Encoding out;
  impl_->encode(text, add_special_tokens, out.ids, &out.spans);
  return out;
}

std::span<const TokenId> Tokenizer::tokens_behind_texts() const {
  return impl_->post_processor.after;
}

const ClassDifference* Tokenizer::class_difference() const {
  return impl_->class_difference ? &*impl_->class_difference : nullptr;
}

bool Tokenizer::differs_in_class(std::string_view text) const {
  return impl_->class_difference && impl_->differs_in_class(text);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return impl_->decode(ids, skip_special_tokens);
}

std::string Tokenizer::token_bytes(TokenId id, bool skip_special_tokens) const {
  return skip_special_tokens && is_special(id) ? std::string()
                                               : std::string(impl_->decoded_bytes(id));
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->decoded.size());
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  if (const AddedToken* added = impl_->added.find(token)) return added->id;
  return impl_->model->vocab().find(token);
}

std::string Tokenizer::id_to_token(TokenId id) const {
  return std::string(impl_->text_of(id));
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* added = impl_->added.find(id);
  return added && added->was_special;
}

bool Tokenizer::is_added(TokenId id) const {
  return impl_->added.find(id) != nullptr;
}

std::optional<TokenId> Tokenizer::bos_id() const {
  return impl_->bos;
}
std::optional<TokenId> Tokenizer::eos_id() const {
  return impl_->eos;
}
std::string Tokenizer::to_json() const {
  return write_tokenizer_json(*impl_);
}

}  // namespace sftrun::tokenizer
