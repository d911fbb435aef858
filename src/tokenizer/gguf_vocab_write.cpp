#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "gguf_pre_tokenizers.h"
#include "gguf_token_types.h"
#include "sections.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "splitters.h"

/// Converts a tokenizer.json to llama.cpp's vocabulary. The result is read again, and must split
/// texts like the tokenizer.
namespace sftrun::tokenizer {
namespace {

constexpr const char* kFix =
    "write the model as safetensors (sftrun merge --format safetensors), and convert it with "
    "llama.cpp's "
    "convert_hf_to_gguf.py if that supports the tokenizer";

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw DataError("the tokenizer cannot be stored in a GGUF file: " + what, where, kFix);
}

/// The steps of a section, with Sequences flattened.
void add_steps(const Json& section, std::vector<Json>& steps) {
  if (section.is_null()) return;
  if (section.value("type", "") != "Sequence") {
    steps.push_back(section);
    return;
  }
  for (const char* key : {"pretokenizers", "normalizers"}) {
    if (!section.contains(key)) continue;
    for (const Json& step : section[key]) add_steps(step, steps);
  }
}

std::vector<Json> steps_of(const Json& section) {
  std::vector<Json> steps;
  add_steps(section, steps);
  return steps;
}

bool has_step(const std::vector<Json>& steps, const char* type) {
  return std::any_of(steps.begin(), steps.end(),
                     [&](const Json& step) { return step.value("type", "") == type; });
}

/// The steps of a pre-tokenizer in a normal form: equivalent spellings become equal.
std::vector<Json> splitting_of(const Json& section) {
  std::vector<Json> result;
  for (const Json& step : steps_of(section)) {
    const std::string type = step.value("type", "");
    if (type == "ByteLevel") {
      if (step.value("use_regex", true)) result.push_back(split_section(kGpt2Pattern));
      result.push_back(
          {{"type", type}, {"add_prefix_space", step.value("add_prefix_space", true)}});
    } else if (type == "Digits" && step.value("individual_digits", false)) {
      result.push_back(split_section(R"(\p{N})"));
    } else if (type == "Split" && step["pattern"].contains("Regex")) {
      // Keeping only the matches equals isolating them if nothing is between them.
      const bool keeps = step.value("behavior", "") == "Removed" && step.value("invert", false);
      Json split = split_section(step["pattern"]["Regex"].get<std::string>());
      if (!keeps) {
        split["behavior"] = step.value("behavior", "");
        split["invert"] = step.value("invert", false);
      }
      result.push_back(std::move(split));
    } else {
      result.push_back(step);
    }
  }
  return result;
}

/// tokenizer.ggml.pre of a byte-level tokenizer.
std::string pre_tokenizer_name(const Json& tokenizer, const std::string& where) {
  const std::vector<Json> splitting = splitting_of(tokenizer["pre_tokenizer"]);
  const std::vector<Json> normalizer = steps_of(tokenizer["normalizer"]);
  const bool ignore_merges = tokenizer["model"].value("ignore_merges", false);
  for (const std::string& name : gguf_pre_tokenizer_names()) {
    const GgufPreTokenizer known = gguf_pre_tokenizer(name, where);
    if (known.ignore_merges == ignore_merges && splitting_of(known.pre_tokenizer) == splitting &&
        steps_of(known.normalizer) == normalizer)
      return name;
  }
  fail("llama.cpp has no name for its pre-tokenizer", where);
}

void require_plain_model(const Json& model, const std::string& where) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(key) && model[key].is_string() && !model[key].get<std::string>().empty())
      fail(fmt::format("its BPE model has a `{}`, which GGUF does not support", key), where);
  }
}

std::vector<std::string> merges_of(const Json& model, const std::string& where) {
  std::vector<std::string> merges;
  for (const Json& merge : model["merges"]) {
    const auto left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos)
      fail(fmt::format("the merge of `{}` and `{}` contains a space", left, right), where);
    merges.push_back(fmt::format("{} {}", left, right));
  }
  return merges;
}

/// SentencePiece first merges the pair that gives the piece with the highest score.
std::vector<float> scores_of(const Json& model, const std::vector<std::string>& tokens,
                             const std::vector<int32_t>& types) {
  std::unordered_map<std::string, float> by_text;
  for (const Json& merge : model["merges"]) {
    by_text.emplace(merge[0].get<std::string>() + merge[1].get<std::string>(),
                    -static_cast<float>(by_text.size()));
  }
  const float below_all = -static_cast<float>(by_text.size());
  std::vector<float> scores;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto found = by_text.find(tokens[i]);
    const bool is_piece = types[i] == gguf::kNormal || types[i] == gguf::kUserDefined;
    scores.push_back(found != by_text.end() ? found->second : is_piece ? below_all : 0.0F);
  }
  return scores;
}

/// "<0x0A>", the token of a byte for which no piece exists.
bool is_byte(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.starts_with("<0x") && is_hex(text[3]) && is_hex(text[4]) &&
         text[5] == '>';
}

