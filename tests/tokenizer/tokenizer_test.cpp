#include "sftrun/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/expect_error.h"

namespace sftrun::tokenizer {
namespace {

using nlohmann::ordered_json;

/// Tokens: the bytes a b c and space (Ġ), ab, abc, Ġa; merges a+b, ab+c, Ġ+a; one special token
/// behind them.
ordered_json small_tokenizer() {
  return ordered_json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 7, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5, "Ġa": 6},
              "merges": ["a b", ["ab", "c"], "Ġ a"]}
  })");
}

Tokenizer load(const ordered_json& document) {
  return Tokenizer::from_json(document.dump(), "t.json");
}
using Ids = std::vector<TokenId>;

using test::error_of;

std::string load_error(const ordered_json& document) {
  return error_of([&] { load(document); });
}

TEST(Tokenizer, NormalizersDoNotMultiplyTexts) {
  const auto replacing = [](const std::string& content, int times) {
    ordered_json document = small_tokenizer();
    document["normalizer"] = {{"type", "Sequence"}, {"normalizers", ordered_json::array()}};
    for (int i = 0; i < times; ++i)
      document["normalizer"]["normalizers"].push_back(
          {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", content}});
    return load(document);
  };
  const std::string text(1000, 'a');
  EXPECT_EQ(replacing("aaa", 1).encode(text, false).size(), 3000U);
  for (const auto& [content, times] : {std::pair(10'000, 1), std::pair(50, 8), std::pair(2, 60)}) {
    const Tokenizer tokenizer = replacing(std::string(static_cast<size_t>(content), 'a'), times);
    EXPECT_NE(error_of([&] {
                tokenizer.encode(text, false);
              }).find("the tokenizer's normalizer makes a text of"),
              std::string::npos);
  }
}

TEST(Tokenizer, MergesByRank) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("abc", false), Ids({5}));
  EXPECT_EQ(tokenizer.encode("bcab ab", false), Ids({1, 2, 4, 3, 4}));
  EXPECT_EQ(tokenizer.encode(" ac", false), Ids({6, 2}));
  EXPECT_EQ(tokenizer.encode("", true), Ids());
}

TEST(Tokenizer, FindsSpecialTokensInText) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("a<|end|><|end|>b<|end", false),
            Ids({0, 7, 7, 1}));  // other bytes have no token
  EXPECT_TRUE(tokenizer.is_special(7));
  EXPECT_FALSE(tokenizer.is_special(0));
  EXPECT_EQ(tokenizer.decode(Ids{0, 7, 1, 99, -1}, false), "a<|end|>b");
  EXPECT_EQ(tokenizer.decode(Ids{0, 7, 1}, true), "ab");
  EXPECT_EQ(tokenizer.token_bytes(6), " a");
  EXPECT_EQ(tokenizer.token_bytes(7), "");
  EXPECT_EQ(tokenizer.token_bytes(7, false), "<|end|>");
  EXPECT_EQ(tokenizer.id_to_token(6), "Ġa");
  EXPECT_EQ(tokenizer.token_to_id("Ġa"), 6);
  EXPECT_EQ(tokenizer.token_to_id("<|end|>"), 7);
  EXPECT_EQ(tokenizer.token_to_id("nope"), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 8);
}

TEST(Tokenizer, SpansOfAddedAndPrefixedTokens) {
  ordered_json document = small_tokenizer();
  document["pre_tokenizer"]["add_prefix_space"] = true;
  document["post_processor"] = ordered_json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
    "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [7], "tokens": ["<|end|>"]}}})");
  const Encoding encoding = load(document).encode_with_spans("a<|end|>ab", true);
  EXPECT_EQ(encoding.ids, Ids({7, 6, 7, 3, 4, 7}));
  // The space before `a` is not in the text; that before `ab` is a token of its own without a byte.
  EXPECT_EQ(encoding.spans,
            (std::vector<ByteSpan>{{0, 0}, {0, 1}, {1, 8}, {8, 8}, {8, 10}, {10, 10}}));
}

TEST(Tokenizer, SpansWhereNfcRewrites) {
  ordered_json document = small_tokenizer();
  document["normalizer"] = {{"type", "NFC"}};
  document["model"]["vocab"]["Ã"] = 7;  // é is C3 A9
  document["model"]["vocab"]["©"] = 8;
  const Encoding encoding = load(document).encode_with_spans("ae\xCC\x81 b", false);
  EXPECT_EQ(encoding.ids, Ids({0, 7, 8, 3, 1}));
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 1}, {1, 4}, {1, 4}, {4, 5}, {5, 6}}));
}

