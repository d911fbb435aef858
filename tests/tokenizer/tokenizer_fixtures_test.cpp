// Against the `tokenizers` library's answers (scripts/fixtures/make_tokenizers.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/core/file.h"
#include "sftrun/tokenizer/tokenizer.h"

namespace sftrun::tokenizer {
namespace {

using nlohmann::json;

struct Fixture {
  Tokenizer tokenizer;
  std::vector<json> strings, decoded;
};

Fixture load_fixture(const std::string& name) {
  const std::string stem = std::string(SFTRUN_TEST_DATA) + "/text/" + name;
  Fixture fixture{Tokenizer::from_json(read_text_file(stem + ".tokenizer.json"), stem), {}, {}};
  std::ifstream file(stem + ".expected.jsonl");
  std::string line;
  std::getline(file, line);
  const json head = json::parse(line);
  while (std::getline(file, line)) {
    json entry = json::parse(line);
    (entry[0].is_string() ? fixture.strings : fixture.decoded).push_back(std::move(entry));
  }
  EXPECT_EQ(fixture.strings.size(), head.at("strings").get<size_t>());
  EXPECT_EQ(fixture.decoded.size(), head.at("decoded").get<size_t>());
  return fixture;
}

class TokenizerFixtures : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerFixtures, IdsEqualTheLibrarys) {
  const Fixture fixture = load_fixture(GetParam());
  for (int round = 0; round < 2; ++round) {  // the second one finds its words in the cache
    for (const json& entry : fixture.strings) {
      EXPECT_EQ(fixture.tokenizer.encode(entry[0].get<std::string>(), false),
                entry[1].get<std::vector<TokenId>>())
          << entry[0];
    }
  }
}

TEST_P(TokenizerFixtures, DecodedTextEqualsTheLibrarys) {
  const Fixture fixture = load_fixture(GetParam());
  for (const json& entry : fixture.decoded) {
    const auto ids = entry[0].get<std::vector<TokenId>>();
    EXPECT_EQ(fixture.tokenizer.decode(ids, false), entry[1].get<std::string>()) << entry[0];
    EXPECT_EQ(fixture.tokenizer.decode(ids, true), entry[2].get<std::string>()) << entry[0];
  }
}

TEST_P(TokenizerFixtures, SpansBelongToTheSameIds) {
  const Fixture fixture = load_fixture(GetParam());
  for (const json& entry : fixture.strings) {
    const auto text = entry[0].get<std::string>();
    const Encoding encoding = fixture.tokenizer.encode_with_spans(text, false);
    EXPECT_EQ(encoding.ids, entry[1].get<std::vector<TokenId>>()) << text;
    ASSERT_EQ(encoding.ids.size(), encoding.spans.size());
    for (const ByteSpan& span : encoding.spans) {
      EXPECT_LE(span.begin, span.end) << text;
      EXPECT_LE(span.end, text.size()) << text;
    }
  }
}

TEST_P(TokenizerFixtures, WrittenTokenizerBehavesTheSame) {
  const Fixture fixture = load_fixture(GetParam());
  const std::string written = fixture.tokenizer.to_json();
  const Tokenizer again = Tokenizer::from_json(written, "written");
  EXPECT_EQ(again.to_json(), written);
  EXPECT_EQ(again.vocab_size(), fixture.tokenizer.vocab_size());
  for (const json& entry : fixture.strings) {
    const auto text = entry[0].get<std::string>();
    EXPECT_EQ(again.encode(text, true), fixture.tokenizer.encode(text, true)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerFixtures,
                         testing::Values("gpt2", "llama3", "qwen2", "smollm", "odd", "between",
                                         "llama2", "gemma", "metaspace", "words", "unigram", "bert",
                                         "word_level", "clip", "scripts"),
                         [](const auto& info) { return info.param; });

/// Without normalising, removing and missing bytes, the spans are the text: no gap, no overlap, the
/// token's own bytes.
class TokenizerTiling : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerTiling, SpansCoverTheTextByteForByte) {
  const Fixture fixture = load_fixture(GetParam());
  for (const json& entry : fixture.strings) {
    const auto text = entry[0].get<std::string>();
    const Encoding encoding = fixture.tokenizer.encode_with_spans(text, false);
    uint32_t end = 0;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const ByteSpan span = encoding.spans[i];
      EXPECT_EQ(span.begin, end) << text;
      EXPECT_EQ(text.substr(span.begin, span.end - span.begin),
                fixture.tokenizer.token_bytes(encoding.ids[i], false))
          << text;
      end = span.end;
    }
    EXPECT_EQ(end, text.size()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerTiling, testing::Values("gpt2", "llama3"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sftrun::tokenizer