/// The tokenizer.json without its vocabulary: Json looks up keys linearly, which takes minutes for
/// Gemma's 262,144 tokens.
Json sections_of(const Tokenizer& tokenizer) {
  constexpr int kInModel = 2;
  return Json::parse(tokenizer.to_json(), [](int depth, Json::parse_event_t event, Json& parsed) {
    return event != Json::parse_event_t::key || depth != kInModel || parsed != "vocab";
  });
}

/// Fills up to the size of the model's embedding: ids without a token get a placeholder name.
void fill_tokens(const Tokenizer& tokenizer, const Json& added_tokens, int64_t vocab_size,
                 bool of_pieces, GgufVocab& vocab, const std::string& where) {
  vocab.tokens.resize(static_cast<size_t>(vocab_size));
  vocab.token_types.assign(vocab.tokens.size(), gguf::kUnused);
  const auto put = [&](int64_t id, const std::string& text, int32_t type) {
    if (id < 0 || id >= vocab_size) {
      fail(fmt::format("token `{}` has the id {}, but the model's embedding has {} rows", text, id,
                       vocab_size),
           where);
    }
    vocab.tokens[static_cast<size_t>(id)] = text;
    vocab.token_types[static_cast<size_t>(id)] = type;
  };
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.id_to_token(id);
    if (!text.empty()) put(id, text, of_pieces && is_byte(text) ? gguf::kByte : gguf::kNormal);
  }
  for (const Json& token : added_tokens) {
    put(token["id"].get<int64_t>(), token["content"].get<std::string>(),
        token.value("special", false) ? gguf::kControl : gguf::kUserDefined);
  }
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (vocab.token_types[i] == gguf::kUnused) vocab.tokens[i] = fmt::format("[PAD{}]", i);
  }
}

void warn_of_stripping(const Json& tokenizer, const std::string& where) {
  size_t count = 0;
  for (const Json& token : tokenizer["added_tokens"]) {
    const bool strips = token.value("lstrip", false) || token.value("rstrip", false) ||
                        token.value("single_word", false);
    count += strips ? 1 : 0;
  }
  if (count == 0) return;
  log::warn(
      "{}: {} added tokens remove the white space around them (lstrip, rstrip) or match only whole "
      "words (single_word). GGUF cannot express this, and llama.cpp may keep that white space",
      where, count);
}

void write_bytes(const Json& tokenizer, GgufVocab& vocab, const std::string& where) {
  vocab.model = "gpt2";
  vocab.pre = pre_tokenizer_name(tokenizer, where);
  vocab.merges = merges_of(tokenizer["model"], where);
}

/// Whether a space is put before a text. @throws DataError unless spaces are replaced by U+2581
bool adds_space_prefix(const Json& tokenizer, const std::string& where) {
  bool prepends = false, replaces = false;
  for (const Json& step : steps_of(tokenizer["normalizer"])) {
    const std::string type = step.value("type", "");
    if (type == "Prepend" && step.value("prepend", "") == kVisibleSpace) {
      prepends = true;
    } else if (step == replace_section(" ", kVisibleSpace)) {
      replaces = true;
    } else {
      fail(fmt::format("its normalizer has the unsupported step `{}`", type), where);
    }
  }
  for (const Json& step : steps_of(tokenizer["pre_tokenizer"])) {
    const std::string type = step.value("type", "");
    if (type == "Metaspace") {
      const std::string scheme = step.value("prepend_scheme", "always");
      prepends = prepends || scheme != "never";
      replaces = true;
      if (scheme != "first") continue;
      log::warn(
          "{}: this tokenizer adds a space only at the beginning of a text, but llama.cpp also "
          "adds one after special tokens, so the text after a special token may begin with a "
          "different token there",
          where);
    } else if (type != "Split" || !replaces || step["pattern"] != Json{{"String", " "}}) {
      fail(fmt::format("its pre-tokenizer has the unsupported step `{}`", type), where);
    }
  }
  if (!replaces) fail("it is neither byte-level nor SentencePiece BPE", where);
  return prepends;
}

void write_pieces(const Json& tokenizer, bool keeps_merges, GgufVocab& vocab,
                  const std::string& where) {
  const Json& model = tokenizer["model"];
  if (!model.value("byte_fallback", false))
    fail("its vocabulary has no byte tokens (byte_fallback)", where);
  vocab.add_space_prefix = adds_space_prefix(tokenizer, where);
  if (keeps_merges) {
    vocab.model = "gemma4";
    vocab.merges = merges_of(model, where);
    vocab.scores.assign(vocab.tokens.size(), -1000.0F);  // required, but not used
    return;
  }
  vocab.model = "llama";
  vocab.pre = "default";
  vocab.scores = scores_of(model, vocab.tokens, vocab.token_types);
  if (vocab.unk) {  // matched in texts only if it is an added token
    int32_t& type = vocab.token_types[static_cast<size_t>(*vocab.unk)];
    if (type == gguf::kNormal) type = gguf::kUnknown;
  }
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (vocab.token_types[i] == gguf::kUserDefined)  // searched in the original text
      for (size_t at; (at = vocab.tokens[i].find(kVisibleSpace)) != std::string::npos;)
        vocab.tokens[i].replace(at, std::string_view(kVisibleSpace).size(), " ");
  }
}

