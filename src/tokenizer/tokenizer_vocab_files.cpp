#include <fmt/format.h>

#include <algorithm>

#include "json_access.h"
#include "sections.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "tokenizer_classes.h"

namespace sftrun::tokenizer {
namespace {

std::vector<std::pair<std::string, TokenId>> read_vocab(std::string_view text,
                                                        const std::string& where) {
  const auto document = parse_document<nlohmann::json>(text);
  if (!document.is_object()) throw DataError("not a JSON object of tokens and ids", where);
  std::vector<std::pair<std::string, TokenId>> out;
  for (const auto& [token, id] : document.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX)
      throw DataError(
          fmt::format("the token `{}` has the invalid id {}", token, excerpt(id.dump())), where);
    out.emplace_back(token, id.get<TokenId>());
  }
  std::ranges::stable_sort(out, {}, [](const auto& entry) { return entry.second; });
  return out;
}

/// Lines of "left right", after a line with the version.
std::vector<std::pair<std::string, std::string>> read_merges(std::string_view text,
                                                             const std::string& where) {
  std::vector<std::pair<std::string, std::string>> out;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    const bool is_pair = space != std::string_view::npos && space > 0 && space + 1 < line.size() &&
                         line.find(' ', space + 1) == std::string_view::npos;
    if (!is_pair) {
      throw DataError("a line of merges.txt is not a pair of tokens",
                      fmt::format("{}:{}", where, number));
    }
    out.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return out;
}

/// Sets the normalizer and pre-tokenizer of the tokenizer's class.
void set_class(const TokenizerConfig& config, TokenizerSource& source) {
  const std::string name = config.tokenizer_class();
  auto sections = sections_of_class(name, config);
  if (!sections) {
    throw DataError(
        fmt::format("`{}` needs a tokenizer.json, because its pre-tokenizer is unknown", name),
        config.where,
        "save the tokenizer with transformers "
        "(AutoTokenizer.from_pretrained(…).save_pretrained(…))");
  }
  source.normalizer = std::move(sections->normalizer);
  source.pre_tokenizer = std::move(sections->pre_tokenizer);
  source.decoder = byte_level_section(true);
}

/// The configuration, with the classes' default special tokens if it names none.
TokenizerConfig with_class_tokens(TokenizerConfig config) {
  const bool is_qwen = config.tokenizer_class().starts_with("Qwen");
  for (const std::string key : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const bool has_default = is_qwen ? key != "bos_token" : key != "pad_token";
    if (has_default && !config.config.contains(key)) config.config[key] = "<|endoftext|>";
  }
  return config;
}

}  // namespace

TokenizerSource source_from_vocab_files(std::string_view vocab, std::string_view merges,
                                        const TokenizerConfig& config, const std::string& where) {
  TokenizerSource source;
  BpeSource bpe;
  bpe.vocab = read_vocab(vocab, where + "/vocab.json");
  bpe.merges = read_merges(merges, where + "/merges.txt");
  source.model = std::move(bpe);
  set_class(config, source);
  add_configured_tokens(with_class_tokens(config), source, false);
  return source;
}

}  // namespace sftrun::tokenizer
