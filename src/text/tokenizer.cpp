#include "sftrun/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "byte_level.h"
#include "json_access.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "tokenizer_impl.h"
#include "unicode.h"

namespace sftrun::text {
namespace {

/// "bos_token": "<s>" or {"content": "<s>", …}; nothing when it is missing or null.
std::optional<std::string> named_token(const Json& document, const char* key) {
  if (!document.is_object() || !document.contains(key)) return std::nullopt;
  const Json& value = document.at(key);
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value.at("content").is_string()) {
    return value.at("content").get<std::string>();
  }
  return std::nullopt;
}

Json read_json_if_present(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return Json();
  Json document = Json::parse(read_text_file(path), nullptr, false);
  if (document.is_discarded()) throw DataError("not valid JSON", path.string());
  return document;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_directory(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw DataError("the model has no tokenizer.json", directory.string(),
                    "save the tokenizer with transformers "
                    "(AutoTokenizer.from_pretrained(…).save_pretrained(…))");
  }
  Tokenizer tokenizer = from_json(read_text_file(file), file.string());
  const Json config = read_json_if_present(directory / "tokenizer_config.json");
  const Json map = read_json_if_present(directory / "special_tokens_map.json");
  const auto id_of = [&](const char* key) -> std::optional<TokenId> {
    auto name = named_token(config, key);
    if (!name) name = named_token(map, key);
    return name ? tokenizer.token_to_id(*name) : std::nullopt;
  };
  tokenizer.impl_->bos = id_of("bos_token");
  tokenizer.impl_->eos = id_of("eos_token");
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

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  Decoder::Joiner joiner(impl_->decoder);
  for (const TokenId id : ids) {
    if (!impl_->decoded.has(id) || (skip_special_tokens && is_special(id))) continue;
    joiner.take(impl_->text_of(id), impl_->decoded.at(id));
  }
  return joiner.finish();
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
  return impl_->bpe.vocab().find(token);
}

std::string Tokenizer::id_to_token(TokenId id) const {
  return std::string(impl_->text_of(id));
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* added = impl_->added.find(id);
  return added && added->special;
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

}  // namespace sftrun::text
