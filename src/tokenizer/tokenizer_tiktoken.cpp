#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "byte_level.h"
#include "json_access.h"
#include "rank_merges.h"
#include "sections.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "splitters.h"
#include "tokenizer_files.h"

namespace sftrun::tokenizer {
namespace {

struct Ranked {
  std::string bytes;
  TokenId rank;
};

/// "IQ== 0": a token in base64, and its rank.
std::optional<Ranked> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return std::nullopt;
  auto bytes = decode_base64(line.substr(0, space));
  const std::string_view number = line.substr(space + 1);
  TokenId rank = -1;
  const auto [end, code] = std::from_chars(number.data(), number.data() + number.size(), rank);
  const bool sound = bytes && !bytes->empty() && code == std::errc() && rank >= 0 &&
                     end == number.data() + number.size();
  return sound ? std::optional(Ranked{std::move(*bytes), rank}) : std::nullopt;
}

/// Takes the next line, without its line end.
std::string_view take_line(std::string_view& rest) {
  const size_t end = rest.find('\n');
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// Byte-level BPE of ranked byte strings; an id is `first_id` + rank.
BpeSource bpe_of(const std::vector<Ranked>& ranked, TokenId first_id) {
  BpeSource source;
  std::vector<RankedToken> tokens;
  for (const Ranked& token : ranked) {
    source.vocab.emplace_back(bytes_to_visible(token.bytes), first_id + token.rank);
    tokens.push_back({token.bytes, token.rank, static_cast<double>(token.rank)});
  }
  source.merges = merges_by_rank(tokens, MergeTies::kLowIdsFirst, true);
  for (auto& [left, right] : source.merges) {
    left = bytes_to_visible(left);
    right = bytes_to_visible(right);
  }
  source.options.ignore_merges = true;
  return source;
}

Json split_to_bytes(const std::string& pattern) {
  return sequence_section("pretokenizers", {split_section(pattern), byte_level_section(false)});
}

void check_distinct(const std::vector<Ranked>& ranked, const std::string& where) {
  std::vector<TokenId> ranks;
  ranks.reserve(ranked.size());
  for (const Ranked& token : ranked) ranks.push_back(token.rank);
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end())
    throw DataError(fmt::format("two tokens have the rank {}", *twice), where);
}

std::vector<Ranked> read_ranks(std::string_view text, const std::string& where) {
  std::vector<Ranked> ranked;
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.empty()) continue;
    auto token = parse_line(line);
    if (!token) {
      throw DataError("not a line of a tiktoken vocabulary: a token in base64 and its rank",
                      fmt::format("{}:{}", where, number), "download or copy the file again");
    }
    ranked.push_back(std::move(*token));
  }
  if (ranked.empty()) throw DataError("the tiktoken vocabulary is empty", where);
  check_distinct(ranked, where);
  return ranked;
}

/// Special tokens get the ids after the vocabulary, as in transformers, with its placeholder names
/// for ids that the configuration omits.
void add_specials(const TokenizerConfig& config, TokenId vocab_size, TokenizerSource& source) {
  TokenizerSource named;
  add_configured_tokens(config, named, false);
  TokenId last = vocab_size - 1;
  for (const AddedToken& token : named.added) last = std::max(last, token.id);
  constexpr TokenId kMaxReserved = 1 << 16;
  if (last - vocab_size > kMaxReserved)
    throw DataError(fmt::format("the special token id {} is far beyond the vocabulary of {} tokens",
                                last, vocab_size),
                    config.where);
  for (TokenId id = vocab_size; id <= last; ++id) {
    const auto found = std::find_if(named.added.begin(), named.added.end(),
                                    [id](const AddedToken& token) { return token.id == id; });
    source.added.push_back({.id = id,
                            .content = found != named.added.end()
                                           ? found->content
                                           : fmt::format("<|reserved_token_{}|>", id),
                            .special = true});
  }
  source.added.insert(source.added.end(), named.added.begin(), named.added.end());
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  return parse_line(take_line(text)).has_value();
}

namespace {

struct KnownSplitting {
  const char* pattern;
  bool nfc = false;
};

/// A file has only ranks. The pre-tokenizer's pattern is known only for known vocabularies, which
/// are found by the fingerprints of their files. Llama 4's pattern is from its own package;
/// transformers' converter lacks it.
std::optional<KnownSplitting> known_splitting(std::string_view text, const std::string& name) {
  struct Known {
    std::string_view fingerprint;
    KnownSplitting splitting;
  };
  const KnownSplitting qwen{kQwen2Pattern, true};
  const std::array known = {Known{"9b01421447cc41323ab6c4fcae823abd", {kLlama3Pattern}},
                            Known{"e016f631c59895685b337105ecd2e1da", {kGpt4oPattern}},
                            Known{"d2a3bb071fb36b489846c387886bd618", qwen}};
  if (name == "qwen.tiktoken") return qwen;
  const std::string fingerprint = Fingerprint().add(text).hex();
  for (const Known& one : known)
    if (one.fingerprint == fingerprint) return one.splitting;
  return std::nullopt;
}

void warn_unknown(size_t num_tokens, const std::string& where) {
  log::warn(
      "{}: this tiktoken vocabulary of {} tokens is unknown (known are Llama 3, Llama 4, "
      "Qwen), "
      "and the file has no pattern for splitting texts. Llama 3's pattern is used, as in "
      "transformers. If the model has another pattern, put its tokenizer.json into the same "
      "directory; sftrun then uses it instead",
      where, num_tokens);
}

}  // namespace

