#include "sftrun/serve/completion_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "data/toy_vision_model.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/file.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/tokenizer/generated_text.h"
#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

int status_of(const std::function<void()>& parse, std::string* param = nullptr) {
  try {
    parse();
    return 200;
  } catch (const ApiError& error) {
    if (param != nullptr) *param = error.param();
    return error.status();
  }
}

class CompletionRequests : public ::testing::Test {
 protected:
  CompletionRequest completion(const Json& body) const {
    return parse_completion(body, *tiny_.models.front());
  }
  CompletionRequest chat(const Json& body) const {
    return parse_chat(body, *tiny_.models.front(), {.chat_tokens = 50});
  }
  ServedTiny tiny_;
};

TEST_F(CompletionRequests, CompletionHasOpenAisDefaults) {
  const CompletionRequest request = completion({{"model", "tiny"}, {"prompt", "Hello"}});
  EXPECT_EQ(request.sampling.max_new_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_EQ(request.num_choices, 1);
  EXPECT_FALSE(request.num_logprobs);
  EXPECT_FALSE(request.stream);
  EXPECT_EQ(request.prompt_texts, std::vector<std::string>{"Hello"});
}

TEST_F(CompletionRequests, EveryFormOfPrompt) {
  const std::vector<int32_t> hello = completion({{"prompt", "Hello"}}).prompts.at(0);
  EXPECT_EQ(completion({{"prompt", hello}}).prompts, std::vector<std::vector<int32_t>>{hello});
  EXPECT_EQ(completion({{"prompt", {"Hello", "Hello"}}}).prompts,
            (std::vector<std::vector<int32_t>>{hello, hello}));
  EXPECT_EQ(completion({{"prompt", Json::array({hello, {1, 2}})}}).prompts,
            (std::vector<std::vector<int32_t>>{hello, {1, 2}}));
  EXPECT_EQ(completion({{"prompt", hello}}).prompt_texts.at(0), "Hello");
}

TEST_F(CompletionRequests, NullCountsAsAbsent) {
  const CompletionRequest request = completion(
      {{"prompt", "a"}, {"temperature", nullptr}, {"logprobs", nullptr}, {"stop", nullptr}});
  EXPECT_EQ(request.sampling.temperature, 1);
}

TEST_F(CompletionRequests, ChatTakesWhatTheContextLeavesUpToTheDefault) {
  const Json messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
  EXPECT_EQ(chat({{"messages", messages}}).sampling.max_new_tokens, 50);
  EXPECT_EQ(chat({{"messages", messages}, {"max_completion_tokens", 7}, {"max_tokens", 9}})
                .sampling.max_new_tokens,
            7);
  std::string param;
  EXPECT_EQ(status_of([&] { chat({{"messages", messages}, {"max_tokens", 128}}); }, &param), 400);
}

// OpenAI's content parts. A client must not read files of this machine, nor let it follow URLs, and an image that
// cannot be decoded must not reach the passes, where it would end other answers.
TEST_F(CompletionRequests, ImagesComeWithTheRequest) {
  const ServedModel model("vision", test::toy_vision_model(), tiny_.models.front()->decoder, 4096);
  const std::string file =
      read_text_file(std::filesystem::path(SFTRUN_TEST_DATA) / "images/resize-37x29.png");
  const auto asked = [&](const std::string& url) {
    const Json content = {{{"type", "image_url"}, {"image_url", {{"url", url}}}},
                          {{"type", "text"}, {"text", "What is it?"}}};
    const Json messages = Json::array({{{"role", "user"}, {"content", content}}});
    return parse_chat({{"messages", messages}}, model, {.chat_tokens = 50});
  };
  const std::string encoding = "data:image/png;base64,";
  const CompletionRequest request = asked(encoding + encode_base64(file));
  ASSERT_EQ(request.prompt_images.at(0).size(), 1U);
  const data::SequenceMedia& image = request.prompt_images[0][0];
  EXPECT_EQ(image.width, 37);
  EXPECT_EQ(std::count(request.prompts[0].begin(), request.prompts[0].end(), test::kImagePad),
            image.num_tokens);
  for (const std::string& refused :
       {std::string("/etc/hostname"), std::string("images/resize-37x29.png"),
        std::string("file:///etc/hostname"), std::string("https://example.com/a.png"),
        encoding + "AAAA", encoding + encode_base64(file.substr(0, file.size() / 2))})
    EXPECT_EQ(status_of([&] { asked(refused); }), 400) << refused.substr(0, 40);
}

TEST_F(CompletionRequests, ADeveloperIsTheSystem) {
  const auto tokens = [&](const char* role) {
    return chat({{"messages", Json::array({{{"role", role}, {"content", "Be brief."}},
                                           {{"role", "user"}, {"content", "hi"}}})}})
        .prompts.at(0);
  };
  EXPECT_EQ(tokens("developer"), tokens("system"));
}

TEST_F(CompletionRequests, LogprobsOfAllAnswersTogetherAreLimited) {
  Json body = {{"prompt", std::vector<std::string>(100, "a")}, {"n", 128}, {"max_tokens", 100}};
  body["logprobs"] = 0;
  EXPECT_EQ(completion(body).num_choices, 128);
  body["logprobs"] = 20;
  std::string param;
  EXPECT_EQ(status_of([&] { completion(body); }, &param), 400);
  EXPECT_EQ(param, "logprobs");
}

TEST_F(CompletionRequests, WhatIsWrongIsNamed) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"prompt", "a"}, {"temperature", "hot"}}, "temperature"},
      {{{"prompt", "a"}, {"temperature", -1}}, "temperature"},
      {{{"prompt", "a"}, {"n", 1.5}}, "n"},
      {{{"prompt", "a"}, {"n", 0}}, "n"},
      {{{"prompt", "a"}, {"max_tokens", 0}}, "max_tokens"},
      {{{"prompt", "a"}, {"max_tokens", 1000}}, "max_tokens"},
      {{{"prompt", "a"}, {"logprobs", 21}}, "logprobs"},
      {{{"prompt", "a"}, {"echo", "yes"}}, "echo"},
      {{{"prompt", "a"}, {"stop", {"x", ""}}}, "stop"},
      {{{"prompt", "a"}, {"stop", std::string(tokenizer::kMaxStopBytes + 1, 'x')}}, "stop"},
      {{{"prompt", "a"}, {"best_of", 3}}, "best_of"},
      {{{"prompt", "a"}, {"suffix", "z"}}, "suffix"},
      {{{"prompt", "a"}, {"logit_bias", {{"5", 1}}}}, "logit_bias"},
      {{{"prompt", "a"}, {"stream_options", {{"usage", true}}}}, "usage"},
      {{{"prompt", "a"}, {"tempreature", 1}}, "tempreature"},
      {{{"prompt", Json::array()}}, "prompt"},
      {{{"prompt", {1, 1000000}}}, "prompt"},
      {{{"prompt", 5}}, "prompt"},
      {Json::object(), "prompt"}};
  for (const auto& [body, name] : cases) {
    std::string param;
    EXPECT_EQ(status_of([&, &text = body] { completion(text); }, &param), 400) << body;
    EXPECT_EQ(param, name) << body;
  }
  EXPECT_EQ(status_of([&] { completion({{"prompt", "a"}, {"frequency_penalty", 0}}); }), 200);
}

TEST(RequestBody, MustBeAnObjectOfModestSize) {
  EXPECT_EQ(parse_body(R"({"a": 1})").at("a"), 1);
  for (const std::string& text :
       {std::string("{"), std::string("[]"), std::string(),
        "{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}"})
    EXPECT_EQ(status_of([&] { parse_body(text); }), 400) << text.substr(0, 20);
}

}  // namespace
}  // namespace sftrun::serve