TEST(Tokenizer, InvalidUtf8) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_NE(error_of([&] { tokenizer.encode("ab\xFF", false); }).find("not valid UTF-8 (byte 2)"),
            std::string::npos);
  ordered_json document = small_tokenizer();
  document["model"]["vocab"]["Ã"] = 7;
  EXPECT_EQ(load(document).decode(Ids{0, 7, 7, 1}, false), "a\uFFFD\uFFFDb");
}

TEST(Tokenizer, LongWordsMergeAsShortOnes) {
  const Tokenizer tokenizer = load(small_tokenizer());
  for (const size_t repeats : {10, 21, 22, 23, 200, 5000}) {  // the heap takes over at 64 symbols
    std::string text;
    Ids expected;
    for (size_t i = 0; i < repeats; ++i) {
      text += "abcb";
      expected.insert(expected.end(), {5, 1});
    }
    EXPECT_EQ(tokenizer.encode(text, false), expected) << repeats;
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  ordered_json document = small_tokenizer();
  document["model"]["vocab"]["cab"] = 8;
  EXPECT_EQ(load(document).encode("cab", false), Ids({2, 4}));
  document["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(document).encode("cab cab", false), Ids({8, 3, 2, 4}));
}

TEST(Tokenizer, ThreadsShareOneTokenizer) {
  const Tokenizer tokenizer = load(small_tokenizer());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += i % 3 ? "abc ab" : "cab\n";
  const Ids expected = tokenizer.encode(text, false);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) result = tokenizer.encode(text, false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, NumbersAddedTokensAsTheLibraryDoes) {
  ordered_json document = small_tokenizer();
  document["added_tokens"][0]["id"] = 4000;  // the library numbers on from the vocabulary
  EXPECT_EQ(load(document).token_to_id("<|end|>"), 7);
}

TEST(TokenizerErrors, NameUnknownParts) {
  const auto error_with = [](const char* section, const ordered_json& value) {
    ordered_json document = small_tokenizer();
    document[section] = value;
    return load_error(document);
  };
  const ordered_json unknown = {{"type", "Nonesuch"}};
  EXPECT_NE(error_with("normalizer", unknown).find("unknown normalizer `Nonesuch`"),
            std::string::npos);
  EXPECT_NE(error_with("pre_tokenizer", unknown).find("unknown pre-tokenizer `Nonesuch`"),
            std::string::npos);
  EXPECT_NE(error_with("post_processor", unknown).find("unknown post-processor `Nonesuch`"),
            std::string::npos);
  EXPECT_NE(error_with("decoder", unknown).find("unknown decoder `Nonesuch`"), std::string::npos);
  ordered_json document = small_tokenizer();
  document["model"]["type"] = "Nonesuch";
  EXPECT_NE(load_error(document).find("unknown tokenizer model `Nonesuch`"), std::string::npos);
  document = small_tokenizer();
  document["model"]["dropout"] = 0.1;
  EXPECT_NE(load_error(document).find("`dropout` is 0.1, which makes encoding random"),
            std::string::npos);
  document["model"]["dropout"] = 0.0;
  EXPECT_EQ(load(document).encode("abc", false), Ids({5}));
}

TEST(Tokenizer, KeepsTruncationAndPaddingWithoutApplyingThem) {
  ordered_json document = small_tokenizer();
  document["truncation"] = {{"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  document["padding"] = {{"strategy", {{"Fixed", 9}}}, {"pad_id", 0}};
  const Tokenizer tokenizer = load(document);
  EXPECT_EQ(tokenizer.encode("abc ab", false), Ids({5, 3, 4}));
  const ordered_json written = ordered_json::parse(tokenizer.to_json());
  EXPECT_EQ(written["truncation"], document["truncation"]);
  EXPECT_EQ(written["padding"], document["padding"]);
}

/// What copies such a section would call itself for each level.
TEST(TokenizerErrors, NameTooDeepNesting) {
  constexpr size_t kLevels = 200'000;
  for (const std::string open : {"[", "{\"a\":"}) {
    std::string text = "{\"normalizer\": ";
    for (size_t i = 0; i < kLevels; ++i) text += open;
    EXPECT_NE(error_of([&] { Tokenizer::from_json(text, "t.json"); }).find("nested deeper than 64"),
              std::string::npos);
  }
}

TEST(TokenizerErrors, NameMalformedParts) {
  EXPECT_NE(
      error_of([] { Tokenizer::from_json("{\n\"model\": [", "x/t.json"); }).find("at   x/t.json:2"),
      std::string::npos);
  EXPECT_NE(error_of([] { Tokenizer::from_json("[]", "t.json"); }).find("`model` is missing"),
            std::string::npos);
  ordered_json document = small_tokenizer();
  document["model"]["merges"][2] = "a x";
  EXPECT_NE(load_error(document).find("merge 3 (`a x`) needs the token `x`"), std::string::npos);
  document["model"]["merges"][2] = "a b c";
  EXPECT_NE(load_error(document).find("merge 3 is not a pair"), std::string::npos);
  document["model"]["merges"][2] = ordered_json::array({"a"});
  EXPECT_NE(load_error(document).find("merge 3 is not a pair"), std::string::npos);
  document = small_tokenizer();
  document["model"]["vocab"]["x"] = "8";
  EXPECT_NE(load_error(document).find("`model.vocab` has a value that is not an integer"),
            std::string::npos);
  document["model"]["vocab"]["x"] = 2000000000;
  EXPECT_NE(load_error(document).find("the token `x` has the invalid id 2000000000"),
            std::string::npos);
  document["model"].erase("vocab");
  EXPECT_NE(load_error(document).find("`model.vocab`"), std::string::npos);
  document = small_tokenizer();
  document["pre_tokenizer"] = ordered_json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": false}, {"type": "ByteLevel"}]})");
  EXPECT_NE(load_error(document).find("the tokenizer's pattern `(a` is not valid"),
            std::string::npos);
  std::string properties;
  for (int i = 0; i < 100'000; ++i) properties += "\\p{L}";
  document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = properties;
  EXPECT_NE(load_error(document).find("pattern has 500000 bytes"), std::string::npos);
}

TEST(TokenizerDirectory, ReadsBosAndEos) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "tokenizer_directory";
  std::filesystem::create_directories(folder);
  EXPECT_NE(error_of([&] { Tokenizer::from_directory(folder / "none"); }).find("no tokenizer.json"),
            std::string::npos);
  write_file_atomically(folder / "tokenizer.json", small_tokenizer().dump());
  EXPECT_EQ(Tokenizer::from_directory(folder).eos_id(), std::nullopt);
  write_file_atomically(folder / "special_tokens_map.json",
                        R"({"eos_token": "<|end|>", "bos_token": "abc"})");
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"bos_token": {"content": "ab", "lstrip": false}, "eos_token": null})");
  const Tokenizer overruled = Tokenizer::from_directory(folder);
  EXPECT_EQ(overruled.bos_id(), overruled.token_to_id("abc"));
  EXPECT_EQ(overruled.eos_id(), 7);
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"bos_token": {"content": "ab", "lstrip": false}, "eos_token": null,
                            "added_tokens_decoder": {}})");
  const Tokenizer complete = Tokenizer::from_directory(folder);
  EXPECT_EQ(complete.bos_id(), 4);
  EXPECT_EQ(complete.eos_id(), std::nullopt);
  std::filesystem::remove_all(folder);
}

