#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "sftrun/data/batch_plan.h"
#include "sftrun/model/stage.h"
#include "sftrun/serve/api.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/scoring_request.h"
#include "support/served_classifier.h"
#include "support/served_tiny.h"

namespace sftrun::serve {
namespace {

spec::ScoreSpec three_classes() {
  return {.num_labels = 3, .names = {"anger", "joy", "surprise"}, .problem_type = {}};
}
spec::ScoreSpec one_score() {
  return {.num_labels = 1, .names = {"LABEL_0"}, .problem_type = {}};
}

/// An API over one model, whose texts are scored on a thread of their own.
class ScoringServer {
 public:
  explicit ScoringServer(const ServedModels& models)
      : scheduler_(models, {.batch_size = 4, .max_waiting = 8, .cache_bytes = 1 << 20}),
        api_(scheduler_, {}),
        runner_([this] { scheduler_.run([this] { return stops_.load(); }); }) {}
  ~ScoringServer() {
    stops_ = true;
    runner_.join();
  }
  ScoringServer(const ScoringServer&) = delete;
  ScoringServer& operator=(const ScoringServer&) = delete;

  HttpResponse post(const std::string& path, const Json& body) {
    return api_.handle({.method = "POST",
                        .path = path,
                        .headers = {{"content-type", "application/json"}, {"host", "localhost"}},
                        .body = body.dump(),
                        .is_connected = [] { return true; }});
  }
  HttpResponse get(const std::string& path) {
    return api_.handle({.method = "GET", .path = path, .headers = {{"host", "localhost"}}});
  }
  Json data(const std::string& path, const Json& body) {
    const HttpResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body).value("data", Json::array());
  }
  /// The parameter that an error names, with its status.
  std::string error(const std::string& path, const Json& body) {
    const HttpResponse response = post(path, body);
    const Json error = Json::parse(response.body)["error"];
    return std::to_string(response.status) + " " +
           (error["param"].is_string() ? error["param"].get<std::string>() : std::string());
  }

