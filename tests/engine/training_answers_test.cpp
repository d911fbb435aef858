#include "training_answers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "answer_scores.h"
#include "memory_advice.h"
#include "session.h"
#include "support/expect_error.h"
#include "support/reference.h"
#include "support/single_strategy.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

/// Examples whose second half is the answer.
data::Dataset questions() {
  std::vector<data::Example> examples = test::read_reference(test::kModels / "tied-gqa").examples;
  for (data::Example& example : examples)
    for (size_t i = 0; i < example.labels.size() / 2; ++i) example.labels[i] = data::kIgnoreIndex;
  return {data::ExampleStore::in_memory(examples), {}, {}, "v"};
}

class TrainingAnswersTest : public ::testing::Test {
 protected:
  TrainingAnswersTest() {
    config_.tuning.lora.r = 4;
    config_.train.generation_max_new_tokens = 6;
    config_.train.generation_batch_size = 1;
    checkpoint_ = weights::Checkpoint::open(test::kModels / "tied-gqa");
    text_.emplace(text_model_of(*checkpoint_, ""));
    decoder_ = load_decoder(checkpoint_,
                            decoder_options(config_, {at::kCPU, at::kFloat}, checkpoint_.get()));
    strategy_ = test::single_strategy(*decoder_);
  }
  TrainingAnswers answers() {
    return TrainingAnswers({.config = config_.train,
                            .text = *text_,
                            .val = val_,
                            .model = {.decoder = *decoder_,
                                      .groups = groups_,
                                      .strategy = *strategy_,
                                      .shards_weights = false,
                                      .rank = rank_}});
  }

  config::RunConfig config_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  std::optional<data::TextModel> text_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::Strategy> strategy_;
  data::Dataset val_ = questions();
  Rank rank_;
  parallel::MeshGroups groups_{rank_.comm(), parallel::Mesh::replicated(1, 0)};
};

TEST_F(TrainingAnswersTest, ScoresAnAnswerForEachPrompt) {
  const int64_t examples = val_.examples().size();
  ASSERT_GE(examples, 2);
  const train::AnswerEvaluation evaluation = answers().evaluate(4, INFINITY);
  ASSERT_TRUE(evaluation.scores);
  EXPECT_EQ(evaluation.scores->num_answers, examples);
  EXPECT_GT(evaluation.seconds, 0);
  // The same as each prompt alone.
  MeanAnswerScores alone;
  const TextGenerator generator(*text_, {.max_new_tokens = 6}, {});
  for (int64_t i = 0; i < examples; ++i) {
    const auto question = question_of(val_.examples(), i, *text_->tokenizer);
    ASSERT_TRUE(question);
    bool is_asked = false;
    generator.run(*decoder_, 1,
                  {.next_prompt = [&]() -> std::optional<model::Prompt> {
                     if (std::exchange(is_asked, true)) return std::nullopt;
                     return model::Prompt{0, question->prompt.ids, 0};
                   },
                   .on_answer =
                       [&](size_t, Answer&& answer) {
                         alone.add(score_answer(question->reference, answer.text));
                         EXPECT_NE(evaluation.samples.find(answer.text), std::string::npos);
                       }});
  }
  EXPECT_EQ(evaluation.scores->rouge1, alone.mean().rouge1);
  EXPECT_EQ(evaluation.scores->rouge_l, alone.mean().rouge_l);
  EXPECT_EQ(evaluation.scores->exact_match, alone.mean().exact_match);
}

TEST_F(TrainingAnswersTest, OnlyTheFirstExamplesIfSoAsked) {
  config_.train.generation_max_samples = 1;
  EXPECT_EQ(answers().evaluate(4, INFINITY).scores.value().num_answers, 1);
}

TEST_F(TrainingAnswersTest, WithoutExamplesWhoseImagesCannotBeRead) {
  const int64_t all = answers().evaluate(4, INFINITY).scores.value().num_answers;
  TrainingAnswers fewer = answers();
  EXPECT_EQ(fewer.evaluate(6, INFINITY, {0}).scores.value().num_answers, all - 1);
  EXPECT_EQ(fewer.evaluate(8, INFINITY).scores.value().num_answers, all - 1);
  config_.train.generation_max_samples = 1;
  EXPECT_FALSE(answers().evaluate(10, INFINITY, {0}).scores);
}

TEST_F(TrainingAnswersTest, WithoutTimeTheLossOnly) {
  TrainingAnswers limited = answers();
  // How long an answer takes is not known yet: the first one is tried.
  const train::AnswerEvaluation tried = limited.evaluate(4, 0);
  EXPECT_FALSE(tried.scores);
  EXPECT_EQ(tried.stop_exit_code, 0);
  EXPECT_GT(tried.seconds, 0);
  const train::AnswerEvaluation refused = limited.evaluate(8, 0);
  EXPECT_FALSE(refused.scores);
  EXPECT_EQ(refused.seconds, 0);
  EXPECT_TRUE(limited.evaluate(12, INFINITY).scores);
}

TEST_F(TrainingAnswersTest, ShowTheAnswersBeforeTheFirstStep) {
  TrainingAnswers whole = answers();
  EXPECT_NE(whole.evaluate(0, INFINITY).samples.find("answer before the first step"),
            std::string::npos);
  EXPECT_EQ(answers().evaluate(2, INFINITY).samples.find("answer before the first step"),
            std::string::npos);
}

TEST_F(TrainingAnswersTest, TextsHaveNoAnswers) {
  val_ = {data::ExampleStore::in_memory(test::read_reference(test::kModels / "tied-gqa").examples),
          {},
          {},
          "v"};
  EXPECT_FALSE(answers().evaluate(4, INFINITY).scores);
  config_.train.metric_for_best_model = "eval_rouge_l";
  test::expect_error([&] { answers(); }, {"no validation example has a prompt", "eval_rouge_l"});
}

}  // namespace
}  // namespace sftrun::engine
