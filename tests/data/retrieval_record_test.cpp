#include <gtest/gtest.h>

#include "../../src/data/fit.h"
#include "sftrun/core/error.h"
#include "sftrun/data/record_error.h"
#include "sftrun/data/retrieval.h"
#include "sftrun/data/sequence.h"
#include "support/expect_error.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

constexpr const char* kPlace = "a.jsonl:1";

std::vector<std::string> texts_of(const Json& record, SequenceOptions options = {}) {
  options.form = config::ExampleForm::kRetrieval;
  options.head = config::HeadKind::kEmbedding;
  const RecordFormat format = detect_format(record, kPlace, config::Objective::kEmbed).format;
  EXPECT_EQ(format, RecordFormat::kRetrieval);
  std::vector<std::string> texts;
  for (const Sequence& sequence :
       SequenceBuilder(format, test::toy_model(), options).build(record, kPlace)) {
    EXPECT_EQ(sequence.mask, std::vector<uint8_t>(sequence.ids.size(), 1));
    texts.push_back(sequence.text);
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(RetrievalRecords, LayoutsOfSentenceTransformersAndFlagEmbedding) {
  EXPECT_EQ(texts_of({{"anchor", "a"}, {"positive", "b"}}), (Texts{"a", "b"}));
  EXPECT_EQ(texts_of({{"anchor", "a"}, {"positive", "b"}, {"negative", "c"}}, {.negatives = 1}),
            (Texts{"a", "b", "c"}));
  EXPECT_EQ(texts_of({{"anchor", "a"}, {"positive", "b"}, {"negative_1", "c"}, {"negative_2", "d"}},
                     {.negatives = 2}),
            (Texts{"a", "b", "c", "d"}));
  EXPECT_EQ(texts_of({{"query", "a"}, {"pos", {"b"}}, {"neg", {"c", "d", "e"}}}, {.negatives = 2}),
            (Texts{"a", "b", "c", "d"}));
}

TEST(RetrievalRecords, EachTextThatFitsIsAnExample) {
  EXPECT_EQ(texts_of({{"query", "a"}, {"pos", {"b", "c"}}, {"neg", {"d"}}}, {.negatives = 1}),
            (Texts{"a", "b", "d", "a", "c", "d"}));
}

TEST(RetrievalRecords, PromptsAreBeforeTexts) {
  EXPECT_EQ(texts_of({{"query", "a"}, {"pos", "b"}, {"neg", "c"}},
                     {.negatives = 1, .query_prompt = "find: ", .document_prompt = "text: "}),
            (Texts{"find: a", "text: b", "text: c"}));
}

TEST(RetrievalRecords, ErrorsSayWhatIsMissing) {
  test::expect_error<DataError>(
      [] {
        texts_of({{"text", "a"}});
      },
      {kPlace, "no query and text that fits it", "\"anchor\"", "\"pos\""});
  test::expect_error<DataError>(
      [] {
        texts_of({{"query", "a"}, {"pos", "b"}, {"neg", "c"}}, {.negatives = 2});
      },
      {"1 texts that do not fit", "train.negatives is 2", "set train.negatives to 1"});
  test::expect_error<DataError>(
      [] {
        texts_of({{"query", ""}, {"pos", "b"}});
      },
      {"\"query\" is empty"});
  test::expect_error<DataError>(
      [] {
        texts_of({{"query", "a"}, {"pos", {1, 2}}});
      },
      {"\"pos\" has a value that is no text: 1"});
  test::expect_error<DataError>(
      [] {
        texts_of({{"query", "a"}, {"pos", Json::array()}});
      },
      {"\"pos\" is an empty list"});
}

TEST(RetrievalRecords, OneTextIsEmbedded) {
  const TextModel model = test::toy_model();
  const EmbeddedTexts texts{.query_prompt = "q", .document_prompt = "d", .max_seq_len = 100};
  const auto tokens = [&](const Json& record) {
    return example_to_embed(record, model, texts, kPlace).tokens;
  };
  EXPECT_EQ(tokens({{"query", "a"}}), model.tokenizer->encode("qa", true));
  EXPECT_EQ(tokens({{"anchor", "a"}}), model.tokenizer->encode("qa", true));
  EXPECT_EQ(tokens({{"text", "a"}}), model.tokenizer->encode("da", true));
  const TextModel ending = test::toy_model(test::kChatMl, /*adds_bos=*/true, /*adds_eos=*/true);
  const EmbeddedTexts shorter{.max_seq_len = 4};
  EXPECT_EQ(example_to_embed({{"text", "abcde"}}, ending, shorter, kPlace).tokens,
            (std::vector<int32_t>{test::kBos, 'a', 'b', test::kEos}));
  test::expect_error<DataError>(
      [&] {
        tokens({{"query", "a"}, {"text", "b"}});
      },
      {"a query and another text"});
  test::expect_error<DataError>([&] { tokens({{"other", "a"}}); }, {"no text to embed"});
}

TEST(RetrievalRecords, WhatIsCutKeepsItsEnd) {
  Sequence sequence{
      .ids = {9, 1, 2, 3, 4, 8}, .mask = {1, 1, 1, 1, 1, 1}, .targets = {0}, .num_end_tokens = 1};
  EXPECT_EQ(to_example(sequence, 4, 0).tokens, (std::vector<int32_t>{9, 1, 2, 8}));
  EXPECT_EQ(to_example(sequence, 6, 0).tokens, (std::vector<int32_t>{9, 1, 2, 3, 4, 8}));
  EXPECT_EQ(to_example(sequence, 1, 0).tokens, (std::vector<int32_t>{9}));
  sequence.num_end_tokens = 0;
  EXPECT_EQ(to_example(sequence, 4, 0).tokens, (std::vector<int32_t>{9, 1, 2, 3}));
}

}  // namespace
}  // namespace sftrun::data
