#include "completion_server.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace sftrun::engine {
namespace {

using Body = nlohmann::ordered_json;

constexpr int64_t kServedVocab = 100;
const std::vector<int32_t> kServedPrompt = {5, 6, 7};
const AskedCompletion kServedAsked{.model = "adapter", .prompt = kServedPrompt, .max_tokens = 4};

Body choice() {
  return {{"index", 0},
          {"text", "x"},
          {"token_ids", {1, 2, 99}},
          {"prompt_token_ids", kServedPrompt},
          {"logprobs", {{"token_logprobs", {-0.5, -1.25, -0.0}}}},
          {"finish_reason", "stop"},
          {"stop_reason", nullptr}};
}

std::string fault_of(const Body& changed) {
  ServedCompletion completion;
  return read_completion(Body({{"choices", Body::array({changed})}}).dump(), kServedAsked,
                         kServedVocab, completion);
}

/// The fault of a response in which one value is another.
std::string fault_with(const std::string& key, const Body& value) {
  Body changed = choice();
  changed[key] = value;
  return fault_of(changed);
}

std::string fault_without(const std::string& key) {
  Body changed = choice();
  changed.erase(key);
  return fault_of(changed);
}

TEST(CompletionServer, ReadsAnAnswer) {
  ServedCompletion completion;
  const std::string body = Body({{"choices", Body::array({choice()})}}).dump();
  EXPECT_EQ(read_completion(body, kServedAsked, kServedVocab, completion), "");
  EXPECT_EQ(completion.token_ids, (std::vector<int32_t>{1, 2, 99}));
  EXPECT_EQ(completion.logprobs, (std::vector<float>{-0.5F, -1.25F, 0.0F}));
  EXPECT_TRUE(completion.stopped);
  Body cut = choice();
  cut["finish_reason"] = "length";
  EXPECT_EQ(read_completion(Body({{"choices", Body::array({cut})}}).dump(), kServedAsked,
                            kServedVocab, completion),
            "");
  EXPECT_FALSE(completion.stopped);
}

TEST(CompletionServer, NamesWhatIsWrongWithAnAnswer) {
  EXPECT_NE(fault_without("token_ids").find("without \"token_ids\""), std::string::npos);
  EXPECT_NE(fault_without("prompt_token_ids").find("without \"prompt_token_ids\""),
            std::string::npos);
  EXPECT_NE(fault_without("logprobs").find("without log-probabilities"), std::string::npos);
  EXPECT_NE(fault_without("finish_reason").find("finish_reason"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, 100, 2}).find("the token 100"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, -1, 2}).find("the token -1"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, 2.5, 2}).find("the token 2.5"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, "2", 3}).find("the token \"2\""), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, 9223372036854775807, 3}).find("the token 92"),
            std::string::npos);
  EXPECT_NE(fault_with("token_ids", "1").find("no list"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", Body::array()).find("0 tokens"), std::string::npos);
  EXPECT_NE(fault_with("token_ids", {1, 2, 3, 4, 5}).find("5 tokens"), std::string::npos);
  EXPECT_NE(fault_with("prompt_token_ids", {5, 6}).find("another prompt"), std::string::npos);
  EXPECT_NE(fault_with("prompt_token_ids", {5, 6, 8}).find("another prompt"), std::string::npos);
  EXPECT_NE(fault_with("finish_reason", "abort").find("abort"), std::string::npos);
  EXPECT_NE(fault_with("finish_reason", nullptr).find("finish_reason null"), std::string::npos);
  const auto with_logprobs = [](const Body& list) {
    return fault_with("logprobs", {{"token_logprobs", list}});
  };
  EXPECT_NE(with_logprobs({-1, -1}).find("2 log-probabilities of 3 tokens"), std::string::npos);
  EXPECT_NE(with_logprobs({-1, nullptr, -1}).find("log-probability null"), std::string::npos);
  EXPECT_NE(with_logprobs({-1, "NaN", -1}).find("log-probability \"NaN\""), std::string::npos);
  EXPECT_NE(with_logprobs({-1, 0.5, -1}).find("log-probability 0.5"), std::string::npos);
  EXPECT_NE(with_logprobs({-1, -1e300, -1}).find("log-probability -1e+300"), std::string::npos);
  EXPECT_NE(with_logprobs(nullptr).find("without log-probabilities"), std::string::npos);
}

TEST(CompletionServer, OtherBodiesAreNoAnswers) {
  ServedCompletion completion;
  for (const std::string body :
       {"<html><body>502 Bad Gateway</body></html>", "", "null", "[]", "{}", "{\"choices\": []}",
        "{\"choices\": {}}", "{\"choices\": [1, 2]}", "{\"choices\": [1]}", "{\"choices\": [null]}",
        "{\"choices\": [{\"token_ids\": [1], \"logprobs\": {\"token_logprobs\": [NaN]}}]}",
        "\xff\xfe"})
    EXPECT_NE(read_completion(body, kServedAsked, kServedVocab, completion), "") << body;
  EXPECT_NE(read_completion(std::string(100000, '['), kServedAsked, kServedVocab, completion), "");
}

TEST(CompletionServer, ReadsTheModels) {
  std::vector<ListedModel> models;
  EXPECT_EQ(read_models(R"({"object": "list", "data": [
      {"id": "base", "root": "/models/Qwen3-0.6B", "max_model_len": 4096},
      {"id": "adapter", "root": "/runs/a", "parent": "base", "max_model_len": null}]})",
                        models),
            "");
  ASSERT_EQ(models.size(), 2U);
  EXPECT_EQ(models[0].max_length, 4096);
  EXPECT_EQ(models[1].max_length, std::nullopt);
  EXPECT_EQ(find_listed(models, "base"), &models[0]);
  EXPECT_EQ(find_listed(models, "/models/Qwen3-0.6B"), &models[0]);
  EXPECT_EQ(find_listed(models, "Qwen/Qwen3-0.6B"), &models[0]);
  EXPECT_EQ(find_listed(models, "Qwen/Qwen3-8B"), nullptr);
  for (const char* body :
       {"<html>", "{}", R"({"data": 1})", R"({"data": [{}]})", R"({"data": [3]})"}) {
    models.clear();
    EXPECT_NE(read_models(body, models), "") << body;
  }
}

}  // namespace
}  // namespace sftrun::engine
