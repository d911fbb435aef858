#include "sftrun/config/answers_line.h"

#include <gtest/gtest.h>

namespace sftrun::config {
namespace {

TEST(AnswersLine, SaysWhoWritesHowMany) {
  TrainConfig train;
  EXPECT_EQ(answers_line(train), "");
  train.objective = Objective::kGrpo;
  EXPECT_EQ(answers_line(train), "") << "answers of the data";
  train.rollouts.reward = {{.label = "exact_match"}};
  train.rollouts.n = 8;
  train.rollouts.max_new_tokens = 512;
  EXPECT_EQ(answers_line(train),
            "answers: the model writes 8 to each prompt itself, each of up to 512 tokens "
            "(train.rollouts)");
  train.rollouts.engine = "http://127.0.0.1:8000/v1";
  EXPECT_EQ(answers_line(train),
            "answers: a server (http://127.0.0.1:8000/v1) writes 8 to each prompt, each of up to "
            "512 tokens (train.rollouts)");
  train.objective = Objective::kDistill;
  train.rollouts.share = 0.5;
  train.rollouts.engine = "self";
  EXPECT_EQ(answers_line(train),
            "answers: the student writes those of 50% of the examples of a step itself, each of up "
            "to 512 tokens (train.rollouts.share)");
}

}  // namespace
}  // namespace sftrun::config