TokenizerSource source_from_tiktoken(std::string_view text, const std::string& name,
                                     const TokenizerConfig& config, const std::string& where) {
  const std::vector<Ranked> ranked = read_ranks(text, where);
  const auto known = known_splitting(text, name);
  if (!known) warn_unknown(ranked.size(), where);
  const KnownSplitting splitting = known.value_or(KnownSplitting{kLlama3Pattern});
  TokenizerSource source;
  source.model = bpe_of(ranked, 0);
  if (splitting.nfc) source.normalizer = {{"type", "NFC"}};
  source.pre_tokenizer = split_to_bytes(splitting.pattern);
  source.decoder = byte_level_section(true);
  add_specials(config, static_cast<TokenId>(ranked.size()), source);
  return source;
}

namespace {

/// Names of the first ids. If a file lists none, uses the names of Mistral's first files, and
/// placeholders for the rest.
std::vector<std::string> tekken_specials(const Json& document, TokenId& num_specials,
                                         const std::string& where) {
  static constexpr std::array kFirst = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "[INST]",
                                        "[/INST]",
                                        "[AVAILABLE_TOOLS]",
                                        "[/AVAILABLE_TOOLS]",
                                        "[TOOL_RESULTS]",
                                        "[/TOOL_RESULTS]",
                                        "[TOOL_CALLS]",
                                        "[IMG]",
                                        "<pad>",
                                        "[IMG_BREAK]",
                                        "[IMG_END]",
                                        "[PREFIX]",
                                        "[MIDDLE]",
                                        "[SUFFIX]",
                                        "[SYSTEM_PROMPT]",
                                        "[/SYSTEM_PROMPT]",
                                        "[TOOL_CONTENT]"};
  std::vector<std::pair<int64_t, std::string>> ranked;
  if (document.contains("special_tokens") && !document.at("special_tokens").is_null()) {
    for (const Json& token : array_at(document, "special_tokens", where))
      ranked.emplace_back(int_at(token, "rank", where), string_at(token, "token_str", where));
  } else {
    for (const char* name : kFirst) ranked.emplace_back(ranked.size(), name);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> names;
  names.reserve(ranked.size());
  for (auto& [rank, name] : ranked) names.push_back(std::move(name));
  const Json& config = object_at(document, "config", where);
  const bool says = config.contains("default_num_special_tokens");
  const int64_t count = says ? int_at(config, "default_num_special_tokens", where)
                             : static_cast<int64_t>(names.size());
  constexpr int64_t kMax = 1 << 16;
  if (count < static_cast<int64_t>(names.size()) || count > kMax)
    throw DataError(fmt::format("invalid number of special tokens {}", count), where);
  num_specials = static_cast<TokenId>(count);
  for (auto i = static_cast<TokenId>(names.size()); i < num_specials; ++i)
    names.push_back(fmt::format("<SPECIAL_{}>", i));
  return names;
}

std::vector<Ranked> tekken_ranks(const Json& document, TokenId num_specials,
                                 const std::string& where) {
  const Json& config = object_at(document, "config", where);
  const Json& vocab = array_at(document, "vocab", where);
  size_t count = vocab.size();
  if (config.contains("default_vocab_size") && !config.at("default_vocab_size").is_null()) {
    const int64_t size = int_at(config, "default_vocab_size", where) - num_specials;
    count = std::min(count, static_cast<size_t>(std::max<int64_t>(size, 0)));
  }
  std::vector<Ranked> out;
  for (size_t i = 0; i < count; ++i) {
    auto bytes = decode_base64(string_at(vocab[i], "token_bytes", where));
    if (!bytes || bytes->empty())
      throw DataError(fmt::format("token {} of the vocabulary has no base64 bytes", i), where);
    out.push_back({std::move(*bytes), static_cast<TokenId>(i)});
  }
  return out;
}

}  // namespace

TokenizerSource source_from_tekken(std::string_view text, const std::string& where) {
  const Json document = parse_document(text);
  if (document.is_discarded()) throw DataError("not valid JSON", where);
  TokenId num_specials = 0;
  const std::vector<std::string> names = tekken_specials(document, num_specials, where);
  BpeSource bpe = bpe_of(tekken_ranks(document, num_specials, where), num_specials);
  TokenizerSource source;
  for (TokenId id = 0; id < num_specials; ++id) {
    bpe.vocab.emplace_back(names[static_cast<size_t>(id)], id);
    source.added.push_back({.id = id, .content = names[static_cast<size_t>(id)], .special = true});
    if (source.added.back().content == "<s>") source.bos = id;
    if (source.added.back().content == "</s>") source.eos = id;
  }
  source.model = std::move(bpe);
  source.pre_tokenizer =
      split_to_bytes(string_at(object_at(document, "config", where), "pattern", where));
  source.decoder = byte_level_section(true);
  return source;
}

}  // namespace sftrun::tokenizer