/// Sets whether BOS and EOS are added, from the post-processor. @throws DataError for more than BOS
/// and EOS
void write_ends(const Tokenizer& tokenizer, GgufVocab& vocab, const std::string& where) {
  const std::string text = "a";
  const std::vector<TokenId> inner = tokenizer.encode(text, false),
                             all = tokenizer.encode(text, true);
  const auto at = std::search(all.begin(), all.end(), inner.begin(), inner.end());
  const auto before = at - all.begin();
  const auto behind = at == all.end() ? std::ptrdiff_t{2}
                                      : all.end() - at - static_cast<std::ptrdiff_t>(inner.size());
  if (inner.empty() || before > 1 || behind > 1)
    fail("it adds more than one token before and one after a text", where);
  vocab.add_bos = before == 1;
  vocab.add_eos = behind == 1;
  if (vocab.add_bos) vocab.bos = all.front();
  if (vocab.add_eos) vocab.eos = all.back();
}

/// Texts in several scripts, with characters that pre-tokenizers and normalizers distinguish, and
/// sequences of the vocabulary's tokens.
std::vector<std::string> texts_to_try(const Tokenizer& tokenizer, const GgufVocab& vocab) {
  std::vector<std::string> texts = {
      "Hello, world! It's 3 o'clock; WE'LL see 12345 of them.",
      "  leading\tand trailing  \n\n  lines \r\n\r\n end   ",
      "Grüße, naïve café, ﬁ ½ ２３ e\u0301 \u00a0x\u3000y",
      "今天天气很好。私は学生です。안녕하세요 Привет мир مرحبا",
      "def f(x):\n    return x**2 + {'a': [1, 2]}  # 100%\n\n\n\tpass",
      "😀👩‍👩‍👧 \U0001F1E9\U0001F1EA …—“quotes” ''' \"\"\" --- ===",
      " ",
      "\n",
      "a"};
  const size_t step = std::max<size_t>(1, vocab.tokens.size() / 3000);
  std::string joined;
  for (size_t i = 0; i < vocab.tokens.size(); i += step) {
    const size_t shuffled = i * 7919 % vocab.tokens.size();  // a prime, to shuffle the tokens
    if (vocab.token_types[shuffled] != gguf::kNormal) continue;
    const std::vector<TokenId> one = {static_cast<TokenId>(shuffled)};
    joined += tokenizer.decode(one, true);
    if (i / step % 5 == 4) joined += ' ';
    if (joined.size() < 200) continue;
    texts.push_back(std::exchange(joined, {}));
  }
  texts.push_back(joined);
  return texts;
}

void check_splits_alike(const Tokenizer& tokenizer, const GgufVocab& vocab,
                        const std::string& where) {
  const Tokenizer read = Tokenizer::from_gguf(vocab, where);
  for (const std::string& text : texts_to_try(tokenizer, vocab)) {
    if (tokenizer.encode(text, true) == read.encode(text, true)) continue;
    fail(fmt::format("llama.cpp would split `{}` into different tokens", text), where);
  }
}

}  // namespace

GgufVocab gguf_vocab_of(const Tokenizer& tokenizer, const GgufVocabOptions& options,
                        const std::string& where) {
  const Json parsed = sections_of(tokenizer);
  const Json& model = parsed["model"];
  if (model.value("type", "") != "BPE") {
    fail(fmt::format("it is a {} model; supported: byte-level BPE and SentencePiece BPE",
                     model.value("type", "")),
         where);
  }
  require_plain_model(model, where);
  const bool of_bytes = has_step(steps_of(parsed["pre_tokenizer"]), "ByteLevel");
  GgufVocab vocab;
  fill_tokens(tokenizer, parsed["added_tokens"], options.vocab_size, !of_bytes, vocab, where);
  const auto id_of = [&](const std::string& text) {
    return text.empty() ? std::nullopt : tokenizer.token_to_id(text);
  };
  vocab.bos = id_of(options.bos_token);
  vocab.eos = id_of(options.eos_token);
  vocab.unk = id_of(options.unk_token);
  vocab.pad = id_of(options.pad_token);
  if (!vocab.bos) vocab.bos = tokenizer.bos_id();
  if (!vocab.eos) vocab.eos = tokenizer.eos_id();
  if (!vocab.unk && model.contains("unk_token") && model["unk_token"].is_string())
    vocab.unk = id_of(model["unk_token"].get<std::string>());
  if (of_bytes) {
    write_bytes(parsed, vocab, where);
  } else {
    write_pieces(parsed, options.keeps_merges, vocab, where);
  }
  write_ends(tokenizer, vocab, where);
  warn_of_stripping(parsed, where);
  check_splits_alike(tokenizer, vocab, where);
  return vocab;
}

}  // namespace sftrun::tokenizer