TEST(TokenizerDirectory, AddsTheTokensOfOtherFiles) {  // equal ids on many files are tests/parity's
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "tokenizer_directory_added";
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "tokenizer.json", small_tokenizer().dump());
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"pad_token": "<pad>", "extra_special_tokens": ["<x>", "<|end|>"],
                            "added_tokens_decoder": {"900": {"content": "<old>", "special": false},
                                                     "40": {"content": "b", "special": true}}})");
  write_file_atomically(folder / "added_tokens.json", R"({"<not read>": 10})");
  const Tokenizer tokenizer = Tokenizer::from_directory(folder);
  EXPECT_EQ(tokenizer.vocab_size(), 11);  // whatever ids the files state
  EXPECT_EQ(tokenizer.encode("<old><pad><x>ab<|end|>", false), Ids({8, 9, 10, 0, 1, 7}));
  EXPECT_TRUE(tokenizer.is_special(1));
  EXPECT_FALSE(tokenizer.is_special(8));
  const Tokenizer written = Tokenizer::from_json(tokenizer.to_json(), "written");
  EXPECT_EQ(written.encode("<old><pad><x>ab<|end|>", false), Ids({8, 9, 10, 0, 1, 7}));
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"added_tokens_decoder": {"x": {"content": "<old>"}}})");
  EXPECT_NE(error_of([&] { Tokenizer::from_directory(folder); }).find("the invalid entry `x`"),
            std::string::npos);
  std::filesystem::remove_all(folder);
}

GgufVocab small_gguf() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "smollm";
  vocab.tokens = {"<s>", "<u>", "a", "b", "1", "2", "Ġ", "ab", "12"};
  vocab.token_types = {3, 4, 1, 1, 1, 1, 1, 1, 1};
  vocab.merges = {"a b", "1 2"};
  vocab.bos = vocab.eos = 0;
  return vocab;
}

