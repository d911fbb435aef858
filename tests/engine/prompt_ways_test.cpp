#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "../../src/data/fit.h"
#include "../../src/engine/question.h"
#include "data/toy_model.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/sequence.h"
#include "sftrun/serve/completion_request.h"
#include "support/served_tiny.h"

/// A prompt has the same tokens wherever it comes in, whatever the tokenizer's post-processor puts
/// around texts: train and preview, eval, score, generate and chat, serve.
namespace sftrun::engine {
namespace {

using data::Json;
using data::RecordFormat;
using Tokens = std::vector<int32_t>;

/// Whether the post-processor adds BOS, and EOS.
class PromptWays : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  data::TextModel text_ = test::toy_model(test::kChatMl, /*adds_bos=*/std::get<0>(GetParam()),
                                          /*adds_eos=*/std::get<1>(GetParam()));

  Tokens with_bos(const std::string& bytes) const {
    Tokens tokens(bytes.begin(), bytes.end());
    if (std::get<0>(GetParam())) tokens.insert(tokens.begin(), test::kBos);
    return tokens;
  }

  data::Sequence sequence(const Json& record, RecordFormat format, bool append_eos) const {
    return data::SequenceBuilder(format, text_, {.append_eos = append_eos})
        .build(record, "f.jsonl:1")
        .at(0);
  }
  static Tokens before_labels(const data::Sequence& sequence) {
    const auto first = std::find(sequence.mask.begin(), sequence.mask.end(), 1);
    return {sequence.ids.begin(), sequence.ids.begin() + (first - sequence.mask.begin())};
  }
  Tokens trained(const Json& record, RecordFormat format) const {
    return before_labels(sequence(record, format, /*append_eos=*/true));
  }
  Tokens scored(const Json& record, RecordFormat format) const {
    return before_labels(sequence(record, format, /*append_eos=*/false));
  }
  Tokens evaluated(const Json& record, RecordFormat format) const {
    constexpr int64_t kMaxSeqLen = 1000;
    const auto store = data::ExampleStore::in_memory(
        {data::to_example(sequence(record, format, true), kMaxSeqLen, 0)});
    return question_of(store, 0, *text_.tokenizer).value().prompt.ids;
  }
  Tokens generated(const Json& record, bool chat) const {
    return data::PromptBuilder(text_, chat).build(record, "--prompt").ids;
  }
  serve::ServedModel served() {
    return {"toy", text_, *tiny_.decoder, tiny_.checkpoint->arch().max_position_embeddings};
  }

  serve::ServedTiny tiny_;
};

TEST_P(PromptWays, OfTexts) {
  const Json record = {{"prompt", "ab"}, {"completion", "c"}};
  const Tokens expected = with_bos("ab");
  EXPECT_EQ(trained(record, RecordFormat::kPromptCompletion), expected);
  EXPECT_EQ(scored(record, RecordFormat::kPromptCompletion), expected);
  EXPECT_EQ(evaluated(record, RecordFormat::kPromptCompletion), expected);
  EXPECT_EQ(generated({{"prompt", "ab"}}, /*chat=*/false), expected);
  EXPECT_EQ(generated({{"text", "ab"}}, /*chat=*/true), expected);
  EXPECT_EQ(serve::parse_completion({{"prompt", "ab"}}, served()).prompts.at(0), expected);
  Tokens whole = with_bos("abc");
  EXPECT_EQ(sequence(record, RecordFormat::kPromptCompletion, /*append_eos=*/false).ids, whole);
  whole.push_back(test::kEos);
  EXPECT_EQ(sequence(record, RecordFormat::kPromptCompletion, /*append_eos=*/true).ids, whole);
}

TEST_P(PromptWays, OfConversations) {
  const Json question = {{"role", "user"}, {"content", "q"}};
  const Json asked = {{"messages", Json::array({question})}};
  Json record = asked;
  record["messages"].push_back({{"role", "assistant"}, {"content", "a"}});
  const Tokens expected = text_.tokenizer->encode(
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n", /*add_special_tokens=*/false);
  EXPECT_EQ(trained(record, RecordFormat::kMessages), expected);
  EXPECT_EQ(scored(record, RecordFormat::kMessages), expected);
  EXPECT_EQ(evaluated(record, RecordFormat::kMessages), expected);
  EXPECT_EQ(generated(asked, /*chat=*/true), expected);
  EXPECT_EQ(generated({{"prompt", "q"}}, /*chat=*/true), expected);
  EXPECT_EQ(serve::parse_chat(asked, served(), {.chat_tokens = 1}).prompts.at(0), expected);
}

INSTANTIATE_TEST_SUITE_P(PostProcessors, PromptWays,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace sftrun::engine
