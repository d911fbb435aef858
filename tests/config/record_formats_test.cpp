#include "sftrun/config/record_formats.h"

#include <gtest/gtest.h>

#include <set>

namespace sftrun::config {
namespace {

TEST(RecordFormatRows, NamesAreTakenOnce) {
  std::set<std::string_view> names = {"auto"};
  for (const RecordFormatInfo& info : kRecordFormats) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    for (const std::string_view alias : info.aliases)
      EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

/// Fingerprints of data sets, and so the identity of runs that checkpoints hold, have the numbers.
TEST(RecordFormatRows, NumbersStay) {
  using enum RecordFormat;
  EXPECT_EQ((std::vector<RecordFormat>{kMessages, kShareGpt, kPromptCompletion, kAlpaca, kText,
                                       kPreference}),
            (std::vector<RecordFormat>{RecordFormat{0}, RecordFormat{1}, RecordFormat{2},
                                       RecordFormat{3}, RecordFormat{4}, RecordFormat{5}}));
}

TEST(RecordFormatRows, ColumnsAreThoseOfAllFormats) {
  const std::vector<std::string> columns = record_columns();
  EXPECT_EQ((std::set<std::string>(columns.begin(), columns.end())),
            (std::set<std::string>{"messages",
                                   "conversations",
                                   "prompt",
                                   "completion",
                                   "instruction",
                                   "input",
                                   "output",
                                   "system",
                                   "text",
                                   "tools",
                                   "chosen",
                                   "rejected",
                                   "anchor",
                                   "positive",
                                   "negative",
                                   "images",
                                   "videos",
                                   "features",
                                   "label",
                                   "prompt_ids",
                                   "completion_ids",
                                   "reward",
                                   "advantage",
                                   "group",
                                   "logprobs",
                                   "sampling_logprobs",
                                   "completion_mask",
                                   "finish_reason",
                                   "labels",
                                   "margin"}));
  EXPECT_EQ(optional_columns(), (std::vector<std::string>{"features", "images", "input", "negative",
                                                          "system", "tools", "videos"}));
  EXPECT_EQ(columns_of_turns(), (std::vector<std::string>{"messages", "conversations", "prompt",
                                                          "completion", "chosen", "rejected"}));
}

TEST(RecordFormatRows, FormsOfExamplesHaveFormats) {
  const auto formats = [](ExampleForm form) {
    std::vector<std::string_view> names;
    for (const RecordFormatInfo& info : kRecordFormats)
      if (info.gives(form)) names.push_back(info.name);
    return names;
  };
  using Names = std::vector<std::string_view>;
  EXPECT_EQ(formats(ExampleForm::kAnswer),
            (Names{"messages", "sharegpt", "prompt_completion", "alpaca", "text"}));
  EXPECT_EQ(formats(ExampleForm::kPair), Names{"preference"});
  EXPECT_EQ(formats(ExampleForm::kJudged),
            (Names{"messages", "sharegpt", "prompt_completion", "alpaca", "preference"}));
}

TEST(RecordFormatRows, PropertiesOfAFormatThatIsNotSetDoNotHold) {
  EXPECT_FALSE(is_format(RecordFormat::kAuto, &RecordFormatInfo::is_text));
  EXPECT_TRUE(is_format(RecordFormat::kText, &RecordFormatInfo::is_text));
  EXPECT_TRUE(is_format(RecordFormat::kPreference, &RecordFormatInfo::is_pair));
}

}  // namespace
}  // namespace sftrun::config
