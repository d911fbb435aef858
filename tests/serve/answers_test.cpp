#include "../../src/serve/answers.h"

#include <gtest/gtest.h>

#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

class AnswersTest : public ::testing::Test {
 protected:
  ServedModel& model() { return *tiny_.models.front(); }
  CompletionRequest completion(Json body) {
    body["prompt"] = body.value("prompt", Json("a"));
    return parse_completion(body, model());
  }
  CompletionRequest chat(Json body) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", "hi"}}});
    return parse_chat(body, model(), {});
  }
  Answers answers(const CompletionRequest& request) { return {request, model(), "id-1", 1234}; }
  int32_t token(const std::string& text) {
    return model().text.tokenizer->encode(text, false).at(0);
  }

  static AnswerEvent event(size_t choice, const std::string& text, const std::string& finish = {}) {
    AnswerEvent event;
    event.choice = choice;
    event.text = text;
    event.tokens.resize(1);
    event.finish_reason = finish;
    return event;
  }

  ServedTiny tiny_;
};

TEST_F(AnswersTest, AWholeResponseHasTheChoicesInTheirOrder) {
  const CompletionRequest request = completion({{"n", 2}});
  Answers all = answers(request);
  EXPECT_TRUE(all.add(event(1, "second", "length")).empty());
  EXPECT_FALSE(all.is_complete());
  EXPECT_TRUE(all.add(event(0, "fi")).empty());
  EXPECT_TRUE(all.add(event(0, "rst", "stop")).empty());
  ASSERT_TRUE(all.is_complete());
  const size_t num_prompt = request.prompts[0].size();
  EXPECT_EQ(
      Json::parse(all.whole()),
      Json({{"id", "id-1"},
            {"object", "text_completion"},
            {"created", 1234},
            {"model", "tiny"},
            {"choices",
             {{{"index", 0}, {"text", "first"}, {"logprobs", nullptr}, {"finish_reason", "stop"}},
              {{"index", 1},
               {"text", "second"},
               {"logprobs", nullptr},
               {"finish_reason", "length"}}}},
            {"usage",
             {{"prompt_tokens", num_prompt},
              {"completion_tokens", 3},
              {"total_tokens", num_prompt + 3}}}}));
}

TEST_F(AnswersTest, AnAnswerToAChatIsAMessage) {
  const CompletionRequest request = chat(Json::object());
  Answers one = answers(request);
  one.add(event(0, "hello", "stop"));
  const Json response = Json::parse(one.whole());
  EXPECT_EQ(response["object"], "chat.completion");
  EXPECT_EQ(response["choices"][0]["message"],
            Json({{"role", "assistant"}, {"content", "hello"}, {"refusal", nullptr}}));
}

TEST_F(AnswersTest, AStreamOfAChatBeginsWithTheRoleOfEachChoice) {
  const CompletionRequest request = chat({{"stream", true}, {"n", 2}});
  Answers streamed = answers(request);
  const std::vector<Json> first = streamed.add(event(1, "he"));
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(first[0]["choices"][0]["delta"], Json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(first[1]["choices"][0]["index"], 1);
  EXPECT_EQ(first[1]["choices"][0]["delta"], Json({{"content", "he"}}));
  EXPECT_TRUE(first[1]["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(streamed.add(event(1, "")).empty()) << "a part of a character";
  const std::vector<Json> last = streamed.add(event(1, "", "stop"));
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last[0]["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last[0]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(streamed.add(event(0, "x", "length")).size(), 2U);
  EXPECT_TRUE(streamed.is_complete());
  const Json usage = streamed.usage_chunk();
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4);
}

TEST_F(AnswersTest, AStreamOfTextHasChunksOfTextAlone) {
  const CompletionRequest request = completion({{"stream", true}});
  Answers streamed = answers(request);
  const std::vector<Json> chunks = streamed.add(event(0, "he"));
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0]["object"], "text_completion");
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "he");
}

TEST_F(AnswersTest, AnEchoComesOnceBeforeTheAnswerToItsPrompt) {
  const CompletionRequest request =
      completion({{"prompt", Json::array({"one", "two"})}, {"n", 2}, {"echo", true}});
  Answers echoed = answers(request);
  for (const size_t choice : {0, 1, 2, 3}) {
    echoed.add(event(choice, "-"));
    echoed.add(event(choice, "+", "stop"));
  }
  const Json choices = Json::parse(echoed.whole())["choices"];
  for (const size_t choice : {0, 1, 2, 3})
    EXPECT_EQ(choices[choice]["text"], choice < 2 ? "one-+" : "two-+");
}

TEST_F(AnswersTest, LogProbabilitiesOfAChatHaveEachCandidateWithItsBytes) {
  const CompletionRequest request = chat({{"logprobs", true}, {"top_logprobs", 2}});
  Answers scored = answers(request);
  AnswerEvent one = event(0, "b", "stop");
  const int32_t a = token("a"), b = token("b");
  one.tokens[0].token = b;
  one.tokens[0].logprobs.emplace();
  one.tokens[0].logprobs->logprob = -1.5;
  one.tokens[0].logprobs->top = {{a, -0.5}, {b, -1.5}};
  scored.add(one);
  const Json content = Json::parse(scored.whole())["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 1U);
  EXPECT_EQ(content[0]["token"], "b");
  EXPECT_EQ(content[0]["logprob"], -1.5);
  EXPECT_EQ(content[0]["bytes"], Json::array({'b'}));
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "a");
  EXPECT_EQ(content[0]["top_logprobs"][0]["logprob"], -0.5);
}

TEST_F(AnswersTest, LogProbabilitiesOfATextAreListsThatHaveTheChosenToken) {
  const CompletionRequest request = completion({{"logprobs", 1}, {"prompt", "ab"}, {"echo", true}});
  Answers scored = answers(request);
  AnswerEvent prompt;
  prompt.prompt_scores.resize(request.prompts[0].size() - 1);
  scored.add(prompt);
  AnswerEvent one = event(0, "b", "stop");
  one.tokens[0].token = token("b");
  one.tokens[0].first_char = 0;
  one.tokens[0].logprobs.emplace();
  one.tokens[0].logprobs->logprob = -1.5;
  one.tokens[0].logprobs->top = {{token("a"), -0.5}};
  scored.add(one);
  const Json choice = Json::parse(scored.whole())["choices"][0];
  EXPECT_EQ(choice["text"], "abb");
  const Json& lists = choice["logprobs"];
  const size_t last = request.prompts[0].size();
  ASSERT_EQ(lists["tokens"].size(), last + 1);
  EXPECT_TRUE(lists["token_logprobs"][0].is_null()) << "nothing is before the first token";
  EXPECT_TRUE(lists["top_logprobs"][0].is_null());
  EXPECT_EQ(lists["text_offset"][last], 2) << "behind the echo";
  EXPECT_EQ(lists["tokens"][last], "b");
  EXPECT_EQ(lists["token_logprobs"][last], -1.5);
  EXPECT_EQ(lists["top_logprobs"][last], Json({{"a", -0.5}, {"b", -1.5}}));
}

TEST(DumpedJson, HasNothingThatIsNotUtf8) {
  EXPECT_EQ(dumped({{"a", "x\xFFy"}}), "{\"a\":\"x\xEF\xBF\xBDy\"}");
  EXPECT_EQ(dumped({{"b", 1}, {"a", "日"}}), "{\"b\":1,\"a\":\"日\"}");
}

}  // namespace
}  // namespace sftrun::serve
