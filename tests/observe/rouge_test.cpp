#include "sftrun/observe/rouge.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "sftrun/core/file.h"
#include "support/test_data.h"

namespace sftrun::observe {
namespace {

void expect_equal(const RougeScore& ours, const nlohmann::json& theirs) {
  EXPECT_EQ(ours.precision, theirs[0].get<double>());
  EXPECT_EQ(ours.recall, theirs[1].get<double>());
  EXPECT_EQ(ours.fmeasure, theirs[2].get<double>());
}

TEST(Rouge, EqualsRougeScoreToTheLastBit) {
  const auto fixture = nlohmann::json::parse(read_text_file(test::kData / "text/rouge.json"));
  ASSERT_EQ(fixture["pairs"].size(), 1000U);
  int64_t num_partial = 0;
  for (const nlohmann::json& pair : fixture["pairs"]) {
    SCOPED_TRACE(pair["reference"].dump() + " " + pair["text"].dump());
    const RougeScores scores =
        rouge(pair["reference"].get<std::string>(), pair["text"].get<std::string>());
    expect_equal(scores.rouge1, pair["rouge1"]);
    expect_equal(scores.rouge2, pair["rouge2"]);
    expect_equal(scores.rouge_l, pair["rougeL"]);
    num_partial += scores.rouge_l.fmeasure > 0 && scores.rouge_l.fmeasure < 1 ? 1 : 0;
  }
  EXPECT_GT(num_partial, 500);
}

TEST(Rouge, SubsequenceKeepsTheOrderOfWords) {
  const RougeScores scores = rouge("police killed the gunman", "the gunman police killed");
  EXPECT_EQ(scores.rouge1.fmeasure, 1);
  EXPECT_EQ(scores.rouge2.fmeasure, 2.0 / 3);
  EXPECT_EQ(scores.rouge_l.fmeasure, 0.5);
}

TEST(Rouge, EmptyTextsScoreZero) {
  for (const auto& [reference, text] :
       {std::pair{"", ""}, std::pair{"a", ""}, std::pair{"", "a"}, std::pair{"…", "…"}}) {
    const RougeScores scores = rouge(reference, text);
    EXPECT_EQ(scores.rouge1.fmeasure, 0);
    EXPECT_EQ(scores.rouge2.precision, 0);
    EXPECT_EQ(scores.rouge_l.recall, 0);
  }
}

}  // namespace
}  // namespace sftrun::observe
