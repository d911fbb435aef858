#include "sftrun/data/sample.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/data/dataset.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

class FirstExamples : public testing::Test {
 protected:
  FirstExamples() {
    config_.model.max_seq_len = 16;
    config_.data.too_long = config::TooLong::kDrop;
    config_.data.cache_dir = (dir_ / "cache").string();
  }
  config::DataSource write(const std::string& name, const std::vector<std::string>& texts) {
    std::string content;
    for (const std::string& text : texts) content += "{\"text\": \"" + text + "\"}\n";
    write_file_atomically(dir_ / name, content);
    return {.path = (dir_ / name).string()};
  }
  std::vector<Example> first(const std::vector<config::DataSource>& sources, int64_t count) const {
    return first_examples(config_, sources, /*is_validation=*/true, model_, count);
  }

  const sftrun::test::TemporaryDirectory dir_;
  TextModel model_ = test::toy_model();
  config::RunConfig config_;
};

TEST_F(FirstExamples, AreThoseOfTraining) {
  const auto source = write("a.jsonl", {"ab", "much longer than sixteen tokens are", "cd", "ef"});
  const Dataset all = load_dataset(config_, {source}, /*is_validation=*/true, model_, 1);
  ASSERT_EQ(all.examples().size(), 3);
  const std::vector<Example> examples = first({source}, 2);
  ASSERT_EQ(examples.size(), 2U);
  for (size_t i = 0; i < examples.size(); ++i) {
    const ExampleView expected = all.examples()[static_cast<int64_t>(i)];
    ASSERT_EQ(static_cast<int64_t>(examples[i].tokens.size()), expected.size());
    for (int64_t at = 0; at < expected.size(); ++at) {
      EXPECT_EQ(examples[i].tokens[static_cast<size_t>(at)], expected.token(at));
      EXPECT_EQ(examples[i].labels[static_cast<size_t>(at)], expected.label(at));
    }
  }
  EXPECT_EQ(first({source}, 9).size(), 3U);
}

TEST_F(FirstExamples, ComeOfEverySet) {
  const auto one = write("a.jsonl", {"a", "b", "c", "d"}), other = write("b.jsonl", {"e", "f"}),
             third = write("c.jsonl", {"g", "h", "i", "j"});
  EXPECT_EQ(first({one, other, third}, 6).size(), 6U);
  EXPECT_EQ(first({one, other, third}, 9).size(), 3U + 2U + 4U);  // what one lacks the next has
  EXPECT_EQ(first({one}, 0).size(), 0U);
}

TEST_F(FirstExamples, AMaximumOfTheSetHolds) {
  auto source = write("a.jsonl", {"a", "b", "c", "d"});
  source.max_samples = 2;
  EXPECT_EQ(first({source}, 4).size(), 2U);
}

}  // namespace
}  // namespace sftrun::data