 private:
  Scheduler scheduler_;
  Api api_;
  std::atomic<bool> stops_{false};
  std::thread runner_;
};

/// Scores of one packed text, by the pass of training.
std::vector<double> scores_of_training(const ServedClassifier& served,
                                       const std::vector<int32_t>& tokens) {
  data::Example example;
  example.tokens = tokens;
  example.labels.assign(tokens.size(), data::kIgnoreIndex);
  const data::Batch batch =
      data::make_batch(data::ExampleStore::in_memory({example}), {data::Bin{0}}, 0, 1);
  const model::PackedBatch packed =
      model::prepare_batch(batch, served.decoder->rope(), served.decoder->batch_target(), {});
  std::vector<double> scores;
  model::MicroBatchRun run(packed, [&](const at::Tensor& of_head) -> layers::ScoredLoss {
    const at::Tensor own = of_head.to(at::kDouble).cpu().contiguous();
    scores.assign(own.data_ptr<double>(), own.data_ptr<double>() + own.numel());
    return {at::zeros({}, of_head.options().dtype(at::kDouble)), {}};
  });
  const model::Stage stage(*served.decoder);
  stage.forward(run);
  stage.loss(run);
  return scores;
}

void expect_near(const Json& values, const std::vector<double>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(values[i].get<double>(), expected[i], 1e-5) << i;
}

std::vector<int32_t> scored_tokens_of(const ServedClassifier& served, const Json& body) {
  return parse_scoring(body, *find_scoring_task("/classify"), served.model()).texts.prompts.at(0);
}

TEST(ScoringTasks, AreFoundWithAndWithoutTheVersion) {
  EXPECT_EQ(find_scoring_task("/classify")->task, ScoringTask::kClassify);
  EXPECT_EQ(find_scoring_task("/v1/score")->task, ScoringTask::kScore);
  EXPECT_EQ(find_scoring_task("/v1/pooling")->task, ScoringTask::kPool);
  EXPECT_EQ(find_scoring_task("/v1"), nullptr);
  EXPECT_EQ(find_scoring_task("/v2/score"), nullptr);
}

TEST(ScoringTasks, ActivationsFollowTheProblem) {
  const std::vector<float> scores = {1, -2, 0.5F};
  const std::vector<double> softmax = activated(scores, three_classes());
  EXPECT_NEAR(softmax[0] + softmax[1] + softmax[2], 1, 1e-12);
  EXPECT_NEAR(std::log(softmax[0] / softmax[1]), 3, 1e-6);
  spec::ScoreSpec several = three_classes();
  several.problem_type = "multi_label_classification";
  EXPECT_NEAR(activated(scores, several)[1], 1 / (1 + std::exp(2.0)), 1e-7);
  EXPECT_NEAR(activated({2}, one_score())[0], 1 / (1 + std::exp(-2.0)), 1e-7);
  spec::ScoreSpec plain = one_score();
  plain.problem_type = "regression";
  EXPECT_EQ(activated({2}, plain)[0], 2);
}

TEST(Scoring, ClassesAreThoseOfThePassOfTraining) {
  const ServedClassifier served(three_classes());
  ScoringServer server(served.models);
  const Json texts = {"Hello world", "a", "The quick brown fox jumps over the lazy dog", "what is"};
  const Json of_all = server.data("/pooling", {{"input", texts}, {"use_activation", false}});
  for (const char* older : {"activation", "softmax"})  // as vLLM called it before
    EXPECT_EQ(server.data("/pooling", {{"input", texts}, {older, false}}), of_all);
  const Json classes = server.data("/classify", {{"input", texts}});
  ASSERT_EQ(classes.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<double> expected =
        scores_of_training(served, scored_tokens_of(served, {{"input", texts[i]}}));
    expect_near(of_all[i]["data"], expected);
    const size_t largest =
        static_cast<size_t>(std::max_element(expected.begin(), expected.end()) - expected.begin());
    EXPECT_EQ(classes[i]["label"], three_classes().names[largest]);
    EXPECT_EQ(classes[i]["num_classes"], 3);
    EXPECT_EQ(classes[i]["index"], i);
    expect_near(classes[i]["probs"],
                activated({expected.begin(), expected.end()}, three_classes()));
  }
  EXPECT_EQ(Json::parse(server.get("/v1/models").body)["data"][0]["num_classes"], 3);
}

TEST(Scoring, TheScoredTokenIsTheLastButPadding) {
  ServedClassifier served(three_classes());
  const std::optional<int64_t> padding = served.decoder->batch_target().pad_token;
  ASSERT_TRUE(padding) << "the model has no padding token to test with";
  ScoringServer server(served.models);
  const auto pad = static_cast<int32_t>(*padding);
  const std::vector<int32_t> text = {5, 6, 7};
  std::vector<int32_t> padded = text;
  padded.insert(padded.end(), 3, pad);
  const Json both = server.data(
      "/pooling", {{"input", Json::array({text, padded, {pad, pad}})}, {"use_activation", false}});
  expect_near(both[1]["data"], both[0]["data"]);
  expect_near(both[2]["data"], scores_of_training(served, {pad, pad}));
}

TEST(Scoring, PairsArePromptsWithCompletions) {
  const ServedClassifier served(one_score());
  ScoringServer server(served.models);
  const Json scored =
      server.data("/v1/score",
                  {{"text_1", "Hello"}, {"text_2", {" world", " you"}}, {"use_activation", false}});
  const Json whole =
      server.data("/pooling", {{"input", {"Hello world", "Hello you"}}, {"use_activation", false}});
  for (size_t i = 0; i < 2; ++i)
    EXPECT_NEAR(scored[i]["score"].get<double>(), whole[i]["data"][0].get<double>(), 1e-6);
  EXPECT_EQ(scored[1]["object"], "score");
  EXPECT_EQ(server.data("/score", {{"queries", {"a", "b"}}, {"documents", {"c", "d"}}}).size(), 2U);
  EXPECT_EQ(server.error("/score", {{"text_1", {"a", "b"}}, {"text_2", {"c", "d", "e"}}}),
            "400 text_1");
  EXPECT_EQ(server.error("/score", {{"text_1", "a"}}), "400 text_2");
  EXPECT_EQ(server.error("/score", {{"text_1", "a"}, {"text_2", Json::array()}}), "400 text_2");
  EXPECT_EQ(server.error("/score", {{"text_1", "a"}, {"text_2", {"b", 3}}}), "400 text_2[1]");
}

TEST(Scoring, TextsThatOneScoreReadsEndWithEos) {
  const ServedClassifier one(one_score()), three(three_classes());
  const int64_t eos = *one.model().text.tokenizer->eos_id();
  EXPECT_EQ(scored_tokens_of(one, {{"input", "Hello"}}).back(), eos);
  EXPECT_NE(scored_tokens_of(three, {{"input", "Hello"}}).back(), eos);
  EXPECT_EQ(scored_tokens_of(one, {{"input", {5, 6}}}), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(scored_tokens_of(one, {{"input", Json::array({{5, 6}})}}),
            (std::vector<int32_t>{5, 6}));
}

TEST(Scoring, RequestsThatAreRefused) {
  const ServedClassifier served(three_classes());
  ScoringServer server(served.models);
  const Json message = {{"role", "user"}, {"content", "hi"}};
  EXPECT_EQ(server.data("/classify", {{"messages", Json::array({message})}}).size(), 1U);
  const std::vector<std::pair<Json, std::string>> refused = {
      {Json::object(), "400 input"},
      {{{"input", ""}}, "400 input"},
      {{{"input", Json::array()}}, "400 input"},
      {{{"input", {"a", 3}}}, "400 input[1]"},
      {{{"input", {5, "a"}}}, "400 input"},
      {{{"input", {-1}}}, "400 input"},
      {{{"input", std::vector<int32_t>(200, 5)}}, "400 input"},
      {{{"input", std::vector<std::string>(13, "a")}}, "400 "},
      {{{"input", "a"}, {"messages", Json::array({message})}}, "400 messages"},
      {{{"messages", "hi"}}, "400 messages"},
      {{{"input", "a"}, {"use_activation", 1}}, "400 use_activation"},
      {{{"input", "a"}, {"use_activation", true}, {"activation", false}}, "400 activation"},
      {{{"input", "a"}, {"truncate_prompt_tokens", 5}}, "400 truncate_prompt_tokens"},
      {{{"input", "a"}, {"temperature", 1}}, "400 temperature"},
      {{{"input", "a"}, {"model", "other"}}, "404 model"}};
  for (const auto& [body, expected] : refused)
    EXPECT_EQ(server.error("/classify", body), expected) << body.dump();
  const std::string many =
      server.post("/classify", {{"input", std::vector<std::string>(13, "a")}}).body;
  EXPECT_NE(many.find("has 13 texts; at most 12 are allowed"), std::string::npos) << many;
  EXPECT_EQ(server.error("/score", {{"text_1", "a"}, {"text_2", "b"}}), "400 model");
  EXPECT_EQ(server.error("/v1/completions", {{"prompt", "a"}}), "400 model");
  EXPECT_EQ(server.error("/v1/chat/completions", {{"messages", Json::array({message})}}),
            "400 model");
  EXPECT_EQ(server.get("/classify").status, 405);
}

TEST(Scoring, ALanguageModelHasNoScores) {
  const ServedTiny tiny;
  ScoringServer server(tiny.models);
  for (const char* path : {"/classify", "/score", "/v1/pooling"})
    EXPECT_EQ(server.error(path, {{"input", "a"}}), "400 model") << path;
}

}  // namespace
}  // namespace sftrun::serve
