#include "../../src/engine/question.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/core/file.h"

namespace sftrun::engine {
namespace {

tokenizer::Tokenizer tokenizer() {
  const std::filesystem::path file =
      std::filesystem::path(SFTRUN_TEST_DATA) / "text/smollm.tokenizer.json";
  return tokenizer::Tokenizer::from_json(read_text_file(file), file.string());
}

/// @param labelled one character for each token: 1 if it has a label
std::optional<Question> asked(const std::vector<int32_t>& tokens, const std::string& labelled) {
  data::Example example;
  example.tokens = tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool trains = i + 1 < tokens.size() && labelled[i + 1] == '1';
    example.labels.push_back(trains ? tokens[i + 1] : data::kIgnoreIndex);
  }
  const data::ExampleStore store = data::ExampleStore::in_memory({example});
  return question_of(store, 0, tokenizer());
}

TEST(Questions, AskForTheLastAnswer) {
  const std::vector<int32_t> text = tokenizer().encode("one two three four five six", false);
  ASSERT_GE(text.size(), 6U);
  const std::vector<int32_t> tokens(text.begin(), text.begin() + 6);
  const auto question = asked(tokens, "011011");
  ASSERT_TRUE(question);
  EXPECT_EQ(question->prompt.ids, std::vector<int32_t>(tokens.begin(), tokens.begin() + 4));
  EXPECT_EQ(question->reference,
            tokenizer().decode(std::vector<int32_t>(tokens.begin() + 4, tokens.end()), true));
  // What follows an answer in the template is no part of it.
  const auto followed = asked(tokens, "000110");
  ASSERT_TRUE(followed);
  EXPECT_EQ(followed->prompt.ids.size(), 3U);
  EXPECT_EQ(followed->reference,
            tokenizer().decode(std::vector<int32_t>(tokens.begin() + 3, tokens.begin() + 5), true));
}

TEST(Questions, TextsHaveNoPrompt) {
  EXPECT_FALSE(asked({4, 5, 6}, "011"));
  EXPECT_FALSE(asked({4}, "0"));
  EXPECT_FALSE(asked({4, 5, 6}, "000"));
}

}  // namespace
}  // namespace sftrun::engine
