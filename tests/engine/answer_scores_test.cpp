#include "answer_scores.h"

#include <gtest/gtest.h>

namespace sftrun::engine {
namespace {

TEST(AnswerScores, ExactMatchPassesOverWhiteSpaceAtTheEnds) {
  EXPECT_EQ(score_answer("Paris", " Paris\n").exact_match, 1);
  EXPECT_EQ(score_answer("Paris", "paris").exact_match, 0);
  EXPECT_EQ(score_answer("New York", "New  York").exact_match, 0);
  EXPECT_EQ(score_answer("", "").exact_match, 1);
}

TEST(AnswerScores, MeansAreOverAnswers) {
  MeanAnswerScores scores;
  EXPECT_EQ(scores.mean().rouge1, 0);
  scores.add(score_answer("a b", "a b"));
  scores.add(score_answer("a b", "b c"));
  EXPECT_EQ(scores.count(), 2);
  EXPECT_EQ(scores.mean().rouge1, 0.75);
  EXPECT_EQ(scores.mean().rouge2, 0.5);
  EXPECT_EQ(scores.mean().rouge_l, 0.75);
  EXPECT_EQ(scores.mean().exact_match, 0.5);
}

}  // namespace
}  // namespace sftrun::engine