TEST(TokenizerGguf, ReadsVocabularyAndPreTokenizer) {
  GgufVocab vocab = small_gguf();
  const Tokenizer digits_apart = Tokenizer::from_gguf(vocab, "m.gguf");
  EXPECT_EQ(digits_apart.encode("ab12<s>a<u>", true), Ids({7, 4, 5, 0, 2, 1}));
  EXPECT_EQ(digits_apart.decode(Ids{0, 1, 7}, true), "<u>ab");
  EXPECT_EQ(digits_apart.bos_id(), 0);
  vocab.add_bos = vocab.add_eos = true;
  vocab.pre = "gpt-2";
  const Tokenizer together = Tokenizer::from_gguf(vocab, "m.gguf");
  EXPECT_EQ(together.encode("ab 12", true), Ids({0, 7, 6, 8, 0}));
  EXPECT_EQ(together.encode("ab 12", false), Ids({7, 6, 8}));
  EXPECT_EQ(Tokenizer::from_json(together.to_json(), "written").encode("ab 12", true),
            Ids({0, 7, 6, 8, 0}));
}

TEST(TokenizerGguf, KnowsPreTokenizersByName) {
  GgufVocab vocab = small_gguf();
  vocab.tokens.push_back("B");  // 9
  vocab.tokens.push_back("aB");
  vocab.token_types.insert(vocab.token_types.end(), {1, 1});
  vocab.merges.push_back("a B");
  const auto ids = [&](const char* pre) {
    vocab.pre = pre;
    return Tokenizer::from_gguf(vocab, "m.gguf").encode("aB12", false);
  };
  for (const char* pre : {"default", "llama-bpe", "gpt-4o", "llama4", "falcon", "deepseek-v3",
                          "bloom", "dbrx", "olmo", "mpt"})
    EXPECT_EQ(ids(pre).back(), 8) << pre;  // both digits together
  for (const char* pre : {"qwen2", "qwen35", "tekken", "smollm", "refact", "starcoder",
                          "deepseek-coder", "seed-coder", "bailingmoe"})
    EXPECT_EQ(ids(pre).back(), 5) << pre;
  EXPECT_EQ(ids("qwen35"), Ids({10, 4, 5}));
  EXPECT_EQ(ids("tekken"), Ids({2, 9, 4, 5}));  // a capital begins a word
  EXPECT_EQ(ids("gpt-4o"), Ids({2, 9, 8}));
}

TEST(TokenizerGguf, ReadsPiecesWithMergesAndUnigram) {
  GgufVocab vocab;
  vocab.model = "gemma4";
  vocab.tokens = {"<unk>", "<bos>", "\u2581", "a", "b", "\u2581a", "<0x63>", "\n\n"};
  vocab.token_types = {2, 3, 1, 1, 1, 1, 6, 4};
  vocab.merges = {"\u2581 a"};
  vocab.unk = 0;
  vocab.bos = 1;
  vocab.add_bos = true;
  EXPECT_EQ(Tokenizer::from_gguf(vocab, "m.gguf").encode("b a\n\ncz", true),
            Ids({1, 4, 5, 7, 6, 0}));
  vocab.model = "t5";
  EXPECT_NE(error_of([&] { Tokenizer::from_gguf(vocab, "m.gguf"); }).find("8 tokens but 0 scores"),
            std::string::npos);
  vocab.scores = {0, 0, -3, -1, -1, -2, 0, 0};
  vocab.add_bos = false;
  EXPECT_EQ(Tokenizer::from_gguf(vocab, "m.gguf").encode(" a  b ", true), Ids({5, 2, 4}));
}

TEST(TokenizerGguf, RefusesUnsupportedVocabularies) {
  const auto error = [](auto&& change) {
    GgufVocab vocab = small_gguf();
    change(vocab);
    return error_of([&] { Tokenizer::from_gguf(vocab, "m.gguf"); });
  };
  EXPECT_NE(error([](GgufVocab& v) {
              v.model = "bert";
            }).find("the GGUF tokenizer model `bert` is not supported"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) {
              v.model = "llama";
              v.scores = {0.0F};
            }).find("tokens but 1 scores"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) {
              v.model = "llama";
              v.scores.assign(v.tokens.size(), -1.0F);
              v.scores[3] = std::numeric_limits<float>::quiet_NaN();
            }).find("the score of token 3 is NaN or infinite"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) { v.unk = 99; }).find("tokenizer.ggml.unknown_token_id is 99"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) { v.pre = "nonesuch"; }).find("`nonesuch` is not supported"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) { v.pre = ""; }).find("does not name its pre-tokenizer"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) { v.merges[1] = "12"; }).find("merge 2 (`12`)"),
            std::string::npos);
  EXPECT_NE(error([](GgufVocab& v) { v.bos = 9; }).find("tokenizer.ggml.bos_token_id is 9"),
            std::string::npos);
  EXPECT_NE(
      error([](GgufVocab& v) { v.token_types.pop_back(); }).find("9 tokens but 8 token types"),
      std::string::npos);
}

}  // namespace
}  // namespace sftrun::tokenizer
